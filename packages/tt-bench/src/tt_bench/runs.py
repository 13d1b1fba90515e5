"""One recipe on one unit with one seed: replayed, or live on the same rows."""

from __future__ import annotations

import dataclasses
import functools
import heapq
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tt_spec import (
    Bar,
    Batch,
    Measurement,
    Plugins,
    Realised,
    RunInfo,
    Statements,
    Task,
    TaskState,
    Trial,
    VirtualClock,
    WallClock,
    token,
)
from tt_spec.roles import (
    Begins,
    Doubts,
    Expects,
    Host,
    Listener,
    Prepares,
    Prestarts,
    Recalibrates,
    Retimes,
    Traces,
    Work,
)

from tt_bench.errors import BenchError
from tt_bench.fitted import Fitted
from tt_bench.lending import lender
from tt_bench.oracle import OraclePieces, Ranks
from tt_bench.recording import Recorded
from tt_bench.replay import Replay, Unrecorded
from tt_bench.thinking import Thinking, ThinkingPipeline, Thoughts, WatchedPrograms, WatchedRecipe

__all__ = ["Live", "Run", "tune"]


WARM_ROWS = 16


@dataclass(frozen=True)
class Run:
    """A run, trial by trial.

    Args:
        t: Seconds since the run began, by its clock.
        task: Which of the unit's tasks was measured.
        seen_s: What the tuner saw; None for failures.
        true_s: Recorded median of the program that `tt tune` would ship then, summed over the tasks by weight; None
            until each task has one. What a tuner believes is flattered by noise, so its choice is judged: the fastest
            by the record among its four best within a tenth, which is what timing the finalists again finds.
        found_s: The same of the fastest by the record among all that were measured: what a machine without noise would
            have shown, which the standard score is defined on.
        spent: Seconds by "search", "model", "programs", "build" and "run".
        lacking: Share of the rows asked for that the recording lacks.
    """

    t: list[float]
    task: list[int]
    seen_s: list[float | None]
    true_s: list[float | None]
    found_s: list[float | None]
    spent: dict[str, float]
    lacking: float
    reason: str
    thought: list[tuple[int, float, float]] = field(default_factory=list)


def tune(
    host: Host,
    parts: Sequence[Recorded],
    recipe: str,
    sets: Sequence[str],
    seed: int,
    trials: int,
    *,
    thoughts: Thoughts | None = None,
    unrecorded: Unrecorded = "refuse",
    live: bool = False,
    lent: Sequence[Recorded] = (),
    goal: float | None = None,
    fitted: bool = False,
    store: Any = None,
) -> Run:
    """Run a recipe on recorded tasks until `trials` rows are measured or nothing is left.

    Args:
        thoughts: What thinking is charged; None charges what it takes now.
        live: Measure the same rows on this machine, by its clock, instead of replaying them.
        lent: Recordings of other tasks, from which a recipe with a transfer starts as from a history.
        goal: End after the batch with which so much of the best recorded speed is held.
        fitted: Let a model fitted to the rows answer for those that are not among them (`tt_bench.fitted`).
        store: Where results go; what it holds of these tasks is restored, so that none of it is measured again, and
            counts as held from the first trial. None is an empty one in memory.
    """
    plugins = Plugins(extra=[("tt-bench-replay", OraclePieces(parts))])
    chosen = host.recipe(recipe, sets, plugins)
    clock = WallClock() if live else VirtualClock()
    measurer: Live | Replay
    if live:
        measurer = Live(host.measurer(evaluator=chosen.build("evaluator")), [*parts, *lent])
        measurer.start()
    else:
        serve = Fitted if fitted else Replay
        measurer = serve([*lent, *parts], chosen.build("evaluator"), VirtualClock(), seed, unrecorded)
        clock = measurer.clock
    thinking = Thinking(thoughts, clock if isinstance(clock, VirtualClock) else None)
    tasks = tuple(p.task for p in parts)
    store = plugins.build("store", "memory") if store is None else store
    past = len(list(store.query()))
    try:
        made = host.assemble(
            WatchedRecipe(chosen, thinking.model),
            tasks,
            WatchedPrograms(measurer, thinking.programs),
            seed=seed,
            clock=clock,
            trials=trials,
            target=tasks[0].target if live else None,
            known=lambda task: store.query(task.key),
            warm=_known_ranks(chosen),
            lend=lender(parts, lent, plugins) if lent else (lambda task, rows: ()),
            pipeline=functools.partial(ThinkingPipeline, thinking=thinking),
        )
        began = clock.now()

        def told(reason: str) -> Run:
            return _told(list(store.query()), past, parts, began, measurer, thinking, reason)

        arrival = Arrival(parts, goal, told)
        info = RunInfo("bench", tasks)
        outcome = made.loop(measurer, store, clock, info=info, listeners=[arrival], halt=arrival.halt).run()
    finally:
        measurer.close()
    if outcome.failure is not None:
        raise BenchError(f"recipe {recipe}: {outcome.reason}") from outcome.failure
    return told(outcome.reason)


