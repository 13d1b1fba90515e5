"""Equal shares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

__all__ = ["RoundRobin"]


class RoundRobin:
    """Each unfinished task in turn: the slot goes to the task with the fewest trials in this run, ties in order.

    A budget too small for another round of full slots is shared out evenly over the tasks that are behind.

    Args:
        trials: Measured rows per slot. (default: 16)
    """

    def __init__(self, trials: int = 16) -> None:
        self.trials = trials
        self.rows_ = math.inf

    def budget(self, rows: float) -> None:
        self.rows_ = rows

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        if self.trials < 1:
            raise ValueError(f"a slot needs at least one trial, got trials={self.trials}")
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        most = max(states[i].trials for i in racing)
        behind = [i for i in racing if states[i].trials < most] or racing
        share = self.rows_ / len(behind)
        trials = self.trials if share >= self.trials else max(1, math.ceil(share))
        return Slot(min(behind, key=lambda i: states[i].trials), trials=trials)
