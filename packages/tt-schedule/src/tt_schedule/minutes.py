"""A budget of time."""

from __future__ import annotations

from typing import Literal

from tt_spec.clock import Clock
from tt_spec.roles import RunState

__all__ = ["Minutes"]


class Minutes:
    """Ends the run once `minutes` have passed since it started, by the run's clock.

    Args:
        minutes: May be a fraction. (default: 5)
        apart_s: Seconds of them that are not the search's: what went before it, and what is kept to finish.
            (default: 0)
        first_s: Seconds that the run may take longer while an operator was not measured at all: without a program of
            its own it often takes more of the model's time than all others. (default: 0)
    """

    scope: Literal["task", "run"] = "run"

    def __init__(self, minutes: float = 5.0, apart_s: float = 0.0, first_s: float = 0.0) -> None:
        self.minutes, self.apart_s, self.first_s = minutes, apart_s, first_s

    def stop(self, state: RunState, clock: Clock) -> str | None:
        if self.left_s(state, clock) > 0:
            return None
        apart = f", {self.apart_s:.0f} s of them to start and to finish" if self.apart_s >= 1 else ""
        return f"{self.minutes:g} minutes are spent{apart}"

    def left_s(self, state: RunState, clock: Clock) -> float:
        """Seconds until the end; where it is near and an operator waits, `first_s`, or what is left of those."""
        left_s = state.started + 60.0 * self.minutes - self.apart_s - clock.now()
        if any(t.finished is None and t.trials + t.restored == 0 for t in state.tasks):
            return max(left_s, min(self.first_s, left_s + self.first_s))
        return left_s
