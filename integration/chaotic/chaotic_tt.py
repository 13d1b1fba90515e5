"""A plug-in for `tools/chaos.py`: candidates that misbehave at random, and a clock that jumps when told to."""

import contextlib
import ctypes
import faulthandler
import os
import random
import signal
import time

from tt_measure import Fixed
from tt_spec import Entry, hookimpl

faulthandler.register(signal.SIGUSR1)  # a command that hangs is asked where

CLOCK = os.environ.get("TT_CHAOS_CLOCK")
"""A file with the seconds by which `time.time` is off; no such file, no jump."""

SECONDS = time.time


def jumping():
    """The time of day, as far as the file lets it be."""
    with contextlib.suppress(OSError, ValueError), open(str(CLOCK)) as f:
        return SECONDS() + float(f.read())
    return SECONDS()


if CLOCK:
    time.time = jumping


def crash():
    ctypes.string_at(0)


def leave():
    os._exit(3)


def hang():
    while True:
        time.sleep(1)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def flood():
    kept = []
    while True:
        kept.append(b"\1" * (64 << 20))


def shout():
    for _ in range(2000):
        print("\x1b[2J" + "x" * 1000)


def escape():
    """A grandchild in a session of its own, which keeps every file open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def mute():
    os.closerange(3, 64)


DAMAGES = (crash, leave, hang, stop, die, flood, shout, escape, mute)


class Chaotic(Fixed):
    """The fixed evaluator; the share `share` of its candidates damages its worker while it runs."""

    def __init__(self, share: float = 0.2, repeat: int = 1, min_repeat_ms: float = 1.0) -> None:
        super().__init__(repeat=repeat, min_repeat_ms=min_repeat_ms)
        self.share = share

    def evaluate(self, run, bar, rng):
        if random.random() < self.share:
            random.choice(DAMAGES)()
        return super().evaluate(run, bar, rng)


@hookimpl
def tt_evaluators():
    return [Entry("chaotic", Chaotic)]
