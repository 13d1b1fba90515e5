"""One task after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

__all__ = ["SequentialScheduler"]


class SequentialScheduler:
    """Tunes each task to its end before the next: AutoTVM's order.

    Args:
        trials: Measured rows per task in this run. (default: 1000)
    """

    def __init__(self, trials: int = 1000) -> None:
        self.trials = trials

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        for i, s in enumerate(states):
            if s.finished is None and s.trials < self.trials:
                return Slot(i, trials=self.trials - s.trials)
        return None
