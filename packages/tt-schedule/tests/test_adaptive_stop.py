"""The adaptive early stop: the arithmetic of blocks, and what it refuses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_schedule import AdaptiveStop, DynaTune, Gradient, RoundRobin
from tt_spec import Plugins, TaskState, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import StopperContract

CLOCK = VirtualClock()
BY_HAND = {"im": 256, "ir": 2, "dr": 1, "fr": 0.1, "ub": 64, "lb": -32, "plan_size": 64}


class TestAdaptiveStopContract(StopperContract):
    @pytest.fixture
    def piece(self):
        return AdaptiveStop()


class TestTheOtherReadingsContract(StopperContract):
    @pytest.fixture
    def piece(self):
        return AdaptiveStop(bounds="size", lb=8)


def after(*gflops: float, rows: int = 64, best_before: float | None = None) -> TaskState:
    """A task after blocks whose best rows reach these rates; 0 is a block of failures only."""
    state = TaskState(synthetic_task())
    if best_before is not None:
        state.incumbents, state.restored = [(7, 1 / best_before)], 20
    for rate in gflops:
        measure(state, [math.inf] * (rows - 1) + [1 / rate if rate else math.inf])
    return state


def measure(state: TaskState, seconds: list[float]) -> None:
    state.latencies += seconds
    state.trials += len(seconds)


def test_the_example_by_hand():
    piece, maxima, verdicts = AdaptiveStop(**BY_HAND), [], []
    blocks = [100, 150, 145, 60, 0]
    for n in range(1, 6):
        state = after(*blocks[:n])
        maxima.append(piece.info(state)["im"])
        verdicts.append(piece.stop(state, CLOCK))
    assert maxima == [256, 320, 320, 288, 256]
    assert verdicts == [None] * 4 + ["320 trials, of at most 256 after 5 blocks"]
    found = piece.info(after(*blocks))["blocks"]
    assert [b[1] for b in found] == [0, 64, 0, -32, -32]
    assert [b[0] for b in found] == [None, pytest.approx(1.5), pytest.approx(145 / 150), pytest.approx(0.4), 0]


def test_the_defaults_are_those_of_the_example():
    piece = AdaptiveStop()
    assert {name: getattr(piece, name) for name in BY_HAND} == BY_HAND


def test_inside_the_bounds_the_change_is_in_proportion():
    piece = AdaptiveStop(**BY_HAND)
    assert piece.add(1.25) == 2 * 64 * 0.25
    assert piece.add(0.75) == -64 * 0.25
    assert [piece.add(r) for r in (1.0, 0.95, 0.9)] == [0, 0, 0]
    assert (piece.add(9.0), piece.add(0.0)) == (64, -32)


def test_in_the_other_reading_both_bounds_are_sizes():
    piece = AdaptiveStop(**{**BY_HAND, "lb": 8, "bounds": "size"})
    assert (piece.add(9.0), piece.add(1.01), piece.add(1.25)) == (64, 8, 32)
    assert (piece.add(0.0), piece.add(0.75), piece.add(0.89), piece.add(0.95)) == (-64, -16, -8, 0)
    assert piece.info(after(100, 150, 145, 60, 0))["im"] == pytest.approx(256 + 64 - 38.4 - 64)


def test_the_historys_best_is_the_bar_of_the_first_block():
    piece = AdaptiveStop(**BY_HAND)
    assert piece.info(after(100, best_before=50))["blocks"] == [[2.0, 64.0, 320.0]]
    assert piece.info(after(100, best_before=1000))["blocks"] == [[pytest.approx(0.1), -32.0, 224.0]]
    assert piece.info(after(0, 100))["blocks"] == [[None, 0.0, 256.0], [None, 0.0, 256.0]], "failures are no c*"


def test_the_end_comes_in_the_middle_of_a_block_too():
    piece = AdaptiveStop(im=100)
    state = after(100)
    measure(state, [1.0] * 35)
    assert piece.stop(state, CLOCK) is None and piece.rows_left(state) == 1
    measure(state, [1.0])
    assert piece.stop(state, CLOCK) == "100 trials, of at most 100 after 1 blocks"


seconds = st.lists(st.floats(1e-6, 1.0) | st.just(math.inf), max_size=200)


@given(seconds, st.data())
def test_blocks_do_not_depend_on_how_the_rows_came_in(rows, data):
    piece = AdaptiveStop(plan_size=16, im=64)
    whole = TaskState(synthetic_task())
    measure(whole, rows)
    cut, seen = TaskState(synthetic_task()), []
    while cut.trials < len(rows):
        n = data.draw(st.integers(1, 40))
        measure(cut, rows[cut.trials : cut.trials + n])
        seen = piece.blocks(cut)
        assert seen == piece.blocks(whole)[: len(seen)], "a block that was judged is never judged otherwise"
    assert seen == piece.blocks(whole)
    assert len(seen) == len(rows) // 16


@given(seconds, st.floats(0, 5), st.floats(0, 5), st.floats(0, 0.99), st.floats(0, 100), st.floats(-100, 0))
def test_the_maximum_moves_within_its_bounds(rows, ir, dr, fr, ub, lb):
    piece = AdaptiveStop(im=64, ir=ir, dr=dr, fr=fr, ub=ub, lb=lb, plan_size=16)
    state = TaskState(synthetic_task())
    measure(state, rows)
    im = 64.0
    for b in piece.blocks(state):
        assert lb <= b.add <= ub and b.im == im + b.add
        assert b.r is not None or b.add == 0
        assert (b.add <= 0) if b.r is not None and b.r < 1 else b.add >= 0
        im = b.im
    assert (piece.stop(state, CLOCK) is not None) == (state.trials >= im)


@pytest.mark.parametrize("scheduler", [RoundRobin(trials=10), Gradient(trials=24), DynaTune(trials=7)], ids=type)
def test_it_works_beside_schedulers_whose_slots_cut_blocks(scheduler):
    """The better task goes on after the one that only fails has ended."""
    piece = AdaptiveStop(plan_size=16, im=64, lb=-16)
    states = [TaskState(synthetic_task("fails")), TaskState(synthetic_task("gains"))]
    clock, best_s = VirtualClock(), 1.0
    for _ in range(400):
        slot = scheduler.next(states, clock)
        if slot is None:
            break
        s = states[slot.task]
        for _ in range(slot.trials or 8):
            if slot.task == 1 and s.trials < 200:
                best_s *= 0.95
                s.best_s = best_s
                s.incumbents.append((s.trials + 1, best_s))
            measure(s, [math.inf if slot.task == 0 else best_s * (1 if s.trials < 200 else 4)])
        clock.advance(1.0)
        s.batches += 1
        s.curve.append((s.trials, clock.now(), s.best_s))
        s.finished = piece.stop(s, clock)
    assert [s.finished is not None for s in states] == [True, True]
    assert 64 <= states[0].trials < 64 + 24, "nothing but failures leaves the maximum where it was"
    assert states[1].trials > 200


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"lb": 65}, "lb must be at most ub, got lb=65 and ub=64"),
        ({"ub": -33}, "lb must be at most ub"),
        ({"lb": 1}, "lb must be at most 0 and ub at least 0"),
        ({"ub": -1}, "ub at least 0"),
        ({"fr": 1}, r"fr must be in \[0, 1\), got 1"),
        ({"fr": -0.1}, r"fr must be in \[0, 1\)"),
        ({"plan_size": 0}, "plan_size must be a whole number of rows, at least 1, got 0"),
        ({"plan_size": 1.5}, "plan_size must be a whole number"),
        ({"im": 0}, "im must be a whole number"),
        ({"ir": -1}, "ir and dr must not be negative"),
        ({"dr": math.nan}, "dr must be a finite number, got nan"),
        ({"ub": "64"}, "ub must be a finite number, got '64'"),
        ({"bounds": "both"}, "bounds must be 'value' or 'size', got 'both'"),
        ({"bounds": "size"}, "with bounds='size' lb must be at least 0, got -32"),
    ],
)
def test_wrong_options_are_refused_when_it_is_made(options, rule):
    with pytest.raises(ValueError, match=rule):
        Plugins().build("stopper", "adaptive-stop", **options)
