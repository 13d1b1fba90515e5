"""Early stop of a task."""

from __future__ import annotations

from typing import Literal

from tt_spec.clock import Clock
from tt_spec.types import TaskState

__all__ = ["Patience"]


class Patience:
    """Ends a task after so many trials without a gain of 1 % or more; results from the store are the bar to beat.

    Args:
        trials: Measured rows of the task in this run. (default: 200)
    """

    scope: Literal["task", "run"] = "task"

    def __init__(self, trials: int = 200) -> None:
        self.trials = trials

    def stop(self, state: TaskState, clock: Clock) -> str | None:
        quiet = state.trials - state.last_gain_trial
        return f"no gain of 1 % in {quiet} trials" if quiet >= self.trials else None
