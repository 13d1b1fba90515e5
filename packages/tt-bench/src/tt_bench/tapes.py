"""Schedulers on operators that were each tuned alone: what a slot brings is known before it is given.

Randomness depends on the seed, the task and its trials, and without a cost model that tasks share, a task's curve does
not depend on the schedule. So every operator is tuned once per seed, and any scheduler is then played over these tapes
by the loop itself, in milliseconds; and what one could have done in hindsight can be computed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tt_spec import (
    Bar,
    Batch,
    Knob,
    Listener,
    Loop,
    Measurement,
    Pipeline,
    RunInfo,
    Slot,
    Space,
    Task,
    TaskState,
    Trial,
    VirtualClock,
)
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.roles import Budgeted, Foresees, Overlaps, Peaked

from tt_bench.runs import Run

__all__ = ["Hindsight", "Played", "Tape", "play", "regret"]


@dataclass(frozen=True)
class Tape:
    """One operator, tuned alone.

    Args:
        task: The operator; its space is the tape's trials.
        passed_s: Seconds that each trial took, searching included, `(n,)`.
        seen_s: Seconds as the tuner saw them, `(n,)`, inf for failures.
        true_s: Recorded latency of the program that would ship then, times the weight, `(n,)`; inf without any.
    """

    task: Task
    passed_s: np.ndarray
    seen_s: np.ndarray
    true_s: np.ndarray

    @classmethod
    def of(cls, task: Task, run: Run) -> Tape:
        """From a run of one task."""
        if set(run.task) != {0}:
            raise ValueError(f"a tape is a run of one task, this has {len(set(run.task))}")
        space = Space((Knob("trial", "choice", tuple(range(len(run.t)))),), name="tape")

        def filled(values: Sequence[float | None]) -> np.ndarray:
            return np.array([np.inf if v is None else v for v in values])

        passed = np.diff(run.t, prepend=0.0)
        return cls(dataclasses.replace(task, spaces=(space,)), passed, filled(run.seen_s), filled(run.true_s))

    def best_s(self, trials: int) -> float:
        """The incumbent's seconds after that many trials."""
        return float(self.seen_s[:trials].min(initial=np.inf))


@dataclass(frozen=True)
class Played:
    """A scheduler's run over tapes.

    Args:
        t: Seconds since the start, after each trial.
        model_s: Recorded latency of the model that would ship then; inf until every operator has a program.
        slots: `(task, trials, gain_s, realised_s)` of each batch, which count as slots of equal length: what the
            scheduler expected, 0 where its slot goes on, and by how much the model became faster, seconds, None where
            the batch brought the first program.
        decisions: How often the scheduler was asked.
        decided_s: Real seconds of CPU that it took for all of them.
    """

    t: list[float]
    model_s: list[float]
    slots: list[tuple[int, int, float, float | None]]
    decisions: int
    decided_s: float

    def reach(self, latency_s: float) -> float:
        """Seconds until the model takes no more than that; inf if it never does."""
        return next((t for t, s in zip(self.t, self.model_s, strict=True) if s <= latency_s), float("inf"))


def play(
    tapes: Sequence[Tape],
    scheduler: Any,
    trials: int,
    *,
    batch: int = 16,
    stoppers: Sequence[Any] = (),
    charge_s: Callable[[], float] = lambda: 0.0,
) -> Played:
    """Let a scheduler share `trials` among tapes; whoever comes to the end of a tape is finished.

    Args:
        batch: Rows measured at once; that of the tapes, so that slots of so many trials lose nothing.
        stoppers: Further stoppers, e.g. patience.
        charge_s: Asked after each decision what it is charged, seconds.
    """
    clock = VirtualClock()
    watched = _Charged(scheduler, clock, charge_s)
    watch = _Watch({t.task.key: i for i, t in enumerate(tapes)})
    pipelines = [
        Pipeline(t.task, NullSurrogate(), RandomSearcher(), TopSampler(), clock=clock, warm=_rows(t)) for t in tapes
    ]
    info = RunInfo("tapes", tuple(t.task for t in tapes))
    player = _Player(tapes, clock)
    stop = [*stoppers, TrialsStopper(trials)]
    loop = Loop(pipelines, player, MemoryStore(), watched, stop, clock, info=info, batch=batch, listeners=[watch])
    outcome = loop.run()
    if outcome.failure is not None:
        raise outcome.failure
    return Played(player.t, player.model_s, watch.slots, watched.decisions, watched.seconds)


