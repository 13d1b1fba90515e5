"""The plan of a run: `tt tune --dry-run`."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import (
    Bar,
    Batch,
    Loop,
    Measurement,
    Plugins,
    RunInfo,
    RunState,
    Task,
    TaskState,
    Trial,
    VirtualClock,
    WallClock,
    blame,
    rows_left,
)
from tt_spec.assembly import Assembled, assemble, open_store
from tt_spec.past import Past
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.roles import Scheduler, Stopper
from tt_spec.serial import JsonObject
from tt_spec.shares import latencies

from tt_core.assembly import check_target, prepared
from tt_core.compiler.target import compiler, device_fingerprint, threads_of, use_all_cores
from tt_core.elsewhere import recipe_here
from tt_core.request import Asked, Request
from tt_core.requirements import require_tvm
from tt_core.selection import share_of
from tt_core.suggested import taken

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["PAUSE_S", "TRIAL_S", "WORKERS_S", "Plan", "PlannedTask", "paces", "plan", "simulate"]

TRIAL_S = 0.25
"""Seconds from one trial to the next where the history knows none of the task: searching, building and timing. Whole
models took 0.15 to 0.3 on two Zen 5 cores."""

WORKERS_S = 5.0
"""Seconds from a model's lowering to the first result: workers start, and build their first candidates."""

PAUSE_S = 60.0
"""A longer gap between two results is no trial's work: the run was stopped, or waited for another one."""


@dataclass(frozen=True)
class PlannedTask:
    """One operator's part of a plan.

    Args:
        share: Of the whole model's latency; see `tt_core.selection.share_of`.
        size: Rows of its space.
        history: Trials that the history knows, at latency `best_s` (inf if none was valid).
        cap: The most trials in this run, as long as it is light; None for a heavy task.
        planned: Trials that the recipe's scheduler would give it; see `simulate`.
        trial_s: Seconds per trial, search included; as the history's runs took them (`paces`), or `TRIAL_S` where
            `measured` says False.
    """

    name: str
    op: str
    shapes: str
    weight: float
    flops: float
    share: float
    size: int
    history: int
    best_s: float
    cap: int | None
    planned: int
    trial_s: float
    measured: bool

    @classmethod
    def of(cls, state: TaskState, share: float, cap: int | None, planned: int, trial_s: float | None) -> PlannedTask:
        """The plan of a task in this state; `trial_s` is None where the history does not know it."""
        t, s = state.task, state
        known = trial_s is not None
        size, each = t.space.size, trial_s if known else TRIAL_S
        return cls(
            t.name, t.op, t.shapes, t.weight, t.flops, share, size, s.restored, s.best_s, cap, planned, each, known
        )

    @property
    def seconds(self) -> float:
        """The expected duration of the planned trials."""
        return self.planned * self.trial_s


@dataclass(frozen=True)
class Plan:
    """A run that `tune` would make with the same arguments, and how long it would take, about.

    Args:
        left_out: Names of the tasks that were not chosen.
        start_s: Seconds until the first trial: what reading and lowering the model took for this plan, and `workers_s`.
        trial_s: What a trial of a task is taken to cost whose cost the history does not know, seconds.
    """

    model: str
    target: str
    threads: int
    recipe: JsonObject
    history: str | None
    minutes: float | None
    trials: int | None
    tasks: tuple[PlannedTask, ...]
    left_out: tuple[str, ...]
    start_s: float
    workers_s: float = WORKERS_S
    trial_s: float = TRIAL_S

    @property
    def planned(self) -> int:
        """Trials of all tasks."""
        return sum(t.planned for t in self.tasks)

    @property
    def seconds(self) -> float:
        """Start-up, search and trials; writing the library comes on top."""
        return self.start_s + sum(t.seconds for t in self.tasks)

    def as_dict(self) -> JsonObject:
        """Plain data for JSON; infinities become None."""
        data = asdict(self)
        for t, row in zip(self.tasks, data["tasks"], strict=True):
            row["best_s"] = t.best_s if math.isfinite(t.best_s) else None
            row["seconds"] = t.seconds
        return {**data, "planned": self.planned, "seconds": self.seconds}


