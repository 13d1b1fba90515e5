"""Equal shares."""

from __future__ import annotations

from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

__all__ = ["RoundRobin"]


class RoundRobin:
    """Each unfinished task in turn: the slot goes to the task with the fewest trials in this run, ties in order.

    Args:
        trials: Measured rows per slot. (default: 16)
    """

    def __init__(self, trials: int = 16) -> None:
        self.trials = trials

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        if self.trials < 1:
            raise ValueError(f"a slot needs at least one trial, got trials={self.trials}")
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        return Slot(min(racing, key=lambda i: states[i].trials), trials=self.trials)
