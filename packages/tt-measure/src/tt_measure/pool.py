"""Measuring on this machine, in worker processes that live on."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tt_spec import child
from tt_spec.container import within_quota
from tt_spec.roles import Evaluator, Realised, Work
from tt_spec.space import token
from tt_spec.types import Bar, Statements, Task, Trial, concat_statements
from tt_spec.windows import Reference

from tt_measure.ahead import Ahead
from tt_measure.fixed import Fixed
from tt_measure.lock import TimingLock
from tt_measure.parts import Part, in_parts
from tt_measure.passage import Passage
from tt_measure.process import GRACE_S, CallError, Ending, Process, WorkerError
from tt_measure.rules import Builds, Rules, run_limit_s
from tt_measure.team import POLL_S, Team, end_all

__all__ = ["WorkerPool"]

CALL_S = 600.0
"""Limit of a call, seconds."""

TRIES = 3
"""Workers that a call may lose before it begins, or by a kill from outside."""


class WorkerPool:
    """Worker processes that hold a backend loaded, build in parallel, and time one candidate at a time.

    While a candidate is timed no worker does anything else, and no other pool of this user on this machine builds or
    times. Where the backend can tell how fast the machine is (`tt_spec.roles.Gauges`), a timing is made of windows in
    which it was as ever (`tt_spec.windows`). What a candidate does to its worker (crash, hang, exit, memory without
    bound) becomes its measurement's error; the worker is replaced and nobody else's result is lost. Processes start on
    first use or with `prestart`. Use a pool from one thread.

    Args:
        backend: "module:attribute" of a `tt_spec.roles.Backend`, called without arguments in each worker.
        workers: Processes; None is one per physical core that this process may use.
        threads: What TVM and OpenMP use in a worker; set before anything is imported. None is every physical core.
        evaluator: Decides the runs of a candidate; must be picklable. None is `Fixed()`.
        build_timeout_s: Of one build, until it is known how long they take here (`tt_measure.rules.Builds`).
            (default: 30)
        run_timeout_s: Of one evaluation, less where the task has a fast program (`tt_measure.rules.run_limit_s`). None
            is the bar's cap and 10 s.
        check_timeout_s: Of one comparison with the untuned program, which the backend may run first. (default: 120)
        realise_timeout_s: Of one call to `realise` or `features` (at most 64 rows). (default: 30)
        start_timeout_s: Of importing the backend. (default: 120)
        open_timeout_s: Of opening a task in a worker, and of a look at the machine's states. (default: 300)
        memory_bytes: Resident memory of one worker; None is 60 % of the machine's, divided by the workers. A call,
            beside which the others hardly work, may use what all of them may together.
        lock: Whether timing waits for other processes; a path to use another lock file.
        verify: Whether a candidate that beats the incumbent must compute the right result.
        chunk: Candidates that each worker builds before timing starts; twice as many may be built ahead of their turn.
            (default: 8)
        path: Directories put before `sys.path` in the workers.
        seed: Root of the evaluator's randomness.
        grace_s: How long a worker may stay silent beyond its limit before it is taken for one that hangs: stopped,
            swapped out, asleep in the kernel, or without the limit, which a candidate can take off. (default: 10)
    """

    def __init__(
        self,
        backend: str = "tt_measure.example:PythonBackend",
        workers: int | None = None,
        threads: int | None = None,
        evaluator: Evaluator | None = None,
        build_timeout_s: float = 30.0,
        run_timeout_s: float | None = None,
        check_timeout_s: float = 120.0,
        realise_timeout_s: float = 30.0,
        start_timeout_s: float = 120.0,
        memory_bytes: float | None = None,
        lock: bool | str | os.PathLike[str] = True,
        verify: bool = True,
        chunk: int = 8,
        path: Sequence[str | os.PathLike[str]] = (),
        seed: int = 0,
        grace_s: float = GRACE_S,
        open_timeout_s: float = 300.0,
    ) -> None:
        self.backend, self.workers, self.threads_, self.evaluator = backend, workers, threads, evaluator
        self.build_timeout_s, self.run_timeout_s, self.check_timeout_s = build_timeout_s, run_timeout_s, check_timeout_s
        self.realise_timeout_s, self.start_timeout_s = realise_timeout_s, start_timeout_s
        self.memory_bytes, self.lock, self.verify, self.chunk = memory_bytes, lock, verify, chunk
        self.path, self.seed, self.grace_s, self.open_timeout_s = path, seed, grace_s, open_timeout_s
        self._team: Team | None = None
        self._prepared: dict[Process, dict[tuple[str, bytes], int]] = {}
        self._ahead: Ahead | None = None
        self._closed = False
        self._reference = Reference()
        self._builds = Builds()

    def prestart(self) -> None:
        """Start the workers and return at once; they load the backend while the caller does something else."""
        self._ready().revive()

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        """One trial per row, in order of completion. Close the iterator to abandon the rest."""
        self._reference.settle()
        return Passage(self._ready(), task, codes, bar, self._rules(bar), self._expected()).results()

    def expect(self, task: Task, codes: np.ndarray) -> None:
        """Rows that `measure` will be asked for soon: workers build them while they would wait. Each begins one, so
        that what the parent's thinking asks for first, features of the rows before, goes beside the rest."""
        team, ahead = self._ready(), self._expected()
        ahead.expect(task, codes)
        team.revive()
        ahead.work()

    def trace(self) -> list[Work]:
        """What the workers did since the last call: see `tt_spec.roles.Traces`."""
        return self._team.trace() if self._team is not None else []

    def retime(self, task: Task, codes: np.ndarray) -> Iterator[Trial]:
        """Time rows again whose programs a worker still holds, in turns within each worker; the others are left out."""
        team, rules = self._ready(), self._rules(Bar())
        wanted = {token(row): tuple(map(int, row)) for row in np.ascontiguousarray(codes, dtype=np.int64)}
        for p in list(team.processes):
            mine = {row: name for row, name in p.kept.get(task.key, {}).items() if row in wanted}
            if p.lost or not mine:
                continue
            while team.busy():
                team.pump()
            names, handle = list(mine.values()), team.handle(p, task)
            job = team.submit(p, "retime", handle, names, rules.run_s * len(mine), rules.terms(task))
            while job.ending is None:
                team.pump(4 * POLL_S)
            if job.ending.verdict != "done":  # it was timed before and failed now: nothing new is known
                continue
            rows = {name: row for row, name in mine.items()}
            for name, (timing, run_s, seen) in job.ending.value.items():
                if seen is not None:
                    self._reference.tell(task.key, seen)
                about = {"runs": timing.runs, "noise": timing.noise}
                yield Trial(wanted.pop(rows[name]), timing.seconds, why="timed again", cost={"run": run_s}, **about)

    def rescaled(self, task: Task) -> float:
        """See `tt_spec.roles.Recalibrates`: another state of the machine may become the one in which timings count."""
        self._reference.settle()
        return self._reference.rescaled(task.key)

    def _rules(self, bar: Bar) -> Rules:
        run_s = run_limit_s(bar.cap_s + 10.0 if self.run_timeout_s is None else self.run_timeout_s, bar)
        evaluator = Fixed() if self.evaluator is None else self.evaluator
        limits = (self._builds.limit_s(self.build_timeout_s), run_s, self.check_timeout_s)
        return Rules(*limits, self.verify, self.chunk, evaluator, self.seed, self._reference, self._builds)

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        """Each row's canonical row and None, or the row itself and why it has no program."""
        codes = np.array(codes, dtype=np.int64)
        why: list[str | None] = [None] * len(codes)
        for part in self._parts("realise", task, codes):
            if part.why is None:
                codes[part.start : part.stop] = part.value.codes
                why[part.start : part.stop] = part.value.why
            else:
                why[part.start] = part.why
        return Realised(codes, tuple(why))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        """Statements of the rows that have a program, in order, and which rows those are, `(n,)` bool."""
        ok = np.zeros(len(codes), dtype=bool)
        found: list[Statements] = []
        for part in self._parts("features", task, codes):
            if part.why is None:
                statements, ok[part.start : part.stop] = part.value
                found.append(statements)
        return concat_statements(found), ok

    def _parts(self, kind: str, task: Task, codes: np.ndarray) -> list[Part]:
        """The rows through all workers, which then have something to build while the parent thinks on."""
        ahead = self._expected()
        parts = in_parts(self._ready(), kind, task, codes, self.realise_timeout_s, ahead.work)
        ahead.supply()
        return parts

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """The backend's `race`, alone, where most of the programs are still held: see `tt_spec.roles.Races`."""
        return self._call("race", task, (codes, rounds, min_ms, untuned, cold), True, CALL_S, near=codes)

    def prepare(self, wanted: Sequence[tuple[Task, np.ndarray]]) -> None:
        """See `tt_spec.roles.Prepares`: each task's rows in the worker that holds most of them, all workers at once."""
        team = self._ready()
        self._free(team, alone=True)
        for p, made in self._prepared.items():
            p.tokens -= set(made.values())
            if made and not p.lost:
                p.tell("drop", list(made.values()))
        self._prepared, limit_s = {p: {} for p in team.processes}, self._builds.limit_s(self.build_timeout_s)
        for task, codes in wanted:
            rows = {token(row): row for row in np.ascontiguousarray(codes, dtype=np.int64)}
            left = [p for p in team.processes if not p.lost]  # a row may have ended its worker
            if not left:
                break
            p = max(left, key=lambda p: (self._held(p, task, rows), -p.load))
            kept, made = p.kept.get(task.key, {}), self._prepared[p]
            for name, row in rows.items():
                if name not in kept:
                    made[task.key, name] = team.submit(p, "build", team.handle(p, task), row, limit_s).number
            p.tokens |= set(made.values())
        while team.busy():
            team.pump()

    def check(self, task: Task, row: np.ndarray) -> str | None:
        """The backend's `check`, alone, where the program is held if it is: see `tt_spec.roles.Checks`."""
        limit_s = self.build_timeout_s + self.check_timeout_s
        return self._call("check", task, (row,), True, limit_s, near=row[None])

    def doubts(self, task: Task, row: np.ndarray) -> list[str]:
        """The backend's `doubts`, where the row was checked if it is held: see `tt_spec.roles.Doubts`."""
        return self._call("doubts", task, (row,), False, self.check_timeout_s, near=row[None])

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        """The backend's `race_models`, alone: see `tt_spec.roles.RacesModels`."""
        return self.call("race_models", None, paths, inputs, seconds, rounds, exclusive=True)

    def profile_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[dict[str, list[float]]]:
        """The backend's `profile_models`, alone: see `tt_spec.roles.ProfilesModels`."""
        return self.call("profile_models", None, paths, inputs, seconds, rounds, exclusive=True)

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The backend's `run_model`, alone: see `tt_spec.roles.RunsModels`."""
        return self.call("run_model", None, path, inputs, exclusive=True)

    def nudge_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """The backend's `nudge_model`, alone: see `tt_spec.roles.NudgesModels`."""
        return self.call("nudge_model", None, path, inputs, share, tuple(seeds), exclusive=True)

    def start_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> Callable[[], tuple[list[np.ndarray], list[list[np.ndarray]]]]:
        """See `tt_spec.roles.StartsModels`: each in a worker of its own; with one worker, nudged runs come later."""
        team = self._ready()
        self._free(team, alone=True)
        asked = {"run_model": (path, inputs), "nudge_model": (path, inputs, share, tuple(seeds))}
        jobs = {
            method: team.submit(p, "call", None, method, args, False, CALL_S)
            for p, (method, args) in zip(team.idle(), asked.items(), strict=False)
        }

        def outputs(method: str) -> Any:
            while method in jobs and jobs[method].ending is None:
                team.pump()
            ending = jobs[method].ending if method in jobs else None
            if ending is not None and ending.verdict == "done":
                return ending.value
            return self._call(method, None, asked[method], True, CALL_S)

        return lambda: (outputs("run_model"), outputs("nudge_model"))

    def call(
        self, method: str, task: Task | None, *args: Any, exclusive: bool = False, timeout_s: float = CALL_S
    ) -> Any:
        """`backend.method(task, *args)` in one worker, without `task` if that is None; returns its result.

        Args:
            exclusive: Wait until no worker does anything, and time alone as `measure` does.
            timeout_s: Of the call.

        Raises:
            CallError: It raised, crashed or took too long; the message says which.
            WorkerError: It was never begun.
        """
        return self._call(method, task, args, exclusive, timeout_s)

    def _call(
        self, method: str, task: Task | None, args: tuple, alone: bool, timeout_s: float, near: np.ndarray | None = None
    ) -> Any:
        """As `call`, in the worker that holds most programs of the rows `near` `(n, d)`, if there are any."""
        tries = 0
        while True:
            process = self._free(self._ready(), alone) if task is None or near is None else self._holder(task, near)
            ending, tries = self._called(process, method, task, args, alone, timeout_s), tries + 1
            if tries == TRIES or not (ending.unbegun or ending.reason == "killed"):
                break
        if ending.verdict == "done":
            return ending.value
        what = f"took longer than {timeout_s:g} s" if ending.reason == "time" else f"failed: {ending.text}"
        text = f"backend method {method!r} {what}"
        if ending.stage != "call":
            raise WorkerError(text)
        raise CallError(text, "run-timeout" if ending.reason in ("time", "silent") else "run")

    def _holder(self, task: Task, near: np.ndarray) -> Process:
        """The worker that holds most programs of these rows, at a moment when none has a job."""
        team = self._ready()
        first = self._free(team, alone=True)
        rows = {token(row) for row in np.ascontiguousarray(near, dtype=np.int64)}
        return max([first, *team.idle()], key=lambda p: self._held(p, task, rows))

    def _held(self, p: Process, task: Task, rows: Collection[bytes]) -> int:
        """How many of a task's rows a worker holds the programs of."""
        kept, prepared = p.kept.get(task.key, {}), self._prepared.get(p, {})
        return sum(name in kept or (task.key, name) in prepared for name in rows)

    def _called(
        self, process: Process, method: str, task: Task | None, args: tuple, alone: bool, timeout_s: float
    ) -> Ending:
        team = self._ready()
        handle = None if task is None else team.handle(process, task)
        job = team.submit(process, "call", handle, method, args, alone, timeout_s)
        while job.ending is None:
            team.pump()
        return job.ending

    def threads(self) -> int:
        """Threads that a candidate runs with, by the backend's word."""
        return int(self.call("threads", None))

    def close(self) -> None:
        """End every worker; may be called twice."""
        self._closed = True
        if self._team is not None:
            self._team.end()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------------------------

    def _ready(self) -> Team:
        if self._closed:
            raise WorkerError("the pool is closed: make a new one")
        if self._team is None:
            self._team = self._made()
            weakref.finalize(self, end_all, self._team.processes)
        return self._team

    def _expected(self) -> Ahead:
        team = self._ready()
        if self._ahead is None:
            self._ahead = Ahead(team, self.build_timeout_s, 2 * self.chunk * team.size)
        self._ahead.build_s = self._builds.limit_s(self.build_timeout_s)
        return self._ahead

    def _made(self) -> Team:
        if ":" not in self.backend:
            raise ValueError(f"backend must be 'module:attribute', got {self.backend!r}")
        evaluator = Fixed() if self.evaluator is None else self.evaluator
        try:
            blob = pickle.dumps(evaluator)
        except Exception as e:
            raise ValueError(f"an evaluator must be picklable, {type(evaluator).__name__} is not: {e}") from e
        size = _cores() if self.workers is None else self.workers
        threads = _cores() if self.threads_ is None else self.threads_
        if size < 1 or threads < 1 or self.chunk < 1:
            raise ValueError(f"workers, threads and chunk must be at least 1, got {size}, {threads}, {self.chunk}")
        lock = {True: None, False: False}[self.lock] if isinstance(self.lock, bool) else os.fspath(self.lock)
        if lock is not False:
            TimingLock(lock).check()
        hello = {
            "path": [*(str(Path(p).resolve()) for p in self.path), *child.path()],
            "backend": self.backend,
            "evaluator": blob,
            "lock": lock,
            "limit_s": self.start_timeout_s,
            "open_s": self.open_timeout_s,
        }
        return Team(size, threads, self.memory_bytes or 0.6 * _memory() / size, hello, self.grace_s)

    @staticmethod
    def _free(team: Team, alone: bool) -> Process:
        """A worker without a job; if `alone`, at a moment when none has one."""
        team.revive()
        while not team.idle() or (alone and team.busy()):
            team.pump()
            team.revive()
        return team.idle()[0]


def _cores() -> int:
    """Physical cores that this process may use, by its affinity and its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return within_quota(min(psutil.cpu_count(logical=False) or allowed, allowed))


def _memory() -> float:
    """Bytes of the machine, or of the container."""
    total = float(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return min(total, float(text)) if text.isdigit() else total