def regret(played: Played, oracle: Played) -> np.ndarray:
    """Cumulative regret after each batch that both have, seconds of model latency `(T,)`.

    The gains that hindsight's schedule realised, less those of `played`; a batch that brings an operator's first
    program counts for nothing, as every schedule has to give it.

    Source: Zhang et al. (2021), DynaTune, section 4.1.
    """
    best, own = ([realised or 0.0 for *_, realised in p.slots] for p in (oracle, played))
    many = min(len(best), len(own))
    return np.cumsum(best[:many]) - np.cumsum(own[:many])


class Hindsight:
    """The schedule one would have chosen after seeing every tape: the slot goes where the model gains most.

    Among operators with a program, the one whose next slots save most per slot, over as many slots as that is best
    for; a jump behind a plateau is so worth the way to it. Before that, each operator gets its first slots in turn.

    Args:
        tapes: In the order of the tasks.
        trials: Measured rows per slot. (default: 16)
    """

    def __init__(self, tapes: Sequence[Tape] = (), trials: int = 16) -> None:
        self.tapes, self.trials = tapes, trials

    def next(self, states: Sequence[TaskState], clock: Any) -> Slot | None:
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        cold = [i for i in racing if not np.isfinite(states[i].best_s)]
        if cold:
            return Slot(min(cold, key=lambda i: (states[i].trials, i)), trials=self.trials)
        gains = {i: self.gain_s(i, states[i].trials) for i in racing}
        pick = max(racing, key=lambda i: (gains[i], -states[i].trials))
        return Slot(pick, trials=self.trials, gain_s=gains[pick] if np.isfinite(gains[pick]) else 0.0)

    def gain_s(self, i: int, trials: int) -> float:
        """Seconds that operator `i` saves the model per slot from there on, over the best number of slots."""
        tape = self.tapes[i]
        ends = range(trials + self.trials, len(tape.seen_s) + self.trials, self.trials)
        now = tape.best_s(trials)
        return max((tape.task.weight * (now - tape.best_s(n)) / k for k, n in enumerate(ends, 1)), default=0.0)


def _rows(tape: Tape) -> np.ndarray:
    return np.arange(len(tape.seen_s), dtype=np.int64)[:, None]


class _Player:
    """A measurer that plays tapes."""

    def __init__(self, tapes: Sequence[Tape], clock: VirtualClock) -> None:
        self.tapes, self.clock = {t.task.key: t for t in tapes}, clock
        self.now = dict.fromkeys(self.tapes, np.inf)
        self.t: list[float] = []
        self.model_s: list[float] = []

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        tape = self.tapes[task.key]
        for (i,) in np.asarray(codes).tolist():
            self.clock.advance(float(tape.passed_s[i]))
            self.now[task.key] = float(tape.true_s[i])
            self.t.append(self.clock.now())
            self.model_s.append(sum(self.now.values()))
            what: dict[str, Any] = {"seconds": (float(tape.seen_s[i]),)}
            if not np.isfinite(tape.seen_s[i]):
                what = {"error": "run", "why": "failed on the tape"}
            yield Trial((i,), **what)


class _Charged:
    """A scheduler whose decisions are timed, and charged to the virtual clock."""

    def __init__(self, scheduler: Any, clock: VirtualClock, charge_s: Callable[[], float]) -> None:
        self.scheduler, self.clock, self.charge_s = scheduler, clock, charge_s
        self.decisions, self.seconds = 0, 0.0

    def budget(self, rows: float) -> None:
        if isinstance(self.scheduler, Budgeted):
            self.scheduler.budget(rows)

    def peak(self, flops: float) -> None:
        if isinstance(self.scheduler, Peaked):
            self.scheduler.peak(flops)

    def ahead(self, states: Sequence[TaskState], clock: Any, slot: Slot, rows: int) -> list[Slot]:
        return self.scheduler.ahead(states, clock, slot, rows) if isinstance(self.scheduler, Foresees) else []

    def beside(self, states: Sequence[TaskState], clock: Any, slot: Slot) -> Slot | None:
        return self.scheduler.beside(states, clock, slot) if isinstance(self.scheduler, Overlaps) else None

    def next(self, states: Sequence[TaskState], clock: Any) -> Slot | None:
        began = time.process_time()
        self.decisions += 1
        slot = self.scheduler.next(states, clock)
        self.seconds += time.process_time() - began
        self.clock.advance(self.charge_s())
        return slot


class _Watch(Listener):
    """Gathers batches from their events."""

    def __init__(self, number: dict[str, int]) -> None:
        self.number, self.last = number, 0
        self.slots: list[tuple[int, int, float, float | None]] = []

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        about = batch.info["slot"]
        gain_s = about["gain_s"] if about["number"] != self.last else 0.0
        self.last = about["number"]
        self.slots.append((self.number[state.task.key], len(results), gain_s, about.get("realised_s")))
