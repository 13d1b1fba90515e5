"""Recorded results under a virtual clock."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal

import numpy as np
from tt_spec import Bar, Measurement, Realised, Statements, Task, Timing, Trial, VirtualClock, token, tokens

from tt_bench.builders import Builders
from tt_bench.errors import BenchError
from tt_bench.recording import Recorded

__all__ = ["Block", "Replay", "Unrecorded"]

Unrecorded = Literal["nearest", "refuse"]


class _Again:
    """The pool's second look: five turns of 3 ms each."""

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        n = max(1, math.ceil(3e-3 / run(1)))
        return Timing(tuple(run(n) for _ in range(5)), 1 + 5 * n)


AGAIN = _Again()


class Replay:
    """A measurer that serves recordings and lets the clock pass as the machine would have let it.

    As in the pool that recorded, `pace.workers` build up to `pace.chunk` candidates each, then all are timed one by
    one; rows that are expected are built by workers that would wait (`tt_bench.builders`). A build takes its recorded
    seconds. A run takes recorded ones too: the evaluator's executions are drawn from the row's series as one
    contiguous block with a random start, around its end, so that an evaluator meets the correlated noise that the
    machine had and decides how many runs it wants.

    Source: Politis and Romano (1992), A circular block-resampling procedure for stationary data.

    Args:
        recorded: The tasks that can be measured.
        evaluator: Decides the runs of a candidate.
        clock: Advanced by what is charged.
        seed: Of where blocks begin.
        unrecorded: What becomes of rows that an incomplete recording lacks: "nearest" takes the recorded row whose
            features are closest, "refuse" makes them invalid.

    Attributes:
        asked, lacking: Rows realised, and those among them that no recording has.
        spent: Virtual seconds by "build", "run" and "programs" (reading back rows, extracting statements).
    """

    def __init__(
        self,
        recorded: Sequence[Recorded],
        evaluator: Any,
        clock: VirtualClock,
        seed: int = 0,
        unrecorded: Unrecorded = "refuse",
    ) -> None:
        self.recorded = {(p.task.key, p.task.space.key): p for p in recorded}
        self.evaluator, self.clock, self.seed, self.unrecorded = evaluator, clock, seed, unrecorded
        self.asked = self.lacking = 0
        self.spent = {"build": 0.0, "run": 0.0, "programs": 0.0}
        self._features: dict[tuple[str, str], np.ndarray] = {}
        self._again: dict[tuple[str, bytes], int] = {}
        self._workers: Builders | None = None

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Generator[Trial]:
        """Results as they were recorded, with fresh runs; rows that were never recorded fail."""
        part = self._part(task)
        rows = np.ascontiguousarray(codes, dtype=np.int64)
        many = part.pace.workers * part.pace.chunk
        self._builders(part).take((task.key, token(row)) for row in rows)
        for start in range(0, len(rows), many):
            built, failed = self._build(part, rows[start : start + many])
            for at, m in failed:
                self._until(at, "build")
                yield m
            if built:
                self._until(self._builders(part).quiet(max(at for at, _, _ in built)), "build")
            for _, row, m in built:
                result = self._time(part, row, m, bar)
                if result.latency_s < bar.incumbent_s:
                    bar = Bar(result.latency_s, bar.flops, bar.cap_s)
                yield result

    def expect(self, task: Task, codes: np.ndarray) -> None:
        part = self._part(task)
        for row in np.ascontiguousarray(codes, dtype=np.int64):
            self._builders(part).expect((task.key, token(row)), self._build_s(part, row))

    def retime(self, task: Task, codes: np.ndarray) -> Generator[Trial]:
        """Another block of each row's series, as long as the pool's second look is; what failed is left out."""
        part = self._part(task)
        for row in np.ascontiguousarray(codes, dtype=np.int64):
            m = self._known(part, row)
            if m is None or m.error is not None:
                continue
            key = (task.key, token(row))
            self._again[key] = self._again.get(key, 0) + 1
            found = self._time(part, row, m, Bar(flops=task.flops), self._again[key], AGAIN)
            yield dataclasses.replace(found, why="timed again")

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        part = self._part(task)
        codes = np.array(codes, dtype=np.int64)
        self._programs(part, part.pace.realise_s * len(codes))
        self.asked += len(codes)
        why: list[str | None] = [None] * len(codes)
        for i, row in enumerate(codes):
            self.lacking += token(row) not in part.index
            m = self._known(part, row)
            if m is None and self.unrecorded == "nearest" and len(part.rows):
                at = self._nearest(part, row)
                codes[i], m = part.rows[at], part.measured[at]
            if m is None:
                why[i] = "not recorded"
            elif m.error == "invalid":
                why[i] = m.why or "invalid when it was recorded"
        return Realised(codes, tuple(why))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        part = self._part(task)
        self._programs(part, part.pace.features_s * len(codes))
        at = [part.index.get(name, -1) for name in tokens(codes)]
        known = np.array([i >= 0 for i in at], dtype=bool)
        found, have = part.statements_of([i for i in at if i >= 0])
        ok = known.copy()
        ok[known] = have
        return found, ok

    def close(self) -> None:
        """Holds nothing."""

    # -- inside -------------------------------------------------------------------------------------------------

    def _part(self, task: Task) -> Recorded:
        part = self.recorded.get((task.key, task.space.key))
        if part is None:
            raise BenchError(f"task {task.name} with space {task.space.key} is not in the recording: record it again")
        return part

    def _known(self, part: Recorded, row: np.ndarray) -> Measurement | None:
        """What is known of a row."""
        at = part.index.get(token(row))
        return None if at is None else part.measured[at]

    def _build_s(self, part: Recorded, row: np.ndarray) -> float:
        """Recorded seconds until the row is built; 0 for one of which nothing is known."""
        m = self._known(part, row)
        return 0.0 if m is None else sum(_built(m).values())

    def _build(
        self, part: Recorded, rows: np.ndarray
    ) -> tuple[list[tuple[float, np.ndarray, Measurement]], list[tuple[float, Trial]]]:
        """When each row is built, by the worker that is free first: the good ones, and those that fail at it."""
        built, failed = [], []
        for row in rows:
            ready = self._builders(part).build((part.task.key, token(row)), self._build_s(part, row))
            m = self._known(part, row)
            if m is None or m.error in ("build", "build-timeout", "invalid"):
                failed.append((ready, _failed(row, m)))
            else:
                built.append((ready, row, m))
        return built, sorted(failed, key=lambda f: f[0])

    def _time(
        self, part: Recorded, row: np.ndarray, m: Measurement, bar: Bar, look: int = 0, evaluator: Any = None
    ) -> Trial:
        self._run(part, part.pace.engine_s)
        if m.error is not None:
            self._run(part, m.cost.get("run", 0.0))
            return _failed(row, m)
        again = [look] if look else []
        rng = np.random.default_rng([self.seed, zlib.crc32(part.task.key.encode()), *map(int, row), *again])
        block = Block(np.asarray(m.seconds), int(rng.integers(len(m.seconds))))
        timing = (evaluator or self.evaluator).evaluate(block.run, bar, rng)
        self._run(part, block.spent)
        return Trial(
            _config(row),
            seconds=tuple(timing.seconds),
            runs=timing.runs,
            why=timing.why,
            cost={**_built(m), "run": block.spent},
        )

    def _nearest(self, part: Recorded, row: np.ndarray) -> int:
        key = (part.task.key, part.task.space.key)
        if key not in self._features:
            self._features[key] = part.task.space.encode(part.rows)
        near = ((self._features[key] - part.task.space.encode(row[None])) ** 2).sum(axis=1)
        return int(near.argmin())

    def _builders(self, part: Recorded) -> Builders:
        if self._workers is None:
            self._workers = Builders(self.clock, part.pace.workers)
        return self._workers

    def _programs(self, part: Recorded, seconds: float) -> None:
        self._builders(part).interrupt(seconds)
        self._pass(seconds, "programs")

    def _run(self, part: Recorded, seconds: float) -> None:
        self._pass(seconds, "run")
        self._builders(part).timed()

    def _pass(self, seconds: float, what: str) -> None:
        self.clock.advance(seconds)
        self.spent[what] += seconds

    def _until(self, at: float, what: str) -> None:
        self._pass(max(0.0, at - self.clock.now()), what)


class Block:
    """Executions drawn from a series, one after the other, from `start` on and around its end."""

    def __init__(self, series: np.ndarray, start: int) -> None:
        self.sums = np.concatenate([[0.0], np.cumsum(series)])
        self.start, self.spent = start, 0.0

    def run(self, n: int) -> float:
        size = len(self.sums) - 1
        rounds, end = divmod(self.start + n, size)
        total = rounds * self.sums[-1] + self.sums[end] - self.sums[self.start]
        self.start = end
        self.spent += float(total)
        return float(total) / n


def _failed(row: np.ndarray, m: Measurement | None) -> Trial:
    if m is None:
        return Trial(_config(row), error="build", why="not recorded")
    return Trial(_config(row), error=m.error, why=m.why or "failed when it was recorded", cost=m.cost)


def _config(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(c) for c in row)


def _built(m: Measurement) -> dict[str, float]:
    return {"apply": m.cost.get("apply", 0.0), "build": m.cost.get("build", 0.0)}
