"""Rows whose turn comes later, built by workers that would wait."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from tt_spec.space import token
from tt_spec.types import Task

from tt_measure.process import Job, Process
from tt_measure.team import Team

__all__ = ["Ahead", "Built"]

Key = tuple[str, bytes]

DEPTH = 2
"""Builds that a worker has in hand while its parent thinks. More would keep it from making the programs that the
thinking asks for, and leave nothing to build beside those."""

SEVERAL = 3
"""Tasks of which rows are expected, from which on all are built at once: slots of a row or two are timed sooner so. Of
the one slot that comes next the rows wait, for the time in which the parent thinks about the slot after."""


@dataclass(frozen=True)
class Built:
    """A row that a worker builds or has built; `job` is its build's."""

    process: Process
    job: Job


class Ahead:
    """Expected rows. One that fails here, or whose worker is lost, is forgotten: it is built again when its turn
    comes, and what becomes of it is told then. One that took too long to build is not tried again.

    Args:
        build_s: Limit of one build, seconds.
        most: Rows that are built or being built at once; of four times as many expected ones the oldest are dropped.
    """

    def __init__(self, team: Team, build_s: float, most: int) -> None:
        self.team, self.build_s, self.most = team, build_s, most
        self._waiting: OrderedDict[Key, tuple[Task, str, np.ndarray]] = OrderedDict()
        self._built: OrderedDict[Key, Built] = OrderedDict()

    def expect(self, task: Task, codes: np.ndarray) -> None:
        """Rows `(n, d)` to build when a worker has nothing else to do."""
        name = self.team.name(task)  # once: it is a digest of the whole workload
        self._collect()
        for row in np.ascontiguousarray(codes, dtype=np.int64):
            if (key := (task.key, token(row))) not in self._built:
                self._waiting[key] = task, name, row
        self._forget()

    @property
    def several(self) -> bool:
        """Whether what is expected are rows of several slots."""
        return len({task for task, _ in (*self._built, *self._waiting)}) >= SEVERAL

    def work(self, room: int | None = None) -> None:
        """Give idle workers rows to build, where possible of tasks that they know, else of those that none knows, since
        opening a task takes as long as a build: while at most `room` are built, and of the task that was expected first
        alone unless there are `several`."""
        self._collect()
        room, several = self.most if room is None else room, self.several
        first = next(iter(self._built or self._waiting), None)
        for p in self.team.idle():
            waiting = {k: v for k, v in self._waiting.items() if several or (first and k[0] == first[0])}
            if not waiting or len(self._built) >= room:
                return
            known = (k for k, (_, name, _) in waiting.items() if name in p.known)
            others = set().union(*(q.known for q in self.team.processes if q is not p))
            new = (k for k, (_, name, _) in waiting.items() if name not in others)
            self._give(p, next(known, None) or next(new, None) or next(iter(waiting)))

    def supply(self) -> None:
        """Give workers rows to build for the time in which nobody looks after them: each has up to `DEPTH` in hand, of
        the task that was expected first alone, since timing its rows waits for all that was given."""
        self._collect()
        first = next(iter(self._built or self._waiting), None)
        if first is None:
            return
        mine = [key for key in self._waiting if key[0] == first[0]]
        for depth in range(DEPTH):
            for p in self.team.processes:
                if not p.lost and p.load <= depth and mine and len(self._built) < self.most:
                    self._give(p, mine.pop(0))

    def _give(self, p: Process, key: Key) -> None:
        task, _, row = self._waiting.pop(key)
        job = self.team.submit(p, "build", self.team.handle(p, task), row, self.build_s)
        self._built[key] = Built(p, job)

    def take(self, task: Task, row: np.ndarray) -> Built | None:
        """The row if it was begun, now the caller's; None if it is to be built yet. It is expected no more."""
        self._collect()
        key = task.key, token(row)
        self._waiting.pop(key, None)
        return self._built.pop(key, None)

    def _collect(self) -> None:
        for key, built in list(self._built.items()):
            ending = built.job.ending
            if ending is not None and ending.reason == "time" and ending.stage == "build":
                continue  # it would take as long again
            if built.process.lost or (ending is not None and ending.verdict != "done"):
                del self._built[key]
            elif ending is not None:
                built.process.tokens.add(built.job.number)

    def _forget(self) -> None:
        while len(self._waiting) + len(self._built) > 4 * self.most:
            if not self._built:
                self._waiting.popitem(last=False)
                continue
            _, built = self._built.popitem(last=False)
            built.process.tokens.discard(built.job.number)
            if not built.process.lost:
                built.process.tell("drop", [built.job.number])
