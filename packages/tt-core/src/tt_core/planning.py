"""What a run would do: `tt tune --dry-run`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Measurement, Plugins, RunState, Task, TaskState, VirtualClock, blame, rows_left
from tt_spec.shares import latencies

from tt_core.recipe import resolve
from tt_core.requirements import require_tvm
from tt_core.selection import share_of
from tt_core.setup import best_known, capped, check_target, limits, open_store
from tt_core.target import device_fingerprint, prepare_threads, threads_of
from tt_core.tuning import prepare

__all__ = ["START_S", "TRIAL_S", "Plan", "PlannedTask", "plan", "simulate"]

TRIAL_S = 0.25
"""Seconds that a trial is taken to cost where the history knows none of its task."""

START_S = 10.0
"""Seconds until the first trial: lowering the model and starting the workers."""


@dataclass(frozen=True)
class PlannedTask:
    """One operator's part of a plan.

    Args:
        share: Of the whole model's latency; see `tt_core.selection.share_of`.
        size: Rows of its space.
        history: Trials that the history knows, at latency `best_s` (inf if none was valid).
        cap: The most trials in this run, as long as it is light; None for a heavy task.
        planned: Trials that the recipe's scheduler would give it; see `simulate`.
        trial_s: Seconds per trial; the mean of those in the history, or `TRIAL_S` where `measured` says False.
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
        start_s: Seconds until the first trial.
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
    start_s: float = START_S
    trial_s: float = TRIAL_S

    @property
    def planned(self) -> int:
        """Trials of all tasks."""
        return sum(t.planned for t in self.tasks)

    @property
    def seconds(self) -> float:
        """Start-up and trials; searching, and writing the library, come on top."""
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
    history: str | Path | None = "tt.db",
    set: Sequence[str] = (),
    plugins: Plugins | None = None,
) -> Plan:
    """What `tune` with these arguments would do. Measures and writes nothing; a history that is not there stays so.

    Raises `UserError` as `tune` does.
    """
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
            tasks=tasks,
            skip=skip,
            only_heavy=only_heavy,
            best=best,
            space=chosen.space,
            plugins=plugins,
        )
        past = [list(store.query(task_key=t.key, space_key=t.space.key, device=device)) for t in ready.tasks]
        whole = {t.key: best(t) for t in ready.lowered.tasks}
    states = [_state(t, rows) for t, rows in zip(ready.tasks, past, strict=True)]
    costs = [_trial_s(rows) for rows in past]
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
    tried = {m.config: m for m in rows if m.error != "invalid"}
    best_s = min((m.latency_s for m in tried.values()), default=math.inf)
    return TaskState(task, restored=len(tried), best_s=best_s)


def _trial_s(rows: Sequence[Measurement]) -> float | None:
    spent = [sum(m.cost.values()) for m in rows if m.error != "invalid" and m.cost]
    return float(np.mean(spent)) if spent and np.mean(spent) > 0 else None
