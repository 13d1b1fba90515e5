"""What a run would do: `tt tune --dry-run`."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Measurement, Plugins, RunState, Task, TaskState, VirtualClock, WallClock, blame, rows_left

from tt_core.assembly import best_known, capped, check_target, limits, open_store
from tt_core.compiler.target import device_fingerprint, prepare_threads, threads_of
from tt_core.prepared import prepare
from tt_core.recipe import resolve
from tt_core.requirements import require_tvm
from tt_core.selection import share_of
from tt_core.shares import latencies

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

    @property
    def seconds(self) -> float:
        """What the planned trials are expected to take."""
        return self.planned * self.trial_s


@dataclass(frozen=True)
class Plan:
    """What `tune` would do with the same arguments, and how long it would take, about.

    Args:
        left_out: Names of the tasks that were not chosen.
        start_s: Seconds until the first trial: what reading and lowering the model took for this plan, and `workers_s`.
        trial_s: What a trial of a task is taken to cost whose cost the history does not know, seconds.
    """

    model: str
    target: str
    threads: int
    recipe: dict[str, Any]
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

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinities become None."""
        data = asdict(self)
        for t, row in zip(self.tasks, data["tasks"], strict=True):
            row["best_s"] = t.best_s if math.isfinite(t.best_s) else None
            row["seconds"] = t.seconds
        return {**data, "planned": self.planned, "seconds": self.seconds}


def plan(
    model: Any,
    *,
    target: Any = "native",
    recipe: str = "tt",
    minutes: float | None = None,
    trials: int | None = None,
    tasks: str | Sequence[str] = "*",
    skip: str | Sequence[str] = (),
    only_heavy: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fix: Mapping[str, Any] | None = None,
    history: str | Path | None = "tt.db",
    set: Sequence[str] = (),
    plugins: Plugins | None = None,
) -> Plan:
    """What `tune` with these arguments would do. Measures and writes nothing; a history that is not there stays so.

    Raises `UserError` as `tune` does.
    """
    clock = WallClock()
    began = clock.now()
    require_tvm()
    plugins = plugins or Plugins()
    chosen = resolve(recipe, set, plugins)
    if minutes is None and trials is None:
        minutes = 5.0
    stoppers = limits(minutes, trials, plugins)
    prepare_threads()
    with ExitStack() as stack:
        resolved = check_target(target)
        known = history is not None and os.path.isfile(history) and os.path.getsize(history) > 0
        store = open_store(chosen, history if known else None, stack, write=False)
        device = device_fingerprint(resolved)
        best = best_known(store, device)
        ready = prepare(
            model,
            target=resolved,
            shapes=shapes,
            fix=fix,
            tasks=tasks,
            skip=skip,
            only_heavy=only_heavy,
            best=best,
            space=chosen.space,
            plugins=plugins,
        )
        start_s = clock.now() - began + WORKERS_S
        past = {t.key: list(store.query(task_key=t.key, device=device)) for t in ready.lowered.tasks}
        whole = {t.key: best(t) for t in ready.lowered.tasks}
    states = [_state(t, past[t.key]) for t in ready.tasks]
    pace = paces([m for rows in past.values() for m in rows])
    costs = [pace.get(t.key) for t in ready.tasks]
    scheduler = capped(chosen, only_heavy)
    with blame("scheduler", scheduler):
        scheduler.budget(rows_left(stoppers, RunState(states, 0.0), VirtualClock()))
        caps = [None if math.isinf(n) else int(n) for n in scheduler.room(states)]
    planned = simulate(states, [s or TRIAL_S for s in costs], scheduler, stoppers, chosen.batch)
    share = dict(zip(whole, share_of(ready.lowered.tasks, whole), strict=True))
    return Plan(
        ready.model.name,
        str(ready.target),
        threads_of(ready.target),
        chosen.describe(),
        None if history is None else str(history),
        minutes,
        trials,
        tuple(
            PlannedTask(
                t.name,
                t.op,
                t.shapes,
                t.weight,
                t.flops,
                float(share[t.key]),
                t.space.size,
                s.restored,
                s.best_s,
                cap,
                n,
                cost or TRIAL_S,
                cost is not None,
            )
            for t, s, cap, n, cost in zip(ready.tasks, states, caps, planned, costs, strict=True)
        ),
        tuple(t.name for t in ready.left_out),
        start_s,
    )


def simulate(
    states: Sequence[TaskState],
    trial_s: Sequence[float],
    scheduler: Any,
    stoppers: Sequence[Any],
    batch: int,
) -> list[int]:
    """Trials that each task would get, `(n,)`, if every task's latency fell as 1 + 1 / t after t batches.

    A task without a valid result is taken to reach its estimated latency in its first slot. The states are copied.

    Args:
        trial_s: Seconds per trial of each task, `(n,)`.
        stoppers: Of the run; those of tasks wait for gains, which nobody can foresee.
        batch: Rows of a batch, and of a slot without a bound.
    """

    def fall(trials: int) -> float:
        return 1 + batch / max(trials, 1)

    guess = np.maximum(latencies([s.task for s in states], [s.best_s for s in states]), 1e-9)
    states = [TaskState(s.task, restored=s.restored, best_s=s.best_s) for s in states]
    ends = [float(g) / fall(s.restored) for g, s in zip(guess, states, strict=True)]
    clock = VirtualClock()
    whole = RunState(list(states), clock.now())
    while not any(s.stop(whole, clock) for s in stoppers):
        with blame("scheduler", scheduler):
            scheduler.budget(rows_left(stoppers, whole, clock))
            slot = scheduler.next(states, clock)
        if slot is None:
            break
        s, cost = states[slot.task], trial_s[slot.task]
        left_s = min([slot.seconds or math.inf, *(x.left_s(whole, clock) for x in stoppers if hasattr(x, "left_s"))])
        room = min([slot.trials or batch, *(x.room(whole) for x in stoppers if hasattr(x, "room"))])
        fresh = max(0, s.task.space.size - s.restored - s.trials)
        n = int(min(room, fresh, np.ceil(left_s / cost)))
        s.trials, whole.trials, s.batches = s.trials + n, whole.trials + n, s.batches + 1
        tried = s.restored + s.trials
        if math.isinf(s.best_s):
            ends[slot.task] = float(guess[slot.task]) / fall(tried)
        s.best_s = ends[slot.task] * fall(tried)
        s.incumbents.append((tried, s.best_s))
        clock.advance(n * cost)
        s.curve.append((s.trials, clock.now(), s.best_s))
        if n == fresh:
            s.finished = "its space is exhausted"
    return [s.trials for s in states]


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
