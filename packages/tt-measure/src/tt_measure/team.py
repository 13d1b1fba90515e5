"""The worker processes of one pool, and the one place that waits for them."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from tt_spec.roles import Work
from tt_spec.types import Task

from tt_measure import family
from tt_measure.process import GRACE_S, Job, Process, WorkerError

__all__ = ["POLL_S", "Team"]

STARTS = 3
"""Starts in a row that may fail for a reason from outside."""

POLL_S = 0.05
"""Interval at which a busy worker's memory is looked at, seconds."""


TRACED = 1 << 14
"""Jobs that wait to be told of; the oldest are forgotten where nobody asks."""

WAIT_S = 60.0
"""How long a worker waits for the timing lock before a line says who has it, and then how often."""


@dataclass(eq=False)
class _Traced:
    """A job that `trace` has not told to its end; `until` is how far it has, by the machine's clock."""

    process: Process
    what: str
    job: Job
    until: float | None = None

    def waits(self, now: float) -> list[tuple[float, float]]:
        """When it waited for the lock, and for how many seconds; of a wait that lasts, to the second."""
        lasts = self.process.waiting_s if self.process.job is self.job and self.process.waits else 0.0
        return [*self.job.waits, (now - lasts, lasts)]

    def told(self, now: float) -> tuple[float, float]:
        """Begin and end of what is new; from now on it is told. A job that its worker has not begun is nothing yet."""
        if self.job.ending is None and self.process.job is not self.job:
            return now, now
        began = self.job.began if self.until is None else self.until
        self.until = now if self.job.ending is None else max(self.job.worked_until, began)
        return began, self.until


def _apart(
    what: str, began: float, ended: float, waits: Sequence[tuple[float, float]]
) -> Iterator[tuple[str, float, float]]:
    """A job's time, what it waited for the lock apart as "lock": what, begin and end."""
    at = began
    for start, seconds in sorted(waits):
        start, stop = max(start, at), min(start + seconds, ended)
        if stop > start:
            yield from [(what, at, start)] if start > at else []
            yield "lock", start, stop
            at = stop
    if ended > at:
        yield what, at, ended


class Team:
    """Starts, replaces and listens to workers. Not for use from several threads at once.

    Args:
        size: How many workers.
        threads: What TVM and OpenMP may use in each.
        memory_bytes: Of one worker at work on candidates; one that uses more is stopped, one that has grown by half of
            it is replaced. A call may use what all of them may together.
        hello: What `Worker.do_start` needs.
        grace_s: See `Process`.
    """

    def __init__(
        self, size: int, threads: int, memory_bytes: float, hello: dict[str, Any], grace_s: float = GRACE_S
    ) -> None:
        self.size, self.threads, self.memory_bytes, self.hello = size, threads, memory_bytes, hello
        self.grace_s = grace_s
        self._failed = 0
        self._said_s = -math.inf
        self.processes: list[Process] = []
        self._starting: dict[Process, Job] = {}
        self._base: dict[Process, int] = {}
        self._jobs = 0
        self._traced: deque[_Traced] = deque(maxlen=TRACED)

    def revive(self) -> None:
        """Start who is missing; replace who is lost or, while it holds nothing, has grown."""
        for p in self.processes:
            grown = p.job is None and not p.lost and not p.tokens and p in self._base
            if grown and p.memory() - self._base[p] > self.memory_bytes / 2:
                p.close()
        self.processes[:] = [p for p in self.processes if not p.lost]
        self._base = {p: b for p, b in self._base.items() if not p.lost}
        if not self._jobs:
            family.end_orphans()  # they would compute beside all that is timed, and may hold the lock
        while len(self.processes) < self.size:
            self._jobs += 1
            place = min(set(range(self.size)) - {q.place for q in self.processes})
            p = Process(self._jobs, self.hello, self.threads, place, self.grace_s)
            self.processes.append(p)
            if p.job is not None:
                self._starting[p] = p.job
                self._traced.append(_Traced(p, "start", p.job))

    def busy(self) -> bool:
        """Whether any worker has a job, be it the start or one that nobody waits for any more."""
        return any(p.job is not None for p in self.processes)

    def idle(self) -> list[Process]:
        """Workers that can take a job."""
        return [p for p in self.processes if p.job is None and not p.lost]

    def submit(self, process: Process, kind: str, *args: Any) -> Job:
        """Hand a job to a worker; one that has a job does it afterwards."""
        self._jobs += 1
        share = self.size if kind == "call" else 1
        job = process.send(Job(self._jobs, kind, share * self.memory_bytes), *args)
        self._traced.append(_Traced(process, str(args[1]) if kind == "call" else kind, job))
        return job

    def trace(self) -> list[Work]:
        """What the workers did since the last call; see `tt_spec.roles.Traces`."""
        for p in self.processes:
            while p.job is not None and not p.lost and p.conn.poll():  # said while nobody listened
                p.receive()
        now, found = time.monotonic(), []
        for t in self._traced:
            began, ended = t.told(now)
            for what, start, stop in _apart(t.what, began, ended, t.waits(now)):
                found.append(Work(t.process.place, what, now - start, stop - start))
        self._traced = deque((t for t in self._traced if t.job.ending is None), TRACED)
        return found

    @staticmethod
    def name(task: Task) -> str:
        """The task's name in every worker: a digest of its workload, target and spaces."""
        parts = [task.key, task.target, *(s.key for s in task.spaces)]
        return hashlib.sha256("\0".join(parts).encode() + task.payload).hexdigest()[:32]

    def handle(self, process: Process, task: Task) -> str:
        """The task's name in the worker, which is sent the task on first use."""
        handle = self.name(task)
        if handle not in process.known:
            process.known.add(handle)
            process.tell("task", (handle, pickle.dumps(task)))
        return handle

    def pump(self, timeout_s: float = POLL_S) -> None:
        """Wait until a worker says something, and take it down in its job; keep limits."""
        busy = {p.conn: p for p in self.processes if p.job is not None}
        for conn in wait(list(busy), timeout_s) if busy else ():
            busy[conn].receive()  # type: ignore[index]
        for p in busy.values():
            if p.job is not None:
                p.watch()
                self._tell(p)
        self._started()

    def _tell(self, p: Process) -> None:
        """Say now and then who keeps a worker from its work."""
        if p.waits and p.waiting_s >= WAIT_S and time.monotonic() - self._said_s > WAIT_S:
            self._said_s = time.monotonic()
            warnings.warn(p.waits, stacklevel=2)

    def _started(self) -> None:
        for p, job in list(self._starting.items()):
            if job.ending is None:
                continue
            del self._starting[p]
            if job.ending.verdict == "done":
                self._base[p], self._failed = p.memory(), 0
                continue
            p.close()
            self._failed += 1
            if self._failed == STARTS or not job.ending.from_outside:
                raise WorkerError(f"backend {self.hello['backend']!r} does not start in a worker: {job.ending.text}")

    def end(self) -> None:
        """End every worker."""
        end_all(self.processes)


def end_all(processes: list[Process]) -> None:
    """End these workers, the idle ones at the same time."""
    for p in processes:
        p.leave()
    for p in processes:
        p.close()
    if marks := {p.mark for p in processes if p.owner == os.getpid()}:
        family.end(marks)
    processes.clear()