class Arrival(Listener):
    """Ends a run after the batch with which it holds a share of the best recorded speed.

    Args:
        goal: The share; None never ends it.
        told: The run so far.
    """

    def __init__(self, parts: Sequence[Recorded], goal: float | None, told: Callable[[str], Run]) -> None:
        self.goal, self.told = goal, told
        self.best = float(sum(p.task.weight * p.best_s for p in parts))
        self.reason: str | None = None

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        if self.goal is None:
            return
        held = self.told("").true_s
        if held and held[-1] is not None and self.best >= self.goal * held[-1] * (1 - 1e-12):
            self.reason = "the goal is held"

    def halt(self) -> str | None:
        return self.reason


def _known_ranks(recipe: Any) -> Callable[[Task], np.ndarray | None]:
    """First rows of a task by a searcher that knows every result; None of any other."""
    searcher = recipe.build("searcher")

    def first(task: Task) -> np.ndarray | None:
        return searcher.ranked(task)[: recipe.batch] if isinstance(searcher, Ranks) else None

    return first


def _told(
    rows: Sequence[Measurement],
    past: int,
    parts: Sequence[Recorded],
    began: float,
    measurer: Any,
    thinking: Thinking,
    reason: str,
) -> Run:
    """The run of what a store holds, whose first `past` rows were there before it."""
    number = {p.task.key: i for i, p in enumerate(parts)}
    weights = np.array([p.task.weight for p in parts])
    held: list[dict[bytes, tuple[float, float]]] = [{} for _ in parts]
    truth, least = np.full(len(parts), np.inf), np.full(len(parts), np.inf)
    t, task, seen, trues, found = [], [], [], [], []
    for n, m in enumerate(rows):
        i = number.get(m.task_key)
        if i is None or m.error == "invalid":
            continue
        if m.seconds:
            at = parts[i].index.get(name := token(m.config))
            known = m.latency_s if at is None else float(parts[i].latency[at])
            held[i][name] = m.latency_s, known
            best = heapq.nsmallest(4, held[i].values())
            truth[i] = min(b for a, b in best if a <= 1.1 * best[0][0])
            least[i] = min(least[i], known)
        if n < past:
            continue
        if m.origin == "again":  # a second look is no trial; it belongs to the trial before
            t[-1], trues[-1] = round(m.at - began, 6), _finite(float(weights @ truth))
            continue
        t.append(round(m.at - began, 6))
        task.append(i)
        seen.append(m.latency_s if m.seconds else None)
        trues.append(_finite(float(weights @ truth)))
        found.append(_finite(float(weights @ least)))
    spent = {**measurer.spent, **thinking.spent}
    lacking = measurer.lacking / max(measurer.asked, 1)
    return Run(t, task, seen, trues, found, {k: round(v, 6) for k, v in spent.items()}, lacking, reason, thinking.seen)


def _finite(x: float) -> float | None:
    return x if np.isfinite(x) else None


