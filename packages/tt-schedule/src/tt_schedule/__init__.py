"""Schedulers and stoppers: who gets the next time slot, and when to stop."""

from tt_schedule.adaptive_stop import AdaptiveStop
from tt_schedule.belief import Belief
from tt_schedule.dynatune import DynaTune
from tt_schedule.gradient import Gradient
from tt_schedule.linear import Linear
from tt_schedule.minutes import Minutes
from tt_schedule.patience import Patience
from tt_schedule.random_turns import RandomTurns
from tt_schedule.round_robin import RoundRobin

__all__ = [
    "AdaptiveStop",
    "Belief",
    "DynaTune",
    "Gradient",
    "Linear",
    "Minutes",
    "Patience",
    "RandomTurns",
    "RoundRobin",
]
