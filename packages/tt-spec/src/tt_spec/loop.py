"""The only loop: slot, ask, measure, store, tell, events, stoppers."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tt_spec.clock import Clock
from tt_spec.errors import PieceFailure, summary
from tt_spec.faults import Audience, blame
from tt_spec.roles import (
    Appends,
    Begins,
    Bounds,
    Budgeted,
    Expects,
    Foresees,
    LimitsRows,
    LimitsTime,
    Listener,
    Measures,
    Overlaps,
    Recalibrates,
    Remarks,
    Retimes,
    RunInfo,
    RunState,
    Scheduler,
    Stopper,
    Traces,
)
from tt_spec.space import token
from tt_spec.spent import OWN
from tt_spec.types import Bar, Batch, Measurement, Slot, Task, TaskState, Trial

__all__ = ["ROW_S", "Asks", "Loop", "Outcome", "rows_left"]

ROW_S = 1.0
"""Assumed cost of a row before one was measured, seconds. Cautious: what a first slot leaves over goes to others, what
it takes too much is lost to them."""


class Asks(Protocol):
    """The part of a task's pipeline that the loop needs; see `tt_spec.Pipeline`."""

    task: Task

    @property
    def best_s(self) -> float: ...

    def incumbents(self) -> list[tuple[int, float]]: ...

    def known_trials(self) -> int: ...

    def ask(self, n: int) -> Batch: ...

    def tell(self, batch_id: int, results: Sequence[Measurement]) -> None: ...

    def refused(self, asked: Batch) -> list[Trial]: ...

    def measured(self, trial: Trial, **about: Any) -> Measurement: ...


@runtime_checkable
class LooksAgain(Protocol):
    """A pipeline that knows which of its rows deserve to be timed again."""

    def doubtful(self, results: Sequence[Measurement]) -> np.ndarray: ...

    def rescale(self, factor: float) -> None: ...

    def levelled(self, trials: Sequence[Trial]) -> tuple[list[Trial], dict[str, Any]]: ...

    def joined(self, trial: Trial) -> Trial: ...

    def correct(self, m: Measurement) -> None: ...


@dataclass
class Outcome:
    """The end of a run: each task's state, the reason, and what failed if anything did."""

    states: list[TaskState]
    reason: str
    failure: Exception | None = None
    trials: int = 0
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Asked:
    """A batch and the seconds that asking for it took; `beside`: while another one was built."""

    batch: Batch
    asked_s: float
    beside: bool = False


