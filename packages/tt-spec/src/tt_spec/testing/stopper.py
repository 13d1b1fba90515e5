"""The contract of stoppers."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from tt_spec.clock import VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.roles import Bounds, LimitsRows, LimitsTime, Remarks, RunState, capabilities
from tt_spec.types import TaskState

__all__ = ["StopperContract"]


class StopperContract:
    """Subclass it and override `piece`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh stopper."""
        raise NotImplementedError("override the fixture `piece`")

    def test_declares_its_scope(self, piece: Any) -> None:
        assert piece.scope in ("task", "run"), f"scope must be task or run, got {piece.scope!r}"

    def test_does_not_stop_at_once(self, piece: Any) -> None:
        clock = VirtualClock(1e9)
        for restored in (False, True):
            state = _fresh(piece.scope, clock, restored)
            reason = copy.deepcopy(piece).stop(state, clock)
            assert reason is None, f"nothing was measured in this run yet, but it stops: {reason!r}"

    def test_gives_a_reason_or_none(self, piece: Any) -> None:
        for improving in (True, False):
            for reason, _ in _drive(copy.deepcopy(piece), improving):
                assert reason is None or (isinstance(reason, str) and reason), f"text or None, got {reason!r}"

    def test_asking_twice_changes_nothing(self, piece: Any) -> None:
        for reason, again in _drive(piece, improving=False):
            assert (reason is None) == (again is None), (
                f"the loop asks after every measurement: the same state gave {reason!r}, then {again!r}"
            )

    def test_room_is_a_number_of_rows(self, piece: Any) -> None:
        if LimitsRows not in capabilities("stopper", piece):
            return
        clock = VirtualClock(1e9)
        state = _fresh("run", clock, restored=False)
        room = piece.room(state)
        assert room == int(room) and room >= 1, f"a fresh run has room for whole rows, at least one, got {room!r}"
        state.trials += 1
        assert piece.room(state) <= room, "room must not grow with trials"

    def test_the_time_left_runs_down(self, piece: Any) -> None:
        if LimitsTime not in capabilities("stopper", piece):
            return
        clock = VirtualClock(1e9)
        state = _fresh("run", clock, restored=False)
        left = piece.left_s(state, clock)
        assert left > 0, f"a fresh run has time left, got {left!r} s"
        clock.advance(left / 2)
        half = piece.left_s(state, clock)
        assert half == pytest.approx(left / 2), f"{left / 2:g} s of {left:g} passed, {half!r} s are said to be left"

    def test_rows_left_run_down(self, piece: Any) -> None:
        if Bounds not in capabilities("stopper", piece):
            return
        clock = VirtualClock(1e9)
        state = _fresh("task", clock, restored=True)
        left = piece.rows_left(state)
        assert left == math.inf or (left == int(left) and left >= 1), f"a fresh task has rows left, got {left!r}"
        state.trials += 1
        state.latencies.append(math.inf)
        less = piece.rows_left(state)
        assert less <= left, f"a failed row was measured, and {less!r} rows are left instead of {left!r}"
        for reason, _ in _drive(piece, improving=False, states=(seen := [])):
            left = piece.rows_left(seen[0])
            assert left >= 0, f"rows left are never negative, got {left!r}"
            assert reason is not None or left >= 1, "no rows are left, but it does not stop"

    def test_remarks_are_plain_data(self, piece: Any) -> None:
        if Remarks not in capabilities("stopper", piece):
            return
        for _ in _drive(piece, improving=False, states=(seen := [])):
            remarks = piece.info(seen[0])
            assert isinstance(remarks, dict), f"info returns a dict for the event log, got {remarks!r}"
            assert json.loads(json.dumps(remarks)) == remarks, f"remarks are plain data, got {remarks!r}"

    def test_leaves_the_state_alone(self, piece: Any) -> None:
        clock = VirtualClock(1e9)
        state = _fresh(piece.scope, clock, restored=True)
        before = copy.deepcopy(state)
        piece.stop(state, clock)
        for ability in {Bounds, Remarks} & set(capabilities("stopper", piece)):
            _ = piece.rows_left(state) if ability is Bounds else piece.info(state)
        assert state == before, "a stopper reads the state, it does not change it"


def _fresh(scope: str, clock: VirtualClock, restored: bool) -> Any:
    tasks = [TaskState(synthetic_task("a", knobs=2)), TaskState(synthetic_task("b", knobs=3))]
    if restored:
        tasks[0].best_s, tasks[0].restored, tasks[0].incumbents = 1e-3, 5000, [(1, 2e-3), (4000, 1e-3)]
    return tasks[0] if scope == "task" else RunState(tasks, clock.now())


def _drive(piece: Any, improving: bool, states: list[Any] | None = None) -> Any:
    """`(answer, answer again)` over 60 batches of a minute each; without improvement every row fails. `states` gets
    the state that is driven."""
    clock = VirtualClock(1e9)
    state = _fresh(piece.scope, clock, restored=False)
    task = state if piece.scope == "task" else state.tasks[0]
    if states is not None:
        states.append(state)
    for _ in range(60):
        clock.advance(60.0)
        task.trials += 32
        task.batches += 1
        if improving:
            task.best_s, task.last_gain_trial = 1e-3 * (1 + 100 / task.trials), task.trials
            task.incumbents.append((task.trials, task.best_s))
            task.latencies += [math.inf] * 31 + [task.best_s]
        else:
            task.errors["run"] = task.errors.get("run", 0) + 32
            task.latencies += [math.inf] * 32
            assert math.isinf(task.best_s)
        task.curve.append((task.trials, clock.now(), task.best_s))
        if piece.scope == "run":
            state.trials += 32
        yield piece.stop(state, clock), piece.stop(state, clock)
