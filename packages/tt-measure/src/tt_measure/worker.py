"""The worker process: holds a backend, builds and times what it is told. Started by `tt_measure.process`."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tt_spec.errors import summary
from tt_spec.roles import Gauges, Realised
from tt_spec.types import Bar, Statements, Task, Timing
from tt_spec.windows import Seen, Windows, away, beside, suffered

from tt_measure import family
from tt_measure.kept import Kept, Program
from tt_measure.lock import TimingLock
from tt_measure.process import BEAT_S
from tt_measure.rules import Terms, Verdict

Note = Callable[[str, float], None]
"""Tells the parent what the worker does now, and within how many seconds it will be heard of again."""


def main() -> None:
    """Arguments: file descriptor of the connection, process id of the parent, whether to die with it."""
    fd, parent, tied = map(int, sys.argv[1:4])
    if tied:
        _die_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    family.adopt()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")  # if memory runs out, rather a worker than the user's other processes
    Worker(Connection(fd)).serve()


WAITED_S = 0.01
"""Shortest wait for the timing lock that is told."""


class Unopened(Exception):
    """The backend cannot open a task: not the fault of any candidate."""


class Undecided(Exception):
    """The evaluator failed, not the candidate that it evaluated."""


class Worker:
    """Answers requests `(job, kind, pickled arguments)`, one after the other, with `(job, verdict, (when, value))`, and
    says in between what it does with `(job, topic, value)`."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.tasks: dict[str, bytes] = {}
        self.open: dict[str, Task] = {}
        self.held: dict[int, Any] = {}
        self.spent: Any = None
        self.kept = Kept()
        self.suffering: dict[tuple[str, float], tuple[float, float, float | None]] = {}
        self.lock: TimingLock | None = None
        self.job, self.open_s = 0, 0.0

    def serve(self) -> None:
        while True:
            try:
                job, kind, blob = pickle.loads(self.conn.recv_bytes())
            except (EOFError, OSError):  # the parent closed, or is gone
                return
            if kind == "task":
                handle, task = pickle.loads(blob)
                self.tasks[handle] = task
            elif kind == "drop":
                for token in pickle.loads(blob):
                    self.held.pop(token, None)
            else:
                self.answer(job, kind, blob)
                self.spent = None  # a candidate that crashes when it is freed has been answered for by now
                self.kept.drop()

    def answer(self, job: int, kind: str, blob: bytes) -> None:
        def note(stage: str, within_s: float) -> None:
            self.conn.send_bytes(pickle.dumps((job, "stage", (stage, within_s))))

        def reply(verdict: str, value: Any) -> bytes:
            return pickle.dumps((job, verdict, (time.monotonic(), value)))  # nobody may listen just now

        self.job = job
        try:
            blob = reply("done", getattr(self, f"do_{kind}")(job, note, *pickle.loads(blob)))
        except Unopened as e:
            blob = reply("unopened", str(e))
        except Undecided as e:
            blob = reply("undecided", str(e))
        except BaseException as e:  # also SystemExit: whatever a candidate raises is its result
            blob = reply("raised", f"{type(e).__name__}: {e}")
        self.conn.send_bytes(blob)

    # -- requests -----------------------------------------------------------------------------------------------

    def do_start(self, job: int, note: Note, hello: dict[str, Any]) -> None:
        sys.path[:], self.open_s = hello["path"], hello["open_s"]
        self.lock = TimingLock(hello["lock"], self.patience) if hello["lock"] is not False else None
        with self.shared(), _limited(note, "start", hello["limit_s"]):
            try:
                self.evaluator = pickle.loads(hello["evaluator"])
            except Exception as e:
                raise ValueError(f"the evaluator must be defined in a module that workers can import: {e}") from e
            module, _, attribute = hello["backend"].partition(":")
            self.backend = getattr(importlib.import_module(module), attribute)()

    def do_build(self, job: int, note: Note, handle: str, row: np.ndarray, limit_s: float) -> dict[str, float]:
        task = self.opened(handle, note)
        with self.shared():
            began = time.perf_counter()
            with _limited(note, "build", limit_s):
                candidate = self.backend.build(task, row)
            build_s = time.perf_counter() - began
        apply_s = float(candidate.apply_s)
        self.held[job] = candidate
        return {"apply": apply_s, "build": max(build_s - apply_s, 0.0)}

    def do_gauge(self, job: int, note: Note, handle: str, seconds: float) -> list[float]:
        """Readings of the backend's probe for so long; none if it has no probe for this task."""
        task = self.opened(handle, note)
        probe = self.probe(task)
        if probe is None:
            return []
        with self.exclusive(), _limited(note, "gauge", self.open_s):
            probe()  # the first makes the program
            end = time.perf_counter() + seconds
            readings = []
            while time.perf_counter() < end:
                readings.append(probe())
        return readings

    def do_time(
        self, job: int, note: Note, handle: str, token: int, bar: Bar, seed: list[int], terms: Terms
    ) -> Verdict:
        self.spent = self.held.pop(token)
        with self.exclusive():
            began = time.perf_counter()
            with _limited(note, "run", terms.run_s):
                timing, seen = self.evaluated(handle, bar, seed, terms)
                if seen is not None and not seen.met and float(np.median(timing.seconds)) < bar.incumbent_s:
                    timing = self.in_turns(handle, [self.spent], [timing], terms)[0]
            run_s = time.perf_counter() - began
            wrong = None
            if terms.verify and float(np.median(timing.seconds)) < bar.incumbent_s:
                with _limited(note, "check", terms.check_s):
                    wrong = self.spent.check()
        if wrong is None:
            median_s, met = float(np.median(timing.seconds)), seen is None or seen.met
            program = Program(token, self.spent, median_s, met, terms.reference_s)
            self.kept.offer(handle, program, bar.incumbent_s)
        return Verdict(timing, run_s, wrong, seen, self.kept.names(handle))

    def do_retime(
        self, job: int, note: Note, handle: str, names: list[int], limit_s: float, terms: Terms
    ) -> dict[int, tuple[Timing, float, Seen | None]]:
        """Kept candidates once more, in turns, by name: their timing, what it took, and the states that it met."""
        probe = None if terms.reference_s is None else self.probe(self.opened(handle, note))
        held = {name: c for name in names if (c := self.kept.candidate(handle, name)) is not None}
        runs: list[Callable[[int], float]] = [c.run for c in held.values()]
        if probe is not None and terms.reference_s is not None:
            runs = [Windows(run, probe, terms.reference_s, terms.sensitivity, terms.wait_s) for run in runs]
        with self.exclusive(), _limited(note, "run", limit_s):
            found = [_retimed(run, *timed) for run, timed in zip(runs, _in_turns(runs), strict=True)]
            doubtful = [i for i, (_, _, seen) in enumerate(found) if seen is not None and not seen.met]
            candidates, corrected = [list(held.values())[i] for i in doubtful], [found[i][0] for i in doubtful]
            for i, timing in zip(doubtful, self.in_turns(handle, candidates, corrected, terms), strict=True):
                found[i] = (timing, *found[i][1:])
        return dict(zip(held, found, strict=True))

    def do_realise(self, job: int, note: Note, handle: str, codes: np.ndarray, limit_s: float) -> Realised:
        task = self.opened(handle, note)
        with self.shared(), _limited(note, "realise", limit_s):
            real = self.backend.realise(task, codes)
        if len(real.codes) != len(codes) or len(real.why) != len(codes):
            raise ValueError(f"the backend realised {len(real.codes)} rows of {len(codes)}")
        return Realised(np.asarray(real.codes, dtype=np.int64), tuple(real.why))

    def do_features(
        self, job: int, note: Note, handle: str, codes: np.ndarray, limit_s: float
    ) -> tuple[Statements, np.ndarray]:
        task = self.opened(handle, note)
        with self.shared(), _limited(note, "realise", limit_s):
            found, ok = self.backend.features(task, codes)
        ok = np.asarray(ok, dtype=bool)
        if len(ok) != len(codes) or len(found) not in (len(ok), ok.sum()):
            raise ValueError(
                f"the backend gave features of {len(found)} programs and {len(ok)} flags, {len(codes)} rows"
            )
        return (found if len(found) == ok.sum() else found[ok]), ok

    def do_call(
        self, job: int, note: Note, handle: str | None, method: str, args: tuple, exclusive: bool, limit_s: float
    ) -> Any:
        first = () if handle is None else (self.opened(handle, note),)
        with self.exclusive() if exclusive else self.shared(), _limited(note, "call", limit_s):
            return getattr(self.backend, method)(*first, *args)

    # -- inside -------------------------------------------------------------------------------------------------

    def probe(self, task: Task) -> Callable[[], float] | None:
        """The backend's probe for an open task, or None if nothing tells how fast its programs' machine is."""
        backend = self.backend
        if not isinstance(backend, Gauges) or backend.gauge(task) is None:
            return None
        return lambda: float(backend.gauge(task) or math.inf)

    def evaluated(self, handle: str, bar: Bar, seed: list[int], terms: Terms) -> tuple[Timing, Seen | None]:
        """The evaluator's timing, and the states of the machine that it met where a probe tells. What a run raises
        goes on as it is, anything else as `Undecided`."""
        failed: list[BaseException] = []

        def run(n: int) -> float:
            try:
                mean = float(self.spent.run(n))
                if not (math.isfinite(mean) and mean > 0):
                    raise ValueError(f"a run takes a positive number of seconds, this one {mean}")
                return mean
            except BaseException as e:
                failed.append(e)
                raise

        probe = None if terms.reference_s is None else self.probe(self.open[handle])
        windows, suffers = None, None
        if probe is not None and terms.reference_s is not None:
            suffers = self.suffers(handle, probe, terms.reference_s)
            sensitivity = terms.sensitivity if suffers is None else suffers
            windows = Windows(run, probe, terms.reference_s, sensitivity, terms.wait_s)
        try:
            timing = _sound(self.evaluator.evaluate(windows or run, bar, np.random.default_rng(seed)))
        except Exception as e:
            if failed:
                raise
            raise Undecided(summary(e)) from e
        if windows is None:
            return timing, None
        seen = windows.seen()
        if seen.sensitivity is None:
            seen = replace(seen, sensitivity=suffers)
        return replace(timing, runs=timing.runs + windows.wasted, noise=windows.noise()), seen

    def in_turns(self, handle: str, candidates: Sequence[Any], timings: Sequence[Timing], terms: Terms) -> list[Timing]:
        """Timings of candidates that did not meet the reference state, by the task's fastest program that did, which
        takes turns with them; as they are where there is none. A correction alone makes no program the fastest.

        The turns say how fast a program is; how many timings it has and how they vary stays the evaluator's."""
        found = list(timings)
        anchor = None if terms.reference_s is None else self.kept.anchor(handle, terms.reference_s)
        others = [i for i, c in enumerate(candidates) if anchor is not None and c is not anchor.candidate]
        if anchor is None or not others or not _runs(anchor.candidate):
            return found
        runs = [candidates[i].run for i in others]
        for i, (seconds, n) in zip(others, beside(runs, anchor.candidate.run, anchor.seconds), strict=True):
            scale = float(np.median(seconds)) / float(np.median(found[i].seconds))
            scaled = tuple(scale * s for s in found[i].seconds)
            timing = _sound(replace(found[i], seconds=scaled, runs=found[i].runs + n))
            found[i] = replace(timing, noise=found[i].noise)
        return found

    def suffers(self, handle: str, probe: Callable[[], float], reference_s: float) -> float | None:
        """How much the task's programs suffer now, by the fastest one that was timed in the reference state; None in
        that state, and where there is no such program."""
        reading = min(probe(), probe())
        if not away(reading, reference_s):
            return None
        at, then, found = self.suffering.get((handle, reference_s), (-math.inf, math.inf, None))
        if time.monotonic() - at < LASTS_S and not away(reading, then):
            return found
        anchor, found = self.kept.anchor(handle, reference_s), None
        if anchor is not None:
            with contextlib.suppress(Exception):  # it was timed and checked before: if it fails now, it tells nothing
                found = suffered(anchor.candidate.run, anchor.seconds, probe, reference_s)
            self.suffering[handle, reference_s] = time.monotonic(), reading, found
        return found

    @contextlib.contextmanager
    def patience(self, holder: Callable[[], str]) -> Iterator[None]:
        """Say every second that this worker waits, and for whom: else it would be taken for one that hangs."""

        def beat(*_: object) -> None:
            self.conn.send_bytes(pickle.dumps((self.job, "waiting", holder())))

        signal.signal(signal.SIGALRM, beat)
        signal.setitimer(signal.ITIMER_REAL, BEAT_S, BEAT_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def shared(self) -> contextlib.AbstractContextManager[None]:
        return self.waited(self.lock.shared()) if self.lock else contextlib.nullcontext()

    def exclusive(self) -> contextlib.AbstractContextManager[None]:
        return self.waited(self.lock.exclusive()) if self.lock else contextlib.nullcontext()

    @contextlib.contextmanager
    def waited(self, turn: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """A turn of the lock; how long others kept this worker from it is told, if it is worth telling."""
        began = time.monotonic()
        with turn:
            if (seconds := time.monotonic() - began) > WAITED_S:
                self.conn.send_bytes(pickle.dumps((self.job, "waited", (began, seconds))))
            yield

    def opened(self, handle: str, note: Note) -> Task:
        if handle not in self.open:
            with self.shared():
                try:
                    with _limited(note, "open", self.open_s):
                        task: Task = pickle.loads(self.tasks[handle])
                        self.backend.open(task)
                except Exception as e:
                    raise Unopened(f"{type(e).__name__}: {e}") from e
            self.open[handle] = task
        return self.open[handle]


LASTS_S = 2.0
"""How long it is believed how much a task's programs suffer from a state, while that lasts."""

ROUNDS, ROUND_S = 5, 3e-3
"""Of timing again: turns, and how long a program's turn lasts at least."""


def _runs(candidate: Any) -> bool:
    """Whether a program that was timed and checked before still runs."""
    try:
        candidate.run(1)
    except Exception:
        return False
    return True


def _in_turns(runs: list[Callable[[int], float]]) -> list[tuple[list[float], int, float]]:
    """Seconds per execution of each turn, executions in all, and the seconds that these took, of each of `runs`."""
    first = [run(1) for run in runs]
    sizes = [max(1, math.ceil(ROUND_S / s)) for s in first]
    seconds: list[list[float]] = [[] for _ in runs]
    took = list(first)
    for _ in range(ROUNDS):
        for i, (run, n) in enumerate(zip(runs, sizes, strict=True)):
            seconds[i].append(run(n))
            took[i] += n * seconds[i][-1]
    return [(s, 1 + ROUNDS * n, t) for s, n, t in zip(seconds, sizes, took, strict=True)]


def _retimed(
    run: Callable[[int], float], seconds: list[float], runs: int, took: float
) -> tuple[Timing, float, Seen | None]:
    if not isinstance(run, Windows):
        return _sound(Timing(tuple(seconds), runs)), took, None
    return replace(_sound(Timing(tuple(seconds), runs + run.wasted)), noise=run.noise()), took, run.seen()


@contextlib.contextmanager
def _limited(note: Note, stage: str, seconds: float) -> Iterator[None]:
    """A stage of a job: the kernel ends this process if it takes longer, whatever native code it is in. A candidate
    may have taken that off, so the parent keeps watch too."""
    note(stage, seconds)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds if math.isfinite(seconds) else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _sound(timing: Timing) -> Timing:
    seconds = tuple(float(s) for s in timing.seconds)
    if not seconds or any(not (math.isfinite(s) and s > 0) for s in seconds):
        raise ValueError(f"a timing is one or more positive numbers of seconds, got {seconds}")
    return Timing(seconds, int(timing.runs), str(timing.why))


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere the end of the connection has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit()


if __name__ == "__main__":
    main()
