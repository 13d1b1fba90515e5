"""One task after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

__all__ = ["SequentialScheduler"]


class SequentialScheduler:
    """Tunes each task to its end before the next: AutoTVM's order.

    Where a budget bounds the run, each turn is an even share of what is left, over the tasks that still wait for
    theirs; what the last ones leave over is shared out again in another round.

    Args:
        trials: The most measured rows per task in this run. (default: 1000)
    """

    def __init__(self, trials: int = 1000) -> None:
        self.trials = trials
        self.rows_ = math.inf
        self.served_: set[int] = set()

    def budget(self, rows: float) -> None:
        self.rows_ = rows

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        racing = [i for i, s in enumerate(states) if s.finished is None and s.trials < self.trials]
        if not racing:
            return None
        waiting = [i for i in racing if i not in self.served_]
        if not waiting:
            self.served_, waiting = set(), racing
        pick = waiting[0]
        self.served_.add(pick)
        left = self.trials - states[pick].trials
        share = self.rows_ / len(waiting)
        return Slot(pick, trials=left if share >= left else max(1, math.ceil(share)))
