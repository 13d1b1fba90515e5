"""The contract of schedulers."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tt_spec.clock import VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.roles import Budgeted, Foresees, Overlaps, Peaked
from tt_spec.testing.examples import check_info
from tt_spec.types import Slot, TaskState

__all__ = ["SchedulerContract"]

_BATCH = 8


class SchedulerContract:
    """Subclass it and override `piece`."""

    longest = 48
    """Trials after which the simulated tasks are finished."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh scheduler."""
        raise NotImplementedError("override the fixture `piece`")

    def test_gives_every_task_a_slot_and_ends(self, piece: Any) -> None:
        run = _Run(4, self.longest)
        slots = run.drive(piece)
        assert {s.task for s in slots} == {0, 1, 2, 3}, f"every task must get a slot, these did: {_tasks(slots)}"

    def test_never_chooses_a_finished_task(self, piece: Any) -> None:
        for gone in ((0,), (1, 2), (3,)):
            run = _Run(4, self.longest)
            for i in gone:
                run.states[i].finished = "before the start"
            slots = run.drive(copy.deepcopy(piece))
            assert {s.task for s in slots} == {0, 1, 2, 3} - set(gone), (
                f"exactly the tasks that are left must get slots, these did: {_tasks(slots)}"
            )

    def test_has_no_slot_when_all_are_finished(self, piece: Any) -> None:
        run = _Run(3, self.longest)
        for s in run.states:
            s.finished = "done"
        assert piece.next(run.states, run.clock) is None, "None when every task is finished"
        assert copy.deepcopy(piece).next([], run.clock) is None, "None when there is no task"

    def test_works_where_one_task_always_fails(self, piece: Any) -> None:
        slots = _Run(3, self.longest, failing=(1,)).drive(piece)
        assert {s.task for s in slots} == {0, 1, 2}, f"every task must get a slot, these did: {_tasks(slots)}"

    def test_works_with_one_task_and_with_restored_ones(self, piece: Any) -> None:
        assert _Run(1, self.longest).drive(copy.deepcopy(piece)), "a lone task must get a slot"
        run = _Run(3, self.longest)
        run.states[1].best_s, run.states[1].restored = 2e-3, 500
        slots = run.drive(copy.deepcopy(piece))
        assert {s.task for s in slots} == {0, 1, 2}, "trials of former runs must not keep a task from its slots"

    def test_a_small_budget_reaches_every_task(self, piece: Any) -> None:
        if not isinstance(piece, Budgeted):
            return
        slots = _Run(4, self.longest).drive(piece, budget=24)
        assert {s.task for s in slots} == {0, 1, 2, 3}, (
            f"told that 24 rows are left for 4 tasks, every task must get a slot, these did: {_tasks(slots)}"
        )

    def test_knowing_the_peak_leaves_it_usable(self, piece: Any) -> None:
        if not isinstance(piece, Peaked):
            return
        piece.peak(1e11)
        slots = _Run(3, self.longest).drive(piece)
        assert {s.task for s in slots} == {0, 1, 2}, f"every task must get a slot, these did: {_tasks(slots)}"

    def test_foresees_what_it_then_does(self, piece: Any) -> None:
        if not isinstance(piece, Foresees):
            return
        for failing in ((), (0, 1, 2, 3)):
            run = _Run(4, self.longest, failing)
            asked: Any = copy.deepcopy(piece)
            run.states[3].finished = "before the start"
            slot = asked.next(run.states, run.clock)
            assert copy.deepcopy(asked).ahead(run.states, run.clock, slot, 0) == [], "no rows, no slots"
            ahead = copy.deepcopy(asked).ahead(run.states, run.clock, slot, 1000)
            assert sum(s.trials or 1001 for s in ahead) <= 1000, "slots with trials, within the rows that were given"
            for foreseen in ahead:
                assert foreseen.task not in (slot.task, 3), "slots of other tasks, which are not finished"
                run.batch(slot.task, slot.trials or 1)
                slot = asked.next(run.states, run.clock)
                assert slot == foreseen, f"{foreseen} was foreseen, {slot} came"

    def test_chooses_beside_a_slot_in_hand(self, piece: Any) -> None:
        if not isinstance(piece, Overlaps):
            return
        run = _Run(4, self.longest)
        scheduler: Any = copy.deepcopy(piece)
        run.states[3].finished = "before the start"
        while (slot := scheduler.next(run.states, run.clock)) is not None:
            rows = slot.trials or _BATCH
            states, alone = list(run.states), [replace(s, finished="done") for s in run.states]
            for some in (states, alone):
                some[slot.task] = replace(some[slot.task], trials=some[slot.task].trials + rows, finished="in hand")
            before = copy.deepcopy(states)
            assert copy.deepcopy(scheduler).beside(alone, run.clock, slot) is None, "no other task, no slot"
            chosen = copy.deepcopy(scheduler).beside(states, run.clock, slot)
            assert states == before, "a scheduler reads the states, it does not change them"
            if chosen is not None:
                assert chosen.task not in (slot.task, 3), f"a slot of another task, which is not finished, not {chosen}"
                assert (chosen.trials or 0) >= 1, f"a slot beside another has trials, got {chosen}"
                run.batch(slot.task, rows)
                continue
            asked: Any = copy.deepcopy(scheduler)
            asked.beside(states, run.clock, slot)
            run.batch(slot.task, rows)
            after = copy.deepcopy(scheduler).next(run.states, run.clock)
            assert asked.next(run.states, run.clock) == after, "a None must change nothing of later answers"

    def test_same_states_same_slots(self, piece: Any) -> None:
        a, b = (_Run(3, self.longest).drive(p) for p in (copy.deepcopy(piece), copy.deepcopy(piece)))
        assert _tasks(a) == _tasks(b), "same states must give the same slots: seed what is random"

    def test_leaves_the_states_alone(self, piece: Any) -> None:
        run = _Run(3, self.longest)
        before = copy.deepcopy(run.states)
        piece.next(run.states, run.clock)
        assert run.states == before, "a scheduler reads the states, it does not change them"


