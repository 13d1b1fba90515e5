"""Sub-spaces: rows there and back, and which choices are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_bench.subspace import importance, narrow, restrict, thin, widen
from tt_bench_toy import space, truth
from tt_spec import Knob, Space

SPACE = space()


@st.composite
def keeps(draw):
    return tuple(tuple(sorted(draw(st.sets(st.integers(0, n - 1), min_size=1)))) for n in SPACE.shape)


@given(keeps())
def test_rows_of_a_sub_space_are_rows_of_the_whole_and_come_back(keep):
    sub = restrict(SPACE, keep)
    rows = np.stack(list(sub.enumerate()))
    whole = widen(SPACE, keep, rows)
    assert np.array_equal(SPACE.canonical(whole), whole)
    for row, full in zip(rows, whole, strict=True):
        assert sub.decode(row) == SPACE.decode(full)
    back, inside = narrow(SPACE, keep, whole)
    assert inside.all() and np.array_equal(back, rows)


@given(keeps())
def test_exactly_the_rows_outside_are_dropped(keep):
    everything = np.stack(list(SPACE.enumerate()))
    sub, inside = narrow(SPACE, keep, everything)
    allowed = [
        all(
            k.choices.index(v) in kept
            for k, kept in zip(SPACE.knobs, keep, strict=True)
            if (v := d.get(k.name)) is not None
        )
        for d in map(SPACE.decode, everything)
    ]
    assert inside.tolist() == allowed
    assert len(np.unique(sub, axis=0)) == sum(allowed)


def test_rows_of_a_small_branch_are_drawn_as_often_as_others():
    kind = Knob("kind", "choice", ("wide", "narrow"))
    many = Knob("many", "choice", tuple(range(9)), active_if=(0, (0,)))
    sub = restrict(Space((kind, many)), ((0, 1), tuple(range(9))))
    rows, counts = np.unique(sub.sample(20_000, np.random.default_rng(0)), axis=0, return_counts=True)
    assert len(rows) == 10 and abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_keeping_everything_keeps_the_key():
    assert restrict(SPACE, tuple(tuple(range(n)) for n in SPACE.shape)).key == SPACE.key


def test_importance_is_what_a_knob_explains():
    rows = np.stack(list(SPACE.enumerate()))
    labels = np.where(SPACE.active(rows), rows, -1)
    shares = importance(labels, truth(SPACE, rows))
    assert shares[0] > 0.9 and shares[3] < 0.01
    assert importance(labels[:1], truth(SPACE, rows[:1])).tolist() == [0, 0, 0, 0]
    noise = np.random.default_rng(0).lognormal(size=len(rows))
    assert importance(labels, noise).max() < 0.15, "many choices alone explain nothing"


@pytest.mark.parametrize("most", [1, 2, 5, 12, 30, 71, 72, 1000])
def test_thin_keeps_the_best_row_and_drops_what_matters_least(most):
    best = np.array([2, 1, 2, 0])
    keep = thin(SPACE, most, best, [0.9, 0.2, 0.1, 0.0])
    assert 1 <= restrict(SPACE, keep).size <= most
    assert all(int(b) in kept for b, kept in zip(best, keep, strict=True))
    fixed = [len(keep[i]) < SPACE.shape[i] for i in (1, 0, 2, 3)]  # on "order" another knob depends
    assert fixed == sorted(fixed), "a knob is touched only after all that matter less"


def test_a_knob_on_which_others_depend_is_fixed_last():
    """Eight rows one way, 27 the other; the choice between them explains nothing by itself."""
    first = [Knob(f"a{i}", "choice", (0, 1), active_if=(0, (0,))) for i in range(3)]
    second = [Knob(f"b{i}", "choice", (0, 1, 2), active_if=(0, (1,))) for i in range(3)]
    ways = Space((Knob("way", "choice", ("first", "second")), *first, *second))
    keep = thin(ways, 20, np.zeros(7, dtype=np.int64), [0.0, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3])
    assert keep[0] == (0, 1) and restrict(ways, keep).size <= 20
