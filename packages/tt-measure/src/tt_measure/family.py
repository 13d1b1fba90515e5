"""Whatever a worker has started, to the last grandchild in a session of its own: found and ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import sys
from collections.abc import Collection
from pathlib import Path

import psutil

__all__ = ["MARK", "adopt", "descendants", "end", "end_orphans", "fresh_mark"]

MARK = "TT_WORKER_MARK"
"""Environment variable of a worker, inherited by all that it starts: it tells them apart from everybody else's
processes once the worker, their only other tie, is dead."""

ROUNDS = 5
"""Searches at most: one that is ended may have started another meanwhile."""


def fresh_mark() -> str:
    """The mark of one worker: which process started it, and a number of its own."""
    return f"{_scope()}:{os.getpid()}:{_began(os.getpid())}:{secrets.token_hex(16)}"


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


def end_orphans() -> int:
    """Kill what workers of a process that is gone have left, say after a `kill -9` of `tt`; from how many workers.

    Linux only, and only what this process could be the parent of: elsewhere, and in other containers, a number says too
    little about who is alive.
    """
    if not (scope := _scope()):
        return 0
    lives: dict[tuple[str, str], bool] = {}
    orphans: set[str] = set()
    for process in psutil.process_iter():
        here, pid, began, *_ = [*(mark := _mark(process) or "").split(":"), "", "", ""]
        if here != scope or not pid.isdecimal():
            continue
        owner = pid, began
        if owner not in lives:
            lives[owner] = _began(int(pid)) == began
        if not lives[owner]:
            orphans.add(mark)
    if orphans:
        end(orphans)
    return len(orphans)


def _scope() -> str:
    """Names the processes whose numbers mean the same here (Linux's PID namespace); "" where that is not known."""
    try:
        return os.readlink("/proc/self/ns/pid").replace(":", "")
    except OSError:
        return ""


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did, which no clock changes; "" if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after = stat.rpartition(")")[2].split()
    return "" if after[0] == "Z" else after[19]


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):  # another user's, or a zombie
        return None
