"""Schedulers and stoppers: who gets the next time slot, and when to stop."""

from tt_schedule.gradient import Gradient
from tt_schedule.minutes import Minutes
from tt_schedule.patience import Patience
from tt_schedule.round_robin import RoundRobin

__all__ = ["Gradient", "Minutes", "Patience", "RoundRobin"]
