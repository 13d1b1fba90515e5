"""The only place that reads the time; replay depends on it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "VirtualClock", "WallClock"]


class Clock(Protocol):
    """Time in seconds since the epoch."""

    def now(self) -> float: ...


class WallClock:
    """The machine's time: starts at the epoch time and advances monotonically."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return time.monotonic() + self._offset


class VirtualClock:
    """Time that passes only when told; for replay and tests."""

    def __init__(self, start: float = 0.0) -> None:
        self.t = start

    def now(self) -> float:
        return self.t

    def advance(self, seconds: float) -> None:
        """Let `seconds` (not negative) pass."""
        if seconds < 0:
            raise ValueError(f"time only moves forward, got {seconds} s")
        self.t += seconds
