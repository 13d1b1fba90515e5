"""Limits of a process for itself: memory, processor time, files; no dumps, and it ends with its parent."""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
from dataclasses import dataclass

__all__ = ["Limits", "restrict"]

_PDEATHSIG = 1

FILES = 256
"""Files open at once."""


@dataclass(frozen=True)
class Limits:
    """What a process may use.

    Args:
        memory: Bytes, of its heap, its stacks and all else that it may write.
        seconds: Of the processor.
        file: Bytes of the largest file that it may write.
    """

    memory: int
    seconds: int
    file: int


def restrict(limits: Limits) -> None:
    """Hold this process to them; those stay that are narrower already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
