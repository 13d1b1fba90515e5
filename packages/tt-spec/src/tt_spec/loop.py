"""The only loop: slot, ask, measure, store, tell, events, stoppers."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tt_spec.clock import Clock
from tt_spec.faults import PieceFailure, blame, summary, whose
from tt_spec.pipeline import Pipeline
from tt_spec.roles import Measurer, RunInfo, RunState, Scheduler, Stopper, Store
from tt_spec.types import Bar, Batch, Measurement, Slot, TaskState

__all__ = ["ROW_S", "Outcome", "rows_left", "run"]

ROW_S = 1.0
"""What a row is taken to cost before one was measured, seconds. Cautious: what a first slot leaves over goes to others,
what it takes too much is lost to them."""


@dataclass
class Outcome:
    """How a run ended: each task's state, the reason, and what failed if anything did."""

    states: list[TaskState]
    reason: str
    failure: Exception | None = None
    trials: int = 0
    info: dict[str, Any] = field(default_factory=dict)


def run(
    pipelines: Sequence[Pipeline],
    measurer: Measurer,
    store: Store,
    scheduler: Scheduler,
    stoppers: Sequence[Stopper],
    clock: Clock,
    *,
    info: RunInfo,
    batch: int = 64,
    cap_s: float = 10.0,
    listeners: Sequence[Any] = (),
    halt: Callable[[], str | None] = lambda: None,
    stamp: dict[str, Any] | None = None,
) -> Outcome:
    """Tune until the scheduler has no slot, a run-wide stopper speaks, `halt` gives a reason, or something fails.

    Every measurement is in the store before anything else happens to it. A failure of a piece or of the store ends
    the run with everything measured so far; `Outcome.failure` is a `PieceFailure` that names it. A listener that
    fails is warned of once, and the run goes on.

    Args:
        batch: Rows asked at once.
        cap_s: The longest one evaluation may take, seconds.
        listeners: Objects with any of the event hooks' methods (`tt_run_started`, ...), e.g. pluggy's relay.
        halt: Asked after every measurement; e.g. whether Ctrl-C was pressed.
        stamp: Fields set on every measurement, e.g. device and versions.
    """
    states = [_restored(p) for p in pipelines]
    info = dataclasses.replace(info, states=tuple(states))
    whole = RunState(states, clock.now())
    stamp = {**(stamp or {}), "run_id": info.run_id}

    failing: set[int] = set()

    def emit(event: str, **what: Any) -> None:
        for i, listener in enumerate(listeners):
            try:
                getattr(listener, event, _ignore)(run=info, **what)
            except Exception as e:  # who only listens can lose no more than what it would have written
                if i not in failing:
                    text = f"{whose('listener', listener)} failed in {event}; the run goes on: {type(e).__name__}: {e}"
                    warnings.warn(text, stacklevel=2)
                failing.add(i)

    def verdict(s: Stopper, state: Any) -> str | None:
        with blame("stopper", s):
            reason = s.stop(state, clock)
            if reason is not None and not isinstance(reason, str):
                raise ValueError(f"stop must return a reason or None, got {reason!r}")
            return reason

    def stopped(state: TaskState) -> bool:
        for s in stoppers:
            if s.scope == "task" and state.finished is None:
                state.finished = verdict(s, state)
        return state.finished is not None

    def over() -> str | None:
        reason = halt()
        for s in stoppers:
            reason = reason or (verdict(s, whole) if s.scope == "run" else None)
        return reason

    def room() -> int:
        return int(max(1, min(batch, _least("room", stoppers, whole))))

    reason: str | None = None
    failure: Exception | None = None
    tell_budget = getattr(scheduler, "budget", None)
    try:
        emit("tt_run_started")
        while (reason := over()) is None:
            left = rows_left(stoppers, whole, clock)
            began = clock.now()
            with blame("scheduler", scheduler):
                if tell_budget is not None:
                    tell_budget(left)
                slot = scheduler.next(states, clock)
                _check(slot, states)
            if slot is None:
                reason = "every task is finished"
                break
            whole.slots += 1
            about = {**slot.info, "number": whole.slots, "gain_s": slot.gain_s, "decided_s": clock.now() - began}
            _slot(
                slot,
                about,
                pipelines[slot.task],
                states[slot.task],
                measurer,
                store,
                whole,
                clock,
                cap_s,
                stamp,
                room,
                over,
                stopped,
                emit,
            )
            if states[slot.task].finished is not None:
                emit("tt_task_finished", state=states[slot.task])
    except Exception as e:  # whatever broke, what was measured stays measured and is handed back
        failure, reason = e, f"broken off: {summary(e)}"
    emit("tt_run_stopped", states=states, reason=reason)
    return Outcome(states, reason, failure, whole.trials)


def rows_left(stoppers: Sequence[Stopper], state: RunState, clock: Clock) -> float:
    """How many more rows the run is likely to measure, at least 1; inf where no stopper bounds it.

    Time counts at the run's own pace so far.
    """
    run_wide = [s for s in stoppers if s.scope == "run"]
    rows, seconds = _least("room", run_wide, state), _least("left_s", run_wide, state, clock)
    pace_s = (clock.now() - state.started) / state.trials if state.trials else ROW_S
    return max(1.0, min(rows, seconds / max(pace_s, 1e-6)))


def _least(limit: str, stoppers: Sequence[Stopper], *of: Any) -> float:
    """The least of what the stoppers that have this limit answer, inf without any."""
    least = math.inf
    for s in stoppers:
        if (ask := getattr(s, limit, None)) is not None:
            with blame("stopper", s):
                answer = float(ask(*of))
                if math.isnan(answer):
                    raise ValueError(f"{limit} must be a number, got nan")
            least = min(least, answer)
    return least


