"""Shares in proportion to the work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

from tt_schedule.warmup import first_slot, rest_of_warm_up, warm_up

__all__ = ["Linear"]


class Linear:
    """Trials in proportion to the FLOP that a task has in the model, once all have a valid result.

    Source: Zhang et al. (2021), DynaTune, section 5.2.

    Args:
        trials: Measured rows per slot. (default: 16)
        warmup: The most first slots for a task without a valid result. (default: 4)
        least: A task counts for no less than this share of the model's FLOP. (default: 0.001)
    """

    def __init__(self, trials: int = 16, warmup: int = 4, least: float = 1e-3) -> None:
        self.trials, self.warmup, self.least = trials, warmup, least
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
        work = [s.weight * s.flops for s in states]
        least = self.least * sum(work) or 1.0
        pick = min(racing, key=lambda i: (states[i].trials / max(work[i], least), i))
        return Slot(pick, trials=first_slot(states, self.trials, self.rows_), info={"why": "linear"})
