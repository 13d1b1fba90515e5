"""Ctrl-C while something long goes on."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[Callable[[], str | None]]:
    """Yield a function that says "interrupted" after the first Ctrl-C, so that the run finishes the candidate in hand
    and keeps its results; the second Ctrl-C ends it."""
    pressed = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        print("\nstopping after the candidate in hand; Ctrl-C again to leave at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: "interrupted" if pressed else None
    finally:
        signal.signal(signal.SIGINT, before)