class Loop:
    """A run: slot after slot until the scheduler has none, a run-wide stopper speaks, `halt` gives a reason, or
    something fails.

    Where the measurer builds what it expects and the scheduler can tell (`Overlaps`), the slot after is chosen and its
    rows are asked for while the rows of the one before are built. Kernels are timed when that is done.

    Every measurement is in the store before anything else happens to it. A failure of a piece or of the store ends
    the run with everything measured so far; `Outcome.failure` is a `PieceFailure` that names it. A listener that
    fails is warned of once, and the run goes on.

    Args:
        pipelines: One per task; a slot names its task by the index.
        info: Of the run, for listeners; `states` is filled here.
        batch: Rows asked at once.
        cap_s: The longest one evaluation may take, seconds.
        halt: Asked after every measurement; e.g. whether Ctrl-C was pressed.
        stamp: Fields set on every measurement, e.g. device and versions.
    """

    def __init__(
        self,
        pipelines: Sequence[Asks],
        measurer: Measures,
        store: Appends,
        scheduler: Scheduler,
        stoppers: Sequence[Stopper],
        clock: Clock,
        *,
        info: RunInfo,
        batch: int = 64,
        cap_s: float = 10.0,
        listeners: Sequence[Listener] = (),
        halt: Callable[[], str | None] = lambda: None,
        stamp: dict[str, Any] | None = None,
    ) -> None:
        self.pipelines, self.measurer, self.store, self.scheduler = pipelines, measurer, store, scheduler
        self.stoppers, self.clock, self.batch, self.cap_s = stoppers, clock, batch, cap_s
        self._audience, self.halt = Audience(listeners), halt
        self.stamp = {**(stamp or {}), "run_id": info.run_id}
        self.states = [_state(p) for p in pipelines]
        self.info = dataclasses.replace(info, states=tuple(self.states))
        self.whole = RunState(self.states, clock.now())
        self._ahead: deque[Slot] = deque()
        self._asked: dict[int, _Asked] = {}
        self._late: Exception | None = None
        self._did: list[tuple[int, str, float, float]] = []

    def run(self) -> Outcome:
        """All slots, to the end."""
        reason: str | None = None
        failure: Exception | None = None
        try:
            self._emit("tt_run_started")
            while (reason := self.over()) is None:
                slot = self.next_slot()
                if slot is None:
                    reason = "every task is finished"
                    break
                self.slot(slot)
        except Exception as e:  # whatever broke, what was measured stays measured and is handed back
            failure, reason = e, f"broken off: {summary(e)}"
        self._emit("tt_run_stopped", states=self.states, reason=reason)
        return Outcome(self.states, reason, failure, self.whole.trials)

    def over(self) -> str | None:
        """The reason to end the run now, or None."""
        reason = self.halt()
        for s in self.stoppers:
            reason = reason or (self._verdict(s, self.whole) if s.scope == "run" else None)
        return reason

    def next_slot(self) -> Slot | None:
        """The scheduler's next slot; its `info` also says its number and what deciding took, `decided_s`."""
        if self._late is not None:
            raise self._late
        began = self.clock.now()
        while self._ahead:
            if self.states[(slot := self._ahead.popleft()).task].finished is None:
                return self._numbered(slot, began)
        left = rows_left(self.stoppers, self.whole, self.clock)
        with blame("scheduler", self.scheduler):
            if isinstance(self.scheduler, Budgeted):
                self.scheduler.budget(left)
            slot = self.scheduler.next(self.states, self.clock)
            _check(slot, self.states)
            if slot is None:
                return None
            self._foresee(slot, left)
        return self._numbered(slot, began)

    def _foresee(self, slot: Slot, left: float) -> None:
        """Take what is known of the slots after this one, as far as they fill its batch: builds of one row would leave
        all cores but one idle. All are built before the first is timed, so no more than are `left` to the run: what is
        built when the time is up was built for nothing."""
        room = min(self.batch, left) - (slot.trials or self.batch)
        if room < 1 or not (isinstance(self.scheduler, Foresees) and isinstance(self.measurer, Expects)):
            return
        for s in self.scheduler.ahead(self.states, self.clock, slot, int(room)):
            _check(s, self.states)
            if s.trials is None or s.task in (slot.task, *(a.task for a in self._ahead)):
                raise ValueError(f"ahead must give slots of other tasks, each once and with trials, got {s}")
            if (room := room - s.trials) < 0:
                raise ValueError("ahead must keep to the rows that it was given")
            self._ahead.append(s)

    def _numbered(self, slot: Slot, began: float) -> Slot:
        self.whole.slots += 1
        about = {"number": self.whole.slots, "gain_s": slot.gain_s}
        decided = {"decided_s": self._noted("decide", began)}
        return dataclasses.replace(slot, info={**decided, **slot.info, **about})

    def slot(self, slot: Slot) -> None:
        """Batches of one task until the slot is used up, the task is finished or the run is over."""
        state = self.states[slot.task]
        started, spent = self.clock.now(), 0
        while self.over() is None:
            rows = self._room(slot, state, self.clock.now() - started, spent)
            if rows < 1:
                break
            spent += self._turn(slot, rows, spent)
            if self._finished(state) or (slot.trials is None and slot.seconds is None):
                break
        if state.finished is not None:
            self._emit("tt_task_finished", state=state)

    # -- inside -------------------------------------------------------------------------------------------------

    def _room(self, slot: Slot, state: TaskState, passed_s: float, spent: int) -> int:
        """Rows of the slot's next batch; 0 once it is used up."""
        allowed = min(_rows_allowed(self.stoppers, self.whole), self._rows_of_task(state))
        rows = int(max(1, min(self.batch, allowed)))
        if slot.trials is not None:
            rows = min(rows, slot.trials - spent)
        if slot.seconds is not None:
            rows = min(rows, _fit(slot.seconds, passed_s, spent, state.row_s))
        return rows

    def _rows_of_task(self, state: TaskState) -> float:
        """The least number of rows that a stopper of the task leaves it; inf where none bounds them."""
        rows = math.inf
        for s in self.stoppers:
            if s.scope == "task" and isinstance(s, Bounds):
                rows = min(rows, _number(s, "rows_left", s.rows_left, state))
        return rows

    def _turn(self, slot: Slot, rows: int, spent: int) -> int:
        """One batch: ask, measure, tell; how many results came. Asking and measuring meet here and nowhere else."""
        pipeline, state = self.pipelines[slot.task], self.states[slot.task]
        before_s, ahead = state.best_s, slot.task in self._asked
        found = self._asked.pop(slot.task) if ahead else self._ask(slot.task, rows)
        if not ahead:
            self._ask_ahead(slot.task, found.batch)
        asked, began = found.batch, self.clock.now() - (0.0 if found.beside else found.asked_s)
        refused = self._refused(asked, pipeline, state)
        if not len(asked.codes):
            state.finished = "its space is exhausted"
            return 0
        asked.info["slot"] = {**slot.info, "asked_s": found.asked_s, **({"ahead": True} if ahead else {})}
        if slot.trials is not None and spent + rows >= slot.trials:
            self._think_beside(slot, asked)
        results: list[Measurement] = []
        broke: Exception | None = None
        try:
            self._measure(asked, pipeline, state, results)
        except Exception as e:  # what came before counts; the failure goes on afterwards
            broke = e
        try:
            pipeline.tell(asked.id, results)
        except Exception as e:  # it was learned by the pipeline, if not by the searcher
            broke = broke or e
        if broke is None and self.over() is None:
            self._look_again(asked, pipeline, state, results)
        state.row_s = (self.clock.now() - began) / max(1, len(results))
        if math.isfinite(before_s):
            asked.info["slot"]["realised_s"] = state.weight * (before_s - state.best_s)
        state.batches += 1
        state.curve.append((state.trials, self.clock.now(), state.best_s))
        for s in self.stoppers:
            if isinstance(s, Remarks):
                with blame("stopper", s):
                    asked.info["stopper"] = s.info(state)
        if (work := self._work()) is not None:
            asked.info["work"] = work
        self._emit("tt_batch_measured", state=state, batch=asked, results=refused + results)
        if broke is not None:
            raise broke
        return len(results)

    def _ask(self, task: int, rows: int, beside: bool = False) -> _Asked:
        began = self.clock.now()
        return _Asked(self.pipelines[task].ask(rows), self._noted("ask", began), beside)

    def _noted(self, what: str, began: float) -> float:
        """Take down what this process did since `began`; the seconds that it took."""
        seconds = self.clock.now() - began
        self._did.append((OWN, what, began, seconds))
        return seconds

    def _work(self) -> list[tuple[int, str, float, float]] | None:
        """What this process and the workers did since the last batch; None where the measurer does not tell."""
        own, self._did = self._did, []
        if not isinstance(self.measurer, Traces):
            return None
        with blame("measurer", self.measurer):
            now = self.clock.now()
            return own + [(w.who, w.what, now - w.ago_s, w.seconds) for w in self.measurer.trace()]

    def _ask_ahead(self, task: int, asked: Batch) -> None:
        """Ask for the batches of the slots that are known, so that the measurer can build them beside this one."""
        if not (self._ahead and isinstance(self.measurer, Expects)):
            return
        self._expect(self.measurer, task, asked)
        for s in self._ahead:
            rows = min(s.trials or 1, self._rows_of_task(self.states[s.task]))
            if s.task not in self._asked and rows >= 1 and self.over() is None:
                self._asked[s.task] = self._ask(s.task, int(rows))
                self._expect(self.measurer, s.task, self._asked[s.task].batch)

    def _think_beside(self, slot: Slot, asked: Batch) -> None:
        """Choose the slot after this one and ask for its rows while the measurer builds this one's, from what was known
        when these were asked: so a seed gives the same rows on a slow machine and a fast one. A failure waits until
        this slot is measured."""
        if self._ahead or not (isinstance(self.measurer, Expects) and isinstance(self.scheduler, Overlaps)):
            return
        self._expect(self.measurer, slot.task, asked)
        if self.over() is not None:
            return
        try:
            began = self.clock.now()
            if (chosen := self._beside(self.scheduler, slot, len(asked.codes))) is None:
                return
            about = {"beside": True, "decided_s": self._noted("decide", began)}
            rows = min(chosen.trials or 1, self.batch, self._rows_of_task(self.states[chosen.task]))
            found = self._ask(chosen.task, int(rows), beside=True)
            self._asked[chosen.task] = found
            self._ahead.append(dataclasses.replace(chosen, info={**chosen.info, **about}))
            self._expect(self.measurer, chosen.task, found.batch)
        except Exception as e:  # what is in hand is measured first
            self._late = e

    def _beside(self, scheduler: Overlaps, slot: Slot, rows: int) -> Slot | None:
        """The scheduler's choice while `rows` of `slot` are in hand; None where it waits for them or none are left."""
        left = rows_left(self.stoppers, self.whole, self.clock) - rows
        allowed = _rows_allowed(self.stoppers, self.whole) - rows
        if min(left, allowed) < 1:
            return None
        states = list(self.states)
        mine = states[slot.task]
        states[slot.task] = dataclasses.replace(mine, trials=mine.trials + rows, finished="in hand")
        with blame("scheduler", self.scheduler):
            if isinstance(self.scheduler, Budgeted):
                self.scheduler.budget(left)
            chosen = scheduler.beside(states, self.clock, slot)
            _check(chosen, states)
            if chosen is not None and chosen.trials is None:
                raise ValueError(f"beside must give a slot with trials, got {chosen}")
        if chosen is None or self._rows_of_task(self.states[chosen.task]) < 1:
            return None
        return dataclasses.replace(chosen, trials=int(min(chosen.trials or 1, allowed)))

    def _bar(self, state: TaskState) -> Bar:
        return Bar(state.best_s, state.flops, self.cap_s)

    def _expect(self, measurer: Expects, task: int, asked: Batch) -> None:
        """Let these rows be built ahead or, by who measures elsewhere, be measured already."""
        with blame("measurer", measurer):
            measurer.expect(self.pipelines[task].task, asked.codes)
            if isinstance(measurer, Begins) and len(asked.codes):
                measurer.begin(self.pipelines[task].task, asked.codes, self._bar(self.states[task]))

    def _look_again(self, asked: Batch, pipeline: Asks, state: TaskState, results: list[Measurement]) -> None:
        """Time the leaders once more in turns, and rows that may have been unlucky; what is found then counts."""
        if not (isinstance(self.measurer, Retimes) and isinstance(pipeline, LooksAgain)):
            return
        rows = pipeline.doubtful(results)
        if not len(rows):
            return
        found = []
        with blame("measurer", self.measurer):
            timed = list(self.measurer.retime(pipeline.task, rows))
        trials, remarks = pipeline.levelled(timed)
        for trial in trials:
            m = pipeline.measured(pipeline.joined(trial), origin="again", at=self.clock.now(), **self.stamp)
            with blame("store", self.store):
                self.store.append([m])
            pipeline.correct(m)
            found.append({"config": m.config, "seconds": m.seconds, "run_s": m.cost.get("run", 0.0)})
        asked.info.update(remarks)
        if found:
            state.correct(pipeline.best_s, pipeline.incumbents())
            asked.info["again"] = found

    def _rescale(self, asked: Batch, pipeline: Asks, state: TaskState) -> None:
        """Bring what is known to the seconds in which the measurer tells batch `asked`, and say so in its remarks."""
        if not (isinstance(self.measurer, Recalibrates) and isinstance(pipeline, LooksAgain)):
            return
        with blame("measurer", self.measurer):
            factor = float(self.measurer.rescaled(pipeline.task))
            if not 0 < factor < math.inf:
                raise ValueError(f"rescaled must return a finite number above 0, got {factor}")
        if factor != 1:
            pipeline.rescale(factor)
            state.rescale(factor, pipeline.incumbents())
            asked.info["rescaled"] = factor

    def _refused(self, asked: Batch, pipeline: Asks, state: TaskState) -> list[Measurement]:
        """Rows that the backend refused on the way, stored and told."""
        refused = [pipeline.measured(t, at=self.clock.now(), **self.stamp) for t in pipeline.refused(asked)]
        if refused:
            with blame("store", self.store):
                self.store.append(refused)
            pipeline.tell(asked.id, refused)
            for m in refused:
                state.record(m)
        return refused

    def _measure(self, asked: Batch, pipeline: Asks, state: TaskState, results: list[Measurement]) -> None:
        """Measure a batch; every measurement is stored before it is added to `results`."""
        origin = {token(row): o for row, o in zip(asked.codes, asked.origin, strict=True)}
        self._rescale(asked, pipeline, state)
        with blame("measurer", self.measurer):
            stream = iter(self.measurer.measure(pipeline.task, asked.codes, self._bar(state)))
        with _closing(stream, self.measurer):
            while True:
                with blame("measurer", self.measurer):
                    trial = next(stream, None)
                    if trial is None:
                        break
                    if not isinstance(trial, Trial):
                        raise ValueError(f"measure must yield Trials, it yielded a {type(trial).__name__}")
                    where = origin.pop(token(trial.config), None)
                    if where is None:
                        raise ValueError(f"a measurer must yield each asked row once, it yielded {list(trial.config)}")
                m = pipeline.measured(trial, origin=where, at=self.clock.now(), **self.stamp)
                with blame("store", self.store):
                    self.store.append([m])
                results.append(m)
                state.record(m)
                self.whole.trials += m.error != "invalid"
                if self.over() is not None:
                    break
            if not results:
                raise PieceFailure("measurer", self.measurer, f"it yielded no trial of {len(asked.codes)} rows")

    def _verdict(self, stopper: Stopper, state: Any) -> str | None:
        with blame("stopper", stopper):
            reason = stopper.stop(state, self.clock)
            if reason is not None and not isinstance(reason, str):
                raise ValueError(f"stop must return a reason or None, got {reason!r}")
            return reason

    def _finished(self, state: TaskState) -> bool:
        for s in self.stoppers:
            if s.scope == "task" and state.finished is None:
                state.finished = self._verdict(s, state)
        return state.finished is not None

    def _emit(self, event: str, **what: Any) -> None:
        self._audience.tell(event, run=self.info, **what)


