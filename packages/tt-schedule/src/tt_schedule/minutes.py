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
    """

    scope: Literal["task", "run"] = "run"

    def __init__(self, minutes: float = 5.0) -> None:
        self.minutes = minutes

    def stop(self, state: RunState, clock: Clock) -> str | None:
        return f"{self.minutes:g} minutes are spent" if self.left_s(state, clock) <= 0 else None

    def left_s(self, state: RunState, clock: Clock) -> float:
        """Seconds until the end."""
        return state.started + 60.0 * self.minutes - clock.now()
