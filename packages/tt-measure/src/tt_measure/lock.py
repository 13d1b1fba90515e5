"""One lock per machine and user, so that nothing is built while something is timed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import psutil

from tt_measure.process import WorkerError

__all__ = ["TimingLock"]

SHARED = Path("/dev/shm")
"""Linux's shared memory, the same for all processes of a machine or container."""

Patience = Callable[[Callable[[], str]], AbstractContextManager[None]]
"""A context for as long as the lock is waited for; given a function that says who holds it."""

LINE = 64
"""Bytes of the line that a holder writes: its process and since when."""


class TimingLock:
    """An advisory file lock: whoever builds shares it, whoever times has it alone.

    Workers of every `tt` process of one user take it, each while it works, so a process that is killed or merely
    pauses never keeps it: the kernel releases it with the file. Nobody waits forever: whoever waits stands in a gate
    through which all others must, so that those who build, or make programs for minutes, by turns and never all at
    once idle, let the one pass who wants to time.

    Args:
        path: The lock file; None is `tt-timing-<uid>.lock` in shared memory (/dev/shm), which all processes of a
            machine or container see whatever their TMPDIR, or where there is none in the directory for temporary
            files. Created if missing, never removed, and no link. That of None belongs to this user, who alone may open
            it; a path may be shared with others.
        patience: Entered while the lock is waited for.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, patience: Patience = lambda holder: nullcontext()
    ) -> None:
        self.path, self.patience = path, patience

    def shared(self) -> AbstractContextManager[None]:
        """Context: hold the lock together with others who share it."""
        return self._hold(fcntl.LOCK_SH)

    def exclusive(self) -> AbstractContextManager[None]:
        """Context: hold the lock alone."""
        return self._hold(fcntl.LOCK_EX)

    def check(self) -> None:
        """Raise `WorkerError` if the file cannot be used."""
        os.close(self._open())

    @property
    def place(self) -> str:
        """The lock file."""
        return os.fspath(_common() / f"tt-timing-{os.getuid()}.lock" if self.path is None else self.path)

    @contextmanager
    def _hold(self, how: int) -> Iterator[None]:
        fd = self._open()
        try:
            if not (_gate(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) and _taken(fd, how)):
                with self.patience(lambda: self._holder(fd)):
                    _gate(fd, fcntl.LOCK_EX)
                    fcntl.flock(fd, how)
            _gate(fd, fcntl.LOCK_UN)
            os.pwrite(fd, f"{os.getpid()} {time.time():.0f}".ljust(LINE - 1).encode() + b"\n", 0)
            yield
        finally:
            with contextlib.suppress(OSError):
                _gate(fd, fcntl.LOCK_UN)
                fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough where a fork of this process has it open too
            os.close(fd)

    def _holder(self, fd: int) -> str:
        """Who took the lock last, in words."""
        waits = f"a worker waits for the timing lock {self.place}"
        try:
            pid, since = map(int, os.pread(fd, LINE, 0).split())
            command = " ".join(psutil.Process(psutil.Process(pid).ppid()).cmdline())[:80]
        except (OSError, ValueError, psutil.Error):
            return waits
        about = f" of {command!r}" if command else ""
        return f"{waits}: process {pid}{about} has had it since {time.strftime('%H:%M:%S', time.localtime(since))}"

    def _open(self) -> int:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(self.place, flags, 0o600)
        except OSError as e:
            raise WorkerError(f"the timing lock {self.place} cannot be used: {e.strerror}; {_ADVICE}") from e
        if (why := self._refused(os.fstat(fd))) is not None:
            os.close(fd)
            raise WorkerError(f"the timing lock {self.place} cannot be used: {why}; {_ADVICE}")
        if self.path is None:
            os.fchmod(fd, 0o600)
        return fd

    def _refused(self, about: os.stat_result) -> str | None:
        if not stat.S_ISREG(about.st_mode):
            return "it is not a regular file"
        if self.path is None and about.st_uid != os.getuid():
            return f"it belongs to user {about.st_uid}"
        return None


_ADVICE = "remove it, or name another (measurer option lock)"


def _gate(fd: int, how: int) -> bool:
    """Enter or leave the file's gate, which one may be in at a time; False if somebody is and `how` does not wait. A
    system that has no locks of open files has no gate."""
    command = getattr(fcntl, "F_OFD_SETLK" if how & (fcntl.LOCK_NB | fcntl.LOCK_UN) else "F_OFD_SETLKW", None)
    if command is None:
        return True
    kind = fcntl.F_UNLCK if how & fcntl.LOCK_UN else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, command, struct.pack("hhqqi", kind, os.SEEK_SET, 0, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    except OSError as e:
        if e.errno != errno.EINVAL:  # a kernel or file system without them
            raise
    return True


def _taken(fd: int, how: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        return True
    return False


def _common() -> Path:
    return SHARED if os.access(SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