class _Run:
    """Tasks whose best seconds fall like 1 / (1 + trials), each at its own pace."""

    def __init__(self, tasks: int, longest: int, failing: tuple[int, ...] = ()) -> None:
        self.states = [TaskState(synthetic_task(f"task {i}", knobs=2 + i)) for i in range(tasks)]
        self.clock, self.longest, self.failing = VirtualClock(1e9), longest, failing

    def drive(self, scheduler: Any, budget: int | None = None) -> list[Slot]:
        """All slots until the scheduler has none, or until it has spent the rows of the `budget` that it is told."""
        slots: list[Slot] = []
        while (rows := self._rows(budget)) > 0:
            if budget is not None:
                scheduler.budget(rows)
            slot = scheduler.next(self.states, self.clock)
            if slot is None:
                break
            self._check(slot)
            slots.append(slot)
            spent, started = 0, self.clock.now()
            state = self.states[slot.task]
            while state.finished is None:
                room = int(min(_BATCH, self._rows(budget)))
                left = room if slot.trials is None else min(room, slot.trials - spent)
                if left < 1 or (slot.seconds is not None and self.clock.now() - started >= slot.seconds):
                    break
                self._batch(slot.task, state, left)
                spent += left
                if slot.trials is None and slot.seconds is None:
                    break
        return slots

    def _rows(self, budget: int | None) -> float:
        return math.inf if budget is None else budget - sum(s.trials for s in self.states)

    def _check(self, slot: Slot) -> None:
        assert isinstance(slot, Slot), f"next returns a Slot or None, got {type(slot).__name__}"
        assert 0 <= slot.task < len(self.states), f"slot.task must index the states, got {slot.task}"
        assert self.states[slot.task].finished is None, f"task {slot.task} is finished and was chosen again"
        assert slot.trials is None or slot.trials >= 1, f"a slot has at least one trial, got {slot.trials}"
        assert slot.seconds is None or slot.seconds > 0, f"a slot has more than 0 seconds, got {slot.seconds}"
        assert math.isfinite(slot.gain_s), f"gain_s must be finite, got {slot.gain_s}"
        check_info(slot.info)

    def batch(self, i: int, n: int) -> None:
        """Measure `n` rows of a task."""
        self._batch(i, self.states[i], n)

    def _batch(self, i: int, state: TaskState, n: int) -> None:
        self.clock.advance(1.0 + i)
        state.trials += n
        state.batches += 1
        if i in self.failing:
            state.errors["build"] = state.errors.get("build", 0) + n
        else:
            best = 1e-3 * (1 + (i + 1) * 10 / (1 + state.trials))
            if best < state.best_s:
                state.best_s, state.last_gain_trial = best, state.trials
                state.incumbents.append((state.restored + state.trials, best))
        state.curve.append((state.trials, self.clock.now(), state.best_s))
        if state.trials >= self.longest:
            state.finished = "long enough"


def _tasks(slots: list[Slot]) -> list[int]:
    return np.asarray([s.task for s in slots], dtype=int).tolist()
