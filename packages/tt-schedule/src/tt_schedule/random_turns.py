"""Slots by lot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

from tt_schedule.warmup import first_slot, rest_of_warm_up, warm_up

__all__ = ["RandomTurns"]


class RandomTurns:
    """Any unfinished task, each as likely as the others, once all have a valid result.

    Source: Zhang et al. (2021), DynaTune, section 5.2.

    Args:
        trials: Measured rows per slot. (default: 16)
        warmup: The most first slots for a task without a valid result. (default: 4)
        seed: With the trials made so far it decides the slots. (default: 0)
    """

    def __init__(self, trials: int = 16, warmup: int = 4, seed: int = 0) -> None:
        self.trials, self.warmup, self.seed = trials, warmup, seed
        self.rows_ = math.inf

    def budget(self, rows: float) -> None:
        self.rows_ = rows

    def ahead(self, states: Sequence[TaskState], clock: Clock, slot: Slot, rows: int) -> list[Slot]:
        return rest_of_warm_up(states, slot, rows, self.trials, self.rows_)

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        first = warm_up(states, self.trials, self.rows_, self.warmup)
        if first is not None:
            return first
        rng = np.random.default_rng([self.seed, sum(s.trials for s in states)])
        return Slot(int(rng.choice(racing)), trials=first_slot(states, self.trials, self.rows_), info={"why": "random"})
