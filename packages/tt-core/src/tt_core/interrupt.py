"""Ctrl-C, or a request to end from elsewhere, while something long goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["interruptible"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C; what a job scheduler or container sends; a terminal that is closed. One that is ignored, as SIGHUP is below
`nohup`, stays so."""


@contextmanager
def interruptible() -> Iterator[Callable[[], str | None]]:
    """Yield a function that says "interrupted" after the first of `SIGNALS`, so that the run finishes the candidate in
    hand and keeps its results; the second one ends it."""
    pressed = []
    terminals = [fd for fd in (1, 2) if _terminal(fd)]

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _silence(terminals)
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        with suppress(OSError):
            again = "; Ctrl-C again to leave at once" if number == signal.SIGINT else ""
            print(f"\nstopping after the candidate in hand{again}", file=sys.stderr, flush=True)

    numbers = [n for name in SIGNALS if (n := getattr(signal, name, None)) is not None]
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) is not signal.SIG_IGN}
    for n in before:
        signal.signal(n, on_signal)
    try:
        yield lambda: "interrupted" if pressed else None
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)


def _terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _silence(fds: list[int]) -> None:
    """Let what is written to a terminal that is gone go nowhere: it would be an error each time."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in fds:
            os.dup2(nowhere, fd)
        os.close(nowhere)
