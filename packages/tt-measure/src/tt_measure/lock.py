"""One lock per machine and user, so that nothing is built while something is timed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

__all__ = ["TimingLock"]

SHARED = Path("/dev/shm")
"""Linux's shared memory, the same for all processes of a machine or container."""


class TimingLock:
    """An advisory file lock: whoever builds shares it, whoever times has it alone.

    Workers of every `tt` process of one user take it, each while it works, so a process that is killed or merely
    pauses never keeps it: the kernel releases it with the file. Nobody waits forever, although the kernel prefers
    nobody: a pool builds at most a chunk (seconds; at worst one build's time limit) before it must itself have the
    lock alone, so sooner or later all who build wait for it, and then those who time take turns.

    Args:
        path: The lock file; None is `tt-timing-<uid>.lock` in shared memory (/dev/shm), which all processes of a
            machine or container see whatever their TMPDIR, or where there is none in the directory for temporary
            files. Created if missing, never removed.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = path

    def shared(self) -> AbstractContextManager[None]:
        """Context: hold the lock together with others who share it."""
        return self._hold(fcntl.LOCK_SH)

    def exclusive(self) -> AbstractContextManager[None]:
        """Context: hold the lock alone."""
        return self._hold(fcntl.LOCK_EX)

    @contextmanager
    def _hold(self, how: int) -> Iterator[None]:
        fd = self._open()
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def _open(self) -> int:
        path = _common() / f"tt-timing-{os.getuid()}.lock" if self.path is None else self.path
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _common() -> Path:
    return SHARED if os.access(SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
