"""A budget of trials."""

from __future__ import annotations

from tt_spec.clock import Clock
from tt_spec.roles import RunState

__all__ = ["TrialsStopper"]


class TrialsStopper:
    """Ends the run after `trials` measured rows; invalid rows and rows from the store do not count.

    Args:
        trials: In this run, all tasks together. (default: 1000)
    """

    scope = "run"

    def __init__(self, trials: int = 1000) -> None:
        self.trials = trials

    def stop(self, state: RunState, clock: Clock) -> str | None:
        return f"{self.trials} trials are spent" if state.trials >= self.trials else None

    def room(self, state: RunState) -> int:
        """Rows that may still be measured."""
        return self.trials - state.trials