def rows_left(stoppers: Sequence[Stopper], state: RunState, clock: Clock) -> float:
    """Rows that the run is likely to measure yet, at least 1; inf where no stopper bounds it.

    Time counts at the run's own pace so far.
    """
    seconds = math.inf
    for s in stoppers:
        if isinstance(s, LimitsTime):
            seconds = min(seconds, _number(s, "left_s", s.left_s, state, clock))
    pace_s = (clock.now() - state.started) / state.trials if state.trials else ROW_S
    return max(1.0, min(_rows_allowed(stoppers, state), seconds / max(pace_s, 1e-6)))


def _rows_allowed(stoppers: Sequence[Stopper], state: RunState) -> float:
    """The least room that a stopper leaves; inf where none bounds the rows."""
    rows = math.inf
    for s in stoppers:
        if isinstance(s, LimitsRows):
            rows = min(rows, _number(s, "room", s.room, state))
    return rows


def _state(pipeline: Asks) -> TaskState:
    state = TaskState(pipeline.task, best_s=pipeline.best_s, incumbents=pipeline.incumbents())
    state.restored = pipeline.known_trials()
    return state


@contextmanager
def _closing(stream: Iterator[Trial], measurer: Measures) -> Iterator[None]:
    """Abandon what is left of a measurer's generator."""
    try:
        yield
    finally:
        if isinstance(stream, Generator):
            with blame("measurer", measurer):
                stream.close()


def _number(stopper: Stopper, limit: str, ask: Callable[..., float], *of: Any) -> float:
    with blame("stopper", stopper):
        answer = float(ask(*of))
        if math.isnan(answer):
            raise ValueError(f"{limit} must be a number, got nan")
        return answer


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