def plan(model: object, *, plugins: Plugins | None = None, **asked: Unpack[Asked]) -> Plan:
    """Plan what `tune` with these arguments would do. Measures and writes nothing, also no history.

    Args:
        asked: The fields of `tt_core.request.Request`, as for `tune`.

    Raises `UserError` as `tune` does.
    """
    clock = WallClock()
    began = clock.now()
    require_tvm()
    request, plugins = Request.of(model, asked), plugins or Plugins()
    recipe = recipe_here(request, None, plugins)
    stoppers = request.budget(plugins)
    use_all_cores()
    with ExitStack() as stack:
        target = check_target(request.target)
        store = open_store(recipe, _existing(request.history), stack, write=False)
        known = Past(store, device_fingerprint(target), compiler())
        ready = prepared(request, recipe, target, known)
        recipe, _ = taken(request, recipe, store, ready.tasks, known.device)
        start_s = clock.now() - began + WORKERS_S
        past = {t.key: known.rows(t, space=False) for t in ready.lowered.tasks}
        whole = {t.key: known.best_s(t) for t in ready.lowered.tasks}
    states = [_state(t, past[t.key]) for t in ready.tasks]
    pace = paces([m for rows in past.values() for m in rows])
    made = assemble(recipe, [], None, budget=stoppers, only_heavy=request.only_heavy)
    caps = _caps(made, states)
    planned = simulate(
        states, [pace.get(t.key, TRIAL_S) for t in ready.tasks], made.scheduler, made.stoppers, made.batch
    )
    share = dict(zip(whole, share_of(ready.lowered.tasks, whole), strict=True))
    tasks = (
        PlannedTask.of(s, float(share[s.task.key]), cap, n, pace.get(s.task.key))
        for s, cap, n in zip(states, caps, planned, strict=True)
    )
    return Plan(
        ready.model.name,
        str(target),
        threads_of(target),
        recipe.describe(),
        None if request.history is None else str(request.history),
        request.limit_minutes,
        request.trials,
        tuple(tasks),
        tuple(t.name for t in ready.left_out),
        start_s,
    )


def _existing(history: str | Path | None) -> str | Path | None:
    """The history if there is one to read."""
    return history if history is not None and os.path.isfile(history) and os.path.getsize(history) > 0 else None


def _caps(made: Assembled, states: Sequence[TaskState]) -> list[int | None]:
    """The most trials of each task in this run, as long as it is light; None for a heavy one."""
    with blame("scheduler", made.scheduler):
        made.scheduler.budget(rows_left(made.stoppers, RunState(list(states), 0.0), VirtualClock()))
        return [None if math.isinf(n) else int(n) for n in made.scheduler.room(states)]


def simulate(
    states: Sequence[TaskState],
    trial_s: Sequence[float],
    scheduler: Scheduler,
    stoppers: Sequence[Stopper],
    batch: int,
) -> list[int]:
    """Trials that each task would get, `(n,)`, if every task's latency fell as 1 + 1 / t after t batches.

    The loop itself, over imagined pipelines and a measurer that pretends. A task without a valid result is taken to
    reach its estimated latency in its first slot. The states are read, not changed.

    Args:
        trial_s: Seconds per trial of each task, `(n,)`.
        stoppers: Those of the run count; those of tasks wait for gains, which nobody can foresee.
        batch: Rows of a batch, and of a slot without a bound.
    """
    clock = VirtualClock()
    guess = np.maximum(latencies([s.task for s in states], [s.best_s for s in states]), 1e-9)
    pretends = _Pretends(states, guess, trial_s, batch, clock)
    run_wide = [s for s in stoppers if s.scope == "run"]
    info = RunInfo("plan", tuple(s.task for s in states))
    pipelines = [_Imagined(s) for s in states]
    outcome = Loop(pipelines, pretends, MemoryStore(), scheduler, run_wide, clock, info=info, batch=batch).run()
    if outcome.failure is not None:
        raise outcome.failure
    return [s.trials for s in outcome.states]


