"""Early stop of a task."""

from __future__ import annotations

import math
from typing import Literal

from tt_spec.clock import Clock
from tt_spec.types import TaskState

__all__ = ["Patience"]


class Patience:
    """Ends a task after so many trials without a gain of 1 % or more; results from the store are the bar to beat.

    AutoTVM's early stop is `gain=0`: any better row resets it. Its `early_stopping` counts from the best row itself, so
    its baselines of (trial count, early stopping) are `cap=1500, trials=799` and `cap=800, trials=399`; a task none of
    whose rows runs ends one row before AutoTVM would end it.

    Source: Chen et al. (2018), AutoTVM, arXiv:1805.08166, and its tuner's `tune(n_trial, early_stopping)`.

    Args:
        trials: Measured rows of the task in this run. (default: 200)
        gain: Share of the latency by which a row must beat the best to count as a gain, in [0, 1). (default: 0.01)
        cap: Most measured rows of a task in this run; None is no bound. (default: None)
    """

    scope: Literal["task", "run"] = "task"

    def __init__(self, trials: int = 200, gain: float = 0.01, cap: int | None = None) -> None:
        if trials < 1 or (cap is not None and cap < 1):
            raise ValueError(f"trials and cap must be at least 1, got trials={trials} and cap={cap}")
        if not 0 <= gain < 1:
            raise ValueError(f"gain must be in [0, 1), got {gain}")
        self.trials, self.gain, self.cap = trials, gain, cap

    def stop(self, state: TaskState, clock: Clock) -> str | None:
        if self.cap is not None and state.trials >= self.cap:
            return f"{self.cap} trials of the task are spent"
        quiet = state.trials - self._last_gain(state)
        if quiet < self.trials:
            return None
        return f"no gain of {100 * self.gain:g} % in {quiet} trials" if self.gain else f"no gain in {quiet} trials"

    def rows_left(self, state: TaskState) -> float:
        """Rows of the task until its cap; inf without one."""
        return math.inf if self.cap is None else max(0, self.cap - state.trials)

    def _last_gain(self, state: TaskState) -> int:
        """Trial of this run that gained last, 0 if none did."""
        last, bar_s = 0, math.inf
        for trial, seconds in state.incumbents:
            if trial > state.restored and (math.isinf(bar_s) or seconds < (1 - self.gain) * bar_s):
                last = trial - state.restored
            bar_s = seconds
        return last