class Live:
    """The machine itself as a measurer of recorded tasks: their sub-spaces' rows, built and timed now.

    Args:
        pool: Measures rows of the whole spaces; closed with this.
        recorded: The tasks.
    """

    asked = lacking = 0

    def __init__(self, pool: Any, recorded: Sequence[Recorded]) -> None:
        self.pool = pool
        self.recorded = {p.task.key: p for p in recorded}
        self.spent = {"build": 0.0, "run": 0.0}

    def start(self) -> None:
        """Have the workers started and the tasks open, as replay takes them to be, before the clock counts."""
        for part in self.recorded.values():
            self.pool.realise(part.whole, part.widen(part.rows[:WARM_ROWS]))

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Generator[Trial]:
        part = self.recorded[task.key]
        whole = part.widen(np.asarray(codes, dtype=np.int64))
        own = {tuple(w): tuple(r) for w, r in zip(whole.tolist(), np.asarray(codes).tolist(), strict=True)}
        with closing(self.pool.measure(part.whole, whole, bar)) as stream:
            for m in stream:
                self.spent["build"] += m.cost["apply"] + m.cost["build"]
                self.spent["run"] += m.cost["run"]
                yield dataclasses.replace(m, config=own[m.config])

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        """Rows of a sub-space stay what they are; rows of a whole space are read back."""
        part = self.recorded[task.key]
        real = self.pool.realise(part.whole, part.widen(np.asarray(codes, dtype=np.int64)))
        return real if part.keep is None else Realised(np.array(codes, dtype=np.int64), real.why)

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        part = self.recorded[task.key]
        return self.pool.features(part.whole, part.widen(np.asarray(codes, dtype=np.int64)))

    def prestart(self) -> None:
        if isinstance(self.pool, Prestarts):
            self.pool.prestart()

    def expect(self, task: Task, codes: np.ndarray) -> None:
        part = self.recorded[task.key]
        if isinstance(self.pool, Expects):
            self.pool.expect(part.whole, part.widen(np.asarray(codes, dtype=np.int64)))

    def begin(self, task: Task, codes: np.ndarray, bar: Bar) -> None:
        part = self.recorded[task.key]
        if isinstance(self.pool, Begins):
            self.pool.begin(part.whole, part.widen(np.asarray(codes, dtype=np.int64)), bar)

    def trace(self) -> list[Work]:
        return self.pool.trace() if isinstance(self.pool, Traces) else []

    def retime(self, task: Task, codes: np.ndarray) -> Generator[Trial]:
        part = self.recorded[task.key]
        if not isinstance(self.pool, Retimes):
            return
        whole = part.widen(np.asarray(codes, dtype=np.int64))
        own = {tuple(w): tuple(r) for w, r in zip(whole.tolist(), np.asarray(codes).tolist(), strict=True)}
        for m in self.pool.retime(part.whole, whole):
            yield dataclasses.replace(m, config=own[m.config])

    def prepare(self, wanted: Sequence[tuple[Task, np.ndarray]]) -> None:
        if isinstance(self.pool, Prepares):
            parts = [(self.recorded[task.key], np.asarray(codes, dtype=np.int64)) for task, codes in wanted]
            self.pool.prepare([(part.whole, part.widen(codes)) for part, codes in parts])

    def rescaled(self, task: Task) -> float:
        return self.pool.rescaled(self.recorded[task.key].whole) if isinstance(self.pool, Recalibrates) else 1.0

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        part = self.recorded[task.key]
        return self.pool.race(part.whole, part.widen(np.asarray(codes, dtype=np.int64)), rounds, min_ms, untuned, cold)

    def check(self, task: Task, row: np.ndarray) -> str | None:
        part = self.recorded[task.key]
        return self.pool.check(part.whole, part.widen(np.asarray(row, dtype=np.int64)[None])[0])

    def doubts(self, task: Task, row: np.ndarray) -> list[str]:
        part = self.recorded[task.key]
        whole = part.widen(np.asarray(row, dtype=np.int64)[None])[0]
        return self.pool.doubts(part.whole, whole) if isinstance(self.pool, Doubts) else []

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        return self.pool.race_models(paths, inputs, seconds, rounds)

    def profile_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[dict[str, list[float]]]:
        return self.pool.profile_models(paths, inputs, seconds, rounds)

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self.pool.run_model(path, inputs)

    def nudge_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> list[list[np.ndarray]]:
        return self.pool.nudge_model(path, inputs, share, seeds)

    def start_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> Callable[[], tuple[list[np.ndarray], list[list[np.ndarray]]]]:
        return self.pool.start_model(path, inputs, share, seeds)

    def close(self) -> None:
        self.pool.close()
