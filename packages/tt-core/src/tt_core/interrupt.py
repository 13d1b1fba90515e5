"""Ctrl-C, or a request to end from elsewhere, while something long goes on."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "interruptible", "interruptions", "listen", "unheard"]

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Ctrl-C; what a job scheduler or container sends; a terminal that is closed. One that is ignored, as SIGHUP is below
`nohup`, stays so."""

LEAVE_S = 5.0
"""How long further ones are ignored while one ends the process: temporary files go and workers end meanwhile."""


class Interrupt(KeyboardInterrupt):
    """A signal's. Where KeyboardInterrupt itself passes through `exec` of a text, as in dataclasses, Python ends by
    SIGINT at last, whoever caught it."""


_raised: list[int] = []
"""The signals that broke off what this process did."""


def interruptions() -> int:
    """How often a signal broke off what this process did. What fails next fails by that, and may no longer look so:
    TVM makes a RuntimeError of whatever a callback raises, and code that is left in its midst may fail as it is left.
    """
    return len(_raised)


def _break_off(number: int) -> None:
    _raised.append(number)
    raise Interrupt


_lost: list[int] = []
"""Signals that broke off what nobody can break off, and come again."""

AGAIN_S = 0.01
"""When they do."""


def _unraisable(before: Callable[[Any], object], what: Any) -> None:
    """Told of what was raised where Python cannot let it go on, as in the callback of a weak reference, of which an
    import makes one: an interrupt comes again a moment later, and nothing is printed of it. It is sent to the main
    thread, whose waiting no signal to another thread would end."""
    if not isinstance(what.exc_value, Interrupt):
        before(what)
        return
    _lost.append(_raised.pop())
    main = threading.main_thread().ident
    threading.Timer(AGAIN_S, signal.pthread_kill, [main, _lost[-1]]).start()


def listen() -> Callable[[], None]:
    """Have each of `SIGNALS` raise `Interrupt`; for the whole command, before it does anything.

    Returns:
        To be called when the command has ended: from then on its exit code stands.
    """
    since: list[float] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if _lost:
            _break_off(_lost.pop())
        if not since:
            since.append(time.monotonic())
            _break_off(number)
        if time.monotonic() - since[0] > LEAVE_S:
            os._exit(130)

    def ignore() -> None:  # Python gives signals back to the system before it unloads modules
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)

    numbers = _heeded()
    for n in numbers:
        signal.signal(n, on_signal)
    sys.unraisablehook = partial(_unraisable, sys.unraisablehook)
    atexit.register(ignore)
    return lambda: since.append(time.monotonic())


@contextmanager
def unheard() -> Iterator[None]:
    """Programs started herein do not hear the signals that a terminal sends to all of its command; this process hears
    them afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _numbers())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _numbers() -> list[signal.Signals]:
    return [n for name in SIGNALS if (n := getattr(signal, name, None)) is not None]


def _heeded() -> list[signal.Signals]:
    return [n for n in _numbers() if signal.getsignal(n) is not signal.SIG_IGN]


@contextmanager
def interruptible() -> Iterator[Callable[[], str | None]]:
    """Yield a function that says "interrupted" after the first of `SIGNALS`, so that the run finishes the candidate in
    hand and keeps its results; the second one ends it, and those that follow at once are ignored."""
    pressed: list[float] = []
    terminals = [fd for fd in (1, 2) if _terminal(fd)]

    def on_signal(number: int, frame: FrameType | None) -> None:
        if _lost:
            _break_off(_lost.pop())
        if number == signal.SIGHUP:
            _silence(terminals)
        pressed.append(time.monotonic())
        if len(pressed) == 2 or (len(pressed) > 2 and pressed[-1] - pressed[1] > LEAVE_S):
            _break_off(number)
        if len(pressed) > 2:
            return
        with suppress(OSError):
            again = "; Ctrl-C again to leave at once" if number == signal.SIGINT else ""
            print(f"\nstopping after the candidate in hand{again}", file=sys.stderr, flush=True)

    before = {n: signal.getsignal(n) for n in _heeded()}
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
