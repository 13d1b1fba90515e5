from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_search import Descent, Evolve
from tt_search.descent import faster
from tt_spec import Context, Knob, Prediction, Space, VirtualClock, labels, tokens
from tt_spec.testing import SearcherContract, wide_task

OPTIMUM = np.array([5, 1, 3])


class TestContract(SearcherContract):
    @pytest.fixture
    def piece(self):
        return Descent(options={"population": 48, "generations": 3}, stall=8)


@pytest.fixture
def bowl():
    """A task of three ordered knobs and the seconds of its rows, whose only local optimum is `OPTIMUM`."""
    space = Space(tuple(Knob(n, "choice", tuple(range(8))) for n in "abc"))
    task = dataclasses.replace(wide_task(), spaces=(space,))
    return task, lambda rows: 1e-3 * (1.0 + np.abs(np.asarray(rows) - OPTIMUM).sum(axis=1))


def context(task, rows, seconds, spread=0.01):
    """What a searcher sees after `rows` took `seconds`, five timed runs each, within `spread`."""
    rows = np.asarray(rows, dtype=np.int64)
    runs = tuple(tuple(s * (1.0 + spread * k) for k in (-1, -0.5, 0, 0.5, 1)) for s in seconds)
    return Context(
        task=task,
        space=task.space,
        rows=rows,
        y=labels(np.asarray(seconds)),
        errors=[None] * len(rows),
        pending=rows[:0],
        best_s=float(min(seconds)),
        predict=lambda codes: Prediction(np.zeros(len(codes)), np.zeros(len(codes))),
        score=lambda codes: np.zeros(len(codes)),
        rng=np.random.default_rng(0),
        clock=VirtualClock(),
        fitted=True,
        seen=frozenset(tokens(rows)),
        timed=runs,
    )


def test_the_other_searcher_proposes_until_it_stalls(bowl):
    task, seconds = bowl
    rows = np.array([[0, 0, 0], [1, 7, 7], [2, 7, 7]])
    ctx = context(task, rows, seconds(rows))  # the best is two rows old
    searcher = Descent(stall=3)
    twin = Evolve().propose(context(task, rows, seconds(rows)), 6)
    assert (searcher.propose(ctx, 6).codes == twin.codes).all() and searcher.centre_ is None
    assert Descent(stall=2).propose(ctx, 6).info["descent"]


def test_a_descent_proposes_what_lies_one_step_away_first(bowl):
    task, seconds = bowl
    rows = np.array([[1, 1, 1], [7, 7, 7]])
    found = Descent(stall=1).propose(context(task, rows, seconds(rows)), 6).codes
    steps = np.abs(found - [1, 1, 1])
    assert len(found) == 6 and (steps.sum(axis=1) == 1).all()
    rows = np.concatenate([rows, found[:4]])  # two neighbours are left: further rows fill the batch
    worse = np.r_[3e-3, 9e-3, np.full(4, 5e-3)]
    searcher = Descent(stall=1)
    more = searcher.propose(context(task, rows, worse), 6).codes
    assert sorted(np.abs(more - [1, 1, 1]).sum(axis=1)) == [1, 1, 2, 2, 2, 2]


def test_a_descent_reaches_the_optimum_and_hands_back(bowl):
    task, seconds = bowl
    rows, searcher = np.array([[7, 7, 7], [0, 7, 0]]), Descent(stall=1)
    for _ in range(20):
        proposal = searcher.propose(context(task, rows, seconds(rows)), 6)
        if not proposal.info.get("descent"):
            break
        rows = np.concatenate([rows, proposal.codes])
    assert seconds(rows).min() == 1e-3 and searcher.centre_ is None
    around = task.space.neighbours(OPTIMUM)
    assert set(tokens(around)) <= set(tokens(rows)) and len(rows) < 120
    again = searcher.propose(context(task, rows, seconds(rows)), 6)
    assert "descent" not in again.info  # the same best row starts no second one


def test_the_centre_moves_to_rows_that_are_faster_beyond_their_noise_only(bowl):
    task, _ = bowl
    rows = np.array([[1, 1, 1], [7, 7, 7], [2, 1, 1]])
    for seconds, spread, moved in (([3e-3, 9e-3, 2.9e-3], 0.2, False), ([3e-3, 9e-3, 2.9e-3], 0.01, True)):
        searcher = Descent(stall=1)
        searcher.propose(context(task, rows[:2], seconds[:2], spread), 6)
        searcher.propose(context(task, rows, seconds, spread), 6)
        assert searcher.centre_ is not None and (searcher.centre_ == rows[2]).all() == moved


def test_faster_by_hand():
    # all five below all five: 1 / C(10, 5) = 1/252; all three below all three: 1/20, just at the level
    assert faster([1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4], 0.05)
    assert not faster([1.0, 1.1, 1.2], [2.0, 2.1, 2.2], 0.05)
    assert not faster([1.0, 1.1, 1.2, 1.3, 2.5], [1.05, 1.15, 1.25, 1.35, 2.4], 0.05)
    assert faster([1.0], [1.1], 0.05) and not faster([1.1], [1.0], 0.05)  # no test can tell: by the medians
    assert not faster([], [1.0], 0.05) and faster([1.0], [], 0.05)


@pytest.mark.parametrize("wrong", [{"stall": 0}, {"p": 0.0}, {"p": 1.0}, {"first": "descent"}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Descent(**wrong)