def _ignore(**_: Any) -> None:
    pass


def _check(slot: Any, states: Sequence[TaskState]) -> None:
    """A slot in which nothing can happen would come again for ever."""
    if slot is None:
        return
    if not isinstance(slot, Slot):
        raise ValueError(f"next must return a Slot or None, got {type(slot).__name__}")
    if not 0 <= slot.task < len(states) or states[slot.task].finished is not None:
        raise ValueError(f"a scheduler must choose a task that is not finished, it chose {slot.task}")
    if (slot.trials is not None and slot.trials < 1) or (slot.seconds is not None and slot.seconds <= 0):
        raise ValueError(f"a slot must have trials or seconds above 0, got {slot.trials} and {slot.seconds}")


def _fit(seconds: float, passed: float, spent: int, row_s: float) -> int:
    """Rows that fit into what is left of a slot in seconds, at the pace of the task's last batch; a slot has one at
    least, and before there is a pace a row is taken to cost `ROW_S`."""
    rows = int((seconds - passed) / (row_s or ROW_S))
    return rows if spent else max(1, rows)


def _restored(pipeline: Pipeline) -> TaskState:
    state = TaskState(pipeline.task, best_s=pipeline.best_s, incumbents=pipeline.incumbents())
    state.restored = sum(n for kind, n in pipeline.errors().items() if kind != "invalid")
    return state


def _slot(
    slot: Slot,
    about: dict[str, Any],
    pipeline: Pipeline,
    state: TaskState,
    measurer: Measurer,
    store: Store,
    whole: RunState,
    clock: Clock,
    cap_s: float,
    stamp: dict[str, Any],
    room: Callable[[], int],
    over: Callable[[], str | None],
    stopped: Callable[[TaskState], bool],
    emit: Callable[..., None],
) -> None:
    started, spent = clock.now(), 0
    while over() is None:
        left = room() if slot.trials is None else min(room(), slot.trials - spent)
        if slot.seconds is not None:
            left = min(left, _fit(slot.seconds, clock.now() - started, spent, state.row_s))
        if left < 1:
            break
        asked_at, before_s = clock.now(), state.best_s
        asked = pipeline.ask(left)
        refused = [_invalid(pipeline, row, clock, stamp) for row in asked.invalid]
        if refused:
            with blame("store", store):
                store.append(refused)
            pipeline.tell(asked.id, refused)
            state.errors["invalid"] = state.errors.get("invalid", 0) + len(refused)
        if not len(asked.codes):
            state.finished = "its space is exhausted"
            break
        asked.info["slot"] = about
        results: list[Measurement] = []
        broke: Exception | None = None
        try:
            _measure(asked, pipeline, state, measurer, store, whole, clock, cap_s, stamp, over, results)
        except Exception as e:  # what came before counts; the failure goes on afterwards
            broke = e
        try:
            pipeline.tell(asked.id, results)
        except Exception as e:  # it was learned by the pipeline, if not by the searcher
            broke = broke or e
        spent += len(results)
        state.row_s = (clock.now() - asked_at) / max(1, len(results))
        if math.isfinite(before_s):
            asked.info["slot"] = {**about, "realised_s": state.weight * (before_s - state.best_s)}
        state.batches += 1
        state.curve.append((state.trials, clock.now(), state.best_s))
        emit("tt_batch_measured", state=state, batch=asked, results=refused + results)
        if broke is not None:
            raise broke
        if stopped(state) or (slot.trials is None and slot.seconds is None):
            break


def _measure(
    asked: Batch,
    pipeline: Pipeline,
    state: TaskState,
    measurer: Measurer,
    store: Store,
    whole: RunState,
    clock: Clock,
    cap_s: float,
    stamp: dict[str, Any],
    over: Callable[[], str | None],
    results: list[Measurement],
) -> None:
    """Measure a batch; every measurement is stored before it is added to `results`."""
    origin = {row.tobytes(): o for row, o in zip(asked.codes, asked.origin, strict=True)}
    with blame("measurer", measurer):
        stream = iter(measurer.measure(pipeline.task, asked.codes, Bar(state.best_s, state.flops, cap_s)))
    try:
        while True:
            with blame("measurer", measurer):
                m = next(stream, None)
                if m is None:
                    break
                where = origin.pop(np.asarray(m.config, dtype=np.int64).tobytes(), None)
                if where is None:
                    raise ValueError(f"a measurer must yield each asked row once, it yielded {list(m.config)}")
            m = dataclasses.replace(m, origin=where, at=clock.now(), knobs=pipeline.space.decode(m.config), **stamp)
            with blame("store", store):
                store.append([m])
            results.append(m)
            if m.error != "invalid":  # such a row was never built and costs no trial
                whole.trials += 1
                state.trials += 1
            if m.error is not None:
                state.errors[m.error] = state.errors.get(m.error, 0) + 1
            elif m.latency_s < state.best_s:
                if m.latency_s < 0.99 * state.best_s or not math.isfinite(state.best_s):
                    state.last_gain_trial = state.trials
                state.best_s = m.latency_s
                state.incumbents.append((state.restored + state.trials, m.latency_s))
            if over() is not None:
                break
        if not results:
            raise PieceFailure("measurer", measurer, f"it yielded no measurement of {len(asked.codes)} rows")
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            with blame("measurer", measurer):
                close()


def _invalid(pipeline: Pipeline, row: Any, clock: Clock, stamp: dict[str, Any]) -> Measurement:
    return Measurement(
        pipeline.task.key,
        pipeline.space.key,
        tuple(int(c) for c in row),
        pipeline.space.decode(row),
        error="invalid",
        why=pipeline.why_invalid(row),
        at=clock.now(),
        **stamp,
    )
