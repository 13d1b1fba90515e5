"""One batch of rows on its way through a team: chunks are built by all workers, then timed one by one."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tt_spec.errors import PieceFailure
from tt_spec.space import token
from tt_spec.types import Bar, Task, Trial

from tt_measure.ahead import Ahead
from tt_measure.process import Ending, Job, Process, WorkerError
from tt_measure.rules import Rules, Verdict
from tt_measure.team import POLL_S, Team

__all__ = ["Passage"]

TRIES = 3

GAUGE_S = 0.2
"""Seconds of looking at the machine's states before the first timing."""


@dataclass(eq=False)
class _Row:
    """A row on its way. `tries` counts workers that it lost through no fault of its own; `killed` says that one of
    them was killed from outside at work on it; `name` is the number of the job that built it, by which its worker
    knows it."""

    row: np.ndarray
    tries: int = 0
    killed: bool = False
    job: Job | None = None
    name: int = 0
    cost: dict[str, float] = field(default_factory=dict)


class Passage:
    """Phases alternate. Building: every worker builds, until the team holds `chunk` candidates per worker; while one
    build takes long, the others go on, up to four times as many. Timing: only when no worker does anything, one
    candidate after the other; between two timings the consumer has its turn, so that storing a result disturbs none.

    A worker that dies takes the candidates with it that it holds. Those are built again, each one alone in its
    worker: then nobody else can be to blame, and nothing is lost.

    While some of these rows are built and there is room, workers that have none of them to build take rows that come
    later, from `ahead`.
    """

    STRAGGLER_S = 1.0

    def __init__(self, team: Team, task: Task, codes: np.ndarray, bar: Bar, rules: Rules, ahead: Ahead) -> None:
        self.team, self.task, self.bar, self.rules, self.ahead = team, task, bar, rules, ahead
        self.todo: deque[_Row] = deque()
        self.building: dict[Process, list[_Row]] = {}
        self.held: dict[Process, list[_Row]] = {}
        for row in np.ascontiguousarray(codes, dtype=np.int64):
            begun = ahead.take(task, row)
            if begun is None:
                self.todo.append(_Row(row))
            else:
                self.building.setdefault(begun.process, []).append(_Row(row, job=begun.job))

    def results(self) -> Iterator[Trial]:
        try:
            while self.todo or self.building or self.held:
                yield from self._build()
                yield from self._time()
        finally:
            self._abandon()

    # -- building -----------------------------------------------------------------------------------------------

    def _build(self) -> Iterator[Trial]:
        while True:
            self.team.revive()
            yield from self._collect()
            self._dispatch()
            if self.team.busy():
                self.team.pump()
            elif not self.building:
                return

    def _dispatch(self) -> None:
        for p in self.team.idle():
            row = self._next(p) if self._wants(p) else None
            if row is not None:
                self.todo.remove(row)
                handle = self.team.handle(p, self.task)
                row.job = self.team.submit(p, "build", handle, row.row, self.rules.build_s)
                self.building.setdefault(p, []).append(row)
        if not any(r.tries for r in self.todo) and (self.todo or self.building or self.ahead.several):
            self.ahead.work(self.rules.chunk * self.team.size - self._here())

    def _here(self) -> int:
        """Rows of this batch that are built or being built."""
        return sum(map(len, self.building.values())) + sum(map(len, self.held.values()))

    def _wants(self, p: Process) -> bool:
        held = len(self.held.get(p, ()))
        if held >= 4 * self.rules.chunk:
            return False
        if self._here() < self.rules.chunk * self.team.size:
            return True
        long_ago = time.monotonic() - self.STRAGGLER_S
        return any(other.job is not None and other.job.began < long_ago for other in self.team.processes)

    def _next(self, p: Process) -> _Row | None:
        """The first row that may be built in this worker: one that was displaced only where nothing else is held."""
        held = self.held.get(p, [])
        if any(r.tries for r in held):
            return None
        return next((r for r in self.todo if not (held and r.tries)), None)

    def _collect(self) -> Iterator[Trial]:
        for p, row in [(p, row) for p, rows in self.building.items() for row in rows]:
            ending = row.job.ending if row.job else None
            if ending is None:
                continue
            self.building[p].remove(row)
            if not self.building[p]:
                del self.building[p]
            if ending.verdict == "done":
                row.cost = ending.value
                self.rules.builds.tell(sum(row.cost.values()))
                row.name = row.job.number if row.job else 0
                p.tokens.add(row.name)
                self.held.setdefault(p, []).append(row)
            elif self._innocent(p, row, ending):
                yield from self._again(row, ending)
            else:
                row.cost = {"apply": 0.0, "build": row.job.seconds if row.job else 0.0}
                yield self._failed(row, ending, "build", "building", self.rules.build_s)
        for p in [p for p in self.held if p.lost]:
            for row in reversed(self.held.pop(p)):
                yield from self._again(row, None)

    # -- timing -------------------------------------------------------------------------------------------------

    def _time(self) -> Iterator[Trial]:
        if self.held and self.rules.reference.seconds is None and not self.rules.reference.blind:
            yield from self._gauge(next(iter(self.held)))
        while self.held:
            p, rows = next(iter(self.held.items()))
            row = rows.pop(0)
            if not rows:
                del self.held[p]
            while self.team.busy():
                self.team.pump()
            name = row.name
            seed = _entropy(self.rules.seed, self.task, row.row)
            terms = self.rules.terms(self.task)
            handle = self.team.handle(p, self.task)
            row.job = job = self.team.submit(p, "time", handle, name, self.bar, seed, terms)
            while job.ending is None:
                self.team.pump(4 * POLL_S)
            p.tokens.discard(name)
            yield from self._timed(p, row, job.ending)
            if p.lost:
                for other in reversed(self.held.pop(p, [])):
                    yield from self._again(other, None)

    def _gauge(self, p: Process) -> Iterator[Trial]:
        """Have a worker look at the machine's states before the first timing of all. A probe that fails is not tried
        again, and a worker that is lost by it loses its candidates like any other."""
        while self.team.busy():
            self.team.pump()
        job = self.team.submit(p, "gauge", self.team.handle(p, self.task), GAUGE_S)
        while job.ending is None:
            self.team.pump(4 * POLL_S)
        self.rules.reference.look(job.ending.value if job.ending.verdict == "done" else ())
        if p.lost:
            for row in reversed(self.held.pop(p, [])):
                yield from self._again(row, None)

    def _timed(self, p: Process, row: _Row, ending: Ending) -> Iterator[Trial]:
        if ending.verdict == "undecided":
            raise PieceFailure("evaluator", self.rules.evaluator, ending.text)
        if ending.verdict != "done":
            if self._innocent(p, row, ending):
                yield from self._again(row, ending)
            else:
                row.cost["run"] = row.job.seconds if row.job else 0.0
                check = ending.stage == "check"
                doing, limit = ("checking", self.rules.check_s) if check else ("running", self.rules.run_s)
                yield self._failed(row, ending, "run", doing, limit)
            return
        verdict: Verdict = ending.value
        timing, wrong = verdict.timing, verdict.wrong
        if verdict.seen is not None:
            self.rules.reference.tell(self.task.key, verdict.seen)
        p.keep(self.task.key, token(row.row), row.name, verdict.kept)
        cost = {**row.cost, "run": verdict.run_s}
        m = _trial(row, seconds=timing.seconds, runs=timing.runs, why=timing.why, cost=cost, noise=timing.noise)
        if wrong is not None:
            m = replace(m, seconds=(), error="wrong-result", why=str(wrong))
        elif m.latency_s < self.bar.incumbent_s:
            self.bar = replace(self.bar, incumbent_s=m.latency_s)
        yield m

    # -- failures -----------------------------------------------------------------------------------------------

    def _innocent(self, p: Process, row: _Row, ending: Ending) -> bool:
        """Whether a worker was lost before it began the row, by memory that others may have used, or for the first
        time by a kill from outside: the kernel that runs out of memory chooses among all."""
        if ending.unbegun:
            return True
        if ending.reason == "killed" and not row.killed:
            row.killed = True
            return True
        if ending.verdict == "unopened" or ending.stage == "open":
            raise WorkerError(f"the backend cannot open task {self.task.name!r}: {ending.text}")
        if ending.verdict != "lost":
            return False
        return not ending.stage or (ending.reason == "memory" and bool(p.tokens))

    def _again(self, row: _Row, ending: Ending | None) -> Iterator[Trial]:
        row.tries += 1
        if row.tries < TRIES:
            self.todo.appendleft(row)
        else:
            why = f"its worker was lost {row.tries} times before it could be timed"
            why += f"; at last: {ending.text}" if ending is not None else ""
            yield _trial(row, error="build", why=why, cost=row.cost)

    def _failed(self, row: _Row, ending: Ending, error: str, doing: str, limit_s: float) -> Trial:
        why = ending.text
        if ending.reason == "time":
            error, why = f"{error}-timeout", f"{doing} took longer than {limit_s:g} s"
        elif ending.reason == "silent":
            error, why = f"{error}-timeout", f"while {doing}: {why}"
        elif ending.verdict == "lost" or doing == "checking":
            why = f"while {doing}: {why}"
        return _trial(row, error=error, why=why, cost=row.cost)

    def _abandon(self) -> None:
        """Forget what was not measured; a build in hand ends by itself and is dropped then."""
        names = {p: [row.name for row in held] for p, held in self.held.items()}
        for p, rows in self.building.items():
            names.setdefault(p, []).extend(row.job.number for row in rows if row.job)
        for p, mine in names.items():
            p.tokens -= set(mine)
            if not p.lost:
                p.tell("drop", mine)
        self.building, self.held = {}, {}
        self.todo.clear()


def _trial(row: _Row, cost: dict[str, float], **what: Any) -> Trial:
    config = tuple(int(c) for c in row.row)
    return Trial(config, cost={"apply": 0.0, "build": 0.0, "run": 0.0, **cost}, **what)


def _entropy(seed: int, task: Task, row: np.ndarray) -> list[int]:
    """Of a row's generator: the same in every process, whatever was measured before."""
    digest = hashlib.sha256(task.key.encode() + token(row)).digest()
    return [seed, *np.frombuffer(digest, dtype=np.uint32).tolist()]