class _Imagined:
    """A pipeline that hands out numbers instead of rows, as many as the task's space has left."""

    def __init__(self, state: TaskState) -> None:
        self.task, self.best_s = state.task, state.best_s
        self._restored = self._asked = state.restored

    def incumbents(self) -> list[tuple[int, float]]:
        return []

    def known_trials(self) -> int:
        return self._restored

    def ask(self, n: int) -> Batch:
        first = self._asked
        self._asked = min(first + n, self.task.space.size)
        codes = np.arange(first, self._asked, dtype=np.int64)[:, None]
        return Batch(first, codes, ("imagined",) * len(codes), np.full(len(codes), np.nan), codes[:0])

    def tell(self, batch_id: int, results: Sequence[Measurement]) -> None:
        """Nothing is learned from pretence."""

    def refused(self, asked: Batch) -> list[Trial]:
        return []

    def measured(self, trial: Trial, **about: Any) -> Measurement:
        return Measurement(self.task.key, self.task.space.key, trial.config, {}, trial.seconds, trial.runs, **about)


class _Pretends:
    """A measurer under whose hands every task's latency falls as 1 + 1 / t after t batches.

    Args:
        guess: Latency that each task is taken to have reached so far, or to reach in its first batch, seconds `(n,)`.
        trial_s: Seconds per trial of each task, `(n,)`.
    """

    def __init__(
        self,
        states: Sequence[TaskState],
        guess: np.ndarray,
        trial_s: Sequence[float],
        batch: int,
        clock: VirtualClock,
    ) -> None:
        keys = [s.task.key for s in states]
        self.batch, self.clock = batch, clock
        self.guess, self.trial_s = dict(zip(keys, guess, strict=True)), dict(zip(keys, trial_s, strict=True))
        self.ends = {s.task.key: float(g) / self._fall(s.restored) for s, g in zip(states, guess, strict=True)}

    def _fall(self, trials: int) -> float:
        return 1 + self.batch / max(trials, 1)

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        tried = int(codes[-1, 0]) + 1
        if math.isinf(bar.incumbent_s):
            self.ends[task.key] = float(self.guess[task.key]) / self._fall(tried)
        reached = self.ends[task.key] * self._fall(tried)
        before = reached if math.isinf(bar.incumbent_s) else bar.incumbent_s
        for i in codes[:, 0].tolist():
            self.clock.advance(self.trial_s[task.key])
            yield Trial((i,), (reached if i == tried - 1 else max(before, reached),), runs=1)


def _state(task: Task, rows: Sequence[Measurement]) -> TaskState:
    tried = {m.config: m for m in rows if m.error != "invalid" and m.space_key == task.space.key}
    best_s = min((m.latency_s for m in tried.values()), default=math.inf)
    return TaskState(task, restored=len(tried), best_s=best_s)


def paces(rows: Sequence[Measurement]) -> dict[str, float]:
    """Seconds per trial of each task, by its key: from one result of a run to the next, whatever was done between.

    Builds that ran side by side count once, and a batch's first result carries the search before it.
    """
    runs: dict[str, list[Measurement]] = defaultdict(list)
    for m in rows:
        runs[m.run_id].append(m)
    spent: dict[str, list[float]] = defaultdict(list)
    for found in runs.values():
        found.sort(key=lambda m: m.at)
        waited = 0.0
        for before, m in pairwise(found):
            waited += m.at - before.at
            if m.error != "invalid":
                spent[m.task_key] += [waited] * (waited <= PAUSE_S)
                waited = 0.0
    return {key: float(np.mean(gaps)) for key, gaps in spent.items() if sum(gaps) > 0}
