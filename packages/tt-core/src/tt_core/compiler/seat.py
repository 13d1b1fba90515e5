"""The processor that a worker's main thread works on.

Two workers that build at once were seen on one processor of two while the other one idled. And TVM binds the threads of
its pool to processors, all but the main thread, which may find itself on one of those when a program runs on all of
them. So a worker builds on a processor of its own, and times programs on those that the pool leaves. Two that run whole
models there for their outputs alone would share one processor: they stay on their own.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["WORKER", "Seat"]

WORKER = "TT_WORKER"
"""Environment variable: a worker's number among those of its pool; without it nobody is moved."""

TASKS = Path("/proc/self/task")
"""Linux's folder with an entry for each thread of this process."""


class Seat:
    """Moves the main thread of this process between processors.

    Args:
        processors: That the process may use; None is asked of the system.
        worker: The worker's number; None is what `WORKER` says.
        tasks: Folder with an entry for each thread of the process.
    """

    def __init__(
        self,
        processors: Collection[int] | None = None,
        worker: int | None = None,
        tasks: Path = TASKS,
    ) -> None:
        if processors is None:
            processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        number = os.environ.get(WORKER, "")
        self.processors, self.tasks = sorted(processors), tasks
        self.worker = int(number) if worker is None and number.isdigit() else worker
        self._doing = ""

    def build(self) -> None:
        """Take a processor of its own."""
        if self._begins("build"):
            assert self.worker is not None
            os.sched_setaffinity(0, {self.processors[self.worker % len(self.processors)]})

    def run(self) -> None:
        """Take the processors that no thread of the pool is bound to; all, where none is left or there is none yet."""
        if self._begins("run"):
            os.sched_setaffinity(0, set(self.processors) - self._bound() or set(self.processors))

    def _begins(self, doing: str) -> bool:
        """Whether the thread is to be moved because it does something else than before."""
        before, self._doing = self._doing, doing
        return doing != before and self._moves

    @property
    def _moves(self) -> bool:
        return self.worker is not None and len(self.processors) > 1 and os.environ.get("TVM_BIND_THREADS") != "0"

    def _bound(self) -> set[int]:
        """Processors to which another thread is bound alone."""
        bound: set[int] = set()
        for task in self.tasks.iterdir():
            try:
                allowed = os.sched_getaffinity(int(task.name))
            except (OSError, ValueError):  # it ended meanwhile
                continue
            if int(task.name) != os.getpid() and len(allowed) == 1:
                bound |= allowed
        return bound
