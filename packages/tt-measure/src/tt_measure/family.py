"""Whatever a worker has started, to the last grandchild in a session of its own: found and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import sys
from collections.abc import Collection

import psutil

__all__ = ["MARK", "adopt", "descendants", "end", "fresh_mark"]

MARK = "TT_WORKER_MARK"
"""Environment variable of a worker, inherited by all that it starts: it tells them apart from everybody else's
processes once the worker, their only other tie, is dead."""

ROUNDS = 5
"""Searches at most: one that is ended may have started another meanwhile."""


def fresh_mark() -> str:
    """The mark of one worker."""
    return secrets.token_hex(16)


def adopt() -> None:
    """Ask Linux to make this process the parent of orphans below it, so that a double fork hides nobody from
    `descendants`; elsewhere the mark has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below a living one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def end(marks: Collection[str], known: Collection[psutil.Process] = ()) -> None:
    """Kill those `known` and every process with one of the marks."""
    for p in known:
        with contextlib.suppress(psutil.Error):
            p.kill()  # looks whether the number was given to another process meanwhile
    for _ in range(ROUNDS):
        found = [p for p in psutil.process_iter() if p.pid != os.getpid() and _mark(p) in marks]
        if not found:
            return
        for p in found:
            with contextlib.suppress(psutil.Error):
                p.kill()


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):  # another user's, or a zombie
        return None
