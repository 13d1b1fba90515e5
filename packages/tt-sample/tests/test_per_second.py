from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_sample import PerSecond
from tt_sample.per_second import expected_gain, learned_seconds
from tt_spec import Proposal
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SamplerContract, context


class TestContract(SamplerContract):
    @pytest.fixture
    def piece(self):
        return PerSecond(least=2)


def told(ctx, build=None):
    """The context with seconds of every row: building takes the longer, the larger the first knob's value."""
    seconds = np.exp(0.5 * ctx.rows[:, 0]) / 10 if build is None else build
    ctx.costs = np.column_stack([seconds, np.full(len(ctx.rows), 0.01)])
    return ctx


def offered(costs=True):
    task = synthetic_task("seconds", 4, 8)
    ctx = context(task, 40, fitted=True)
    codes = np.unique(task.space.sample(60, np.random.default_rng(3)), axis=0)
    codes = codes[ctx.fresh(codes)]
    return (told(ctx) if costs else ctx), codes


def test_of_rows_as_good_as_each_other_the_quickest_to_build_come_first():
    ctx, codes = offered()
    picked = PerSecond().select(ctx, Proposal(codes, np.full(len(codes), 0.9)), 8)
    slow = PerSecond(power=0).select(ctx, Proposal(codes, np.full(len(codes), 0.9)), 8)
    assert picked.codes[:, 0].max() <= np.sort(codes[:, 0])[7], "they have the smallest first knob"
    assert picked.info["seconds_chosen"] < 0.7 * picked.info["seconds"]
    assert np.array_equal(slow.codes, codes[:8]), "power 0: by gain alone, ties in the searcher's order"


def test_a_gain_that_is_large_enough_outweighs_the_seconds():
    ctx, codes = offered()
    dear = int(codes[:, 0].argmax())
    scores = np.where(np.arange(len(codes)) == dear, 3.0, 0.2)  # the model knows the truth, so scores are labels
    assert np.array_equal(PerSecond().select(ctx, Proposal(codes, scores), 1).codes[0], codes[dear])


def test_without_seconds_or_a_model_it_is_the_top():
    for ctx, codes in (offered(costs=False), offered()):
        scores = np.random.default_rng(1).random(len(codes))
        ctx.fitted = not len(ctx.costs)
        picked = PerSecond().select(ctx, Proposal(codes, scores), 5)
        assert np.array_equal(picked.codes, codes[np.argsort(-scores)[:5]]) and not picked.info
    ctx, codes = offered()
    ctx.costs[3:] = np.nan
    assert not PerSecond().select(ctx, Proposal(codes, np.arange(len(codes)) * 1.0), 5).info, "three rows are too few"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9), st.floats(0.01, 2), st.floats(0.1, 10), st.floats(-3, 3))
def test_gain_is_that_of_the_definition(scores, doubt, unit, origin):
    """EI of N(score, doubt) over 1, by sampling; labels on a line with the scores, whatever their unit."""
    y = np.array([0.1, 0.5, 1.0])
    found = expected_gain(unit * np.array(scores) + origin, unit * y + origin, y, doubt)
    assert (np.diff(found[np.argsort(scores, kind="stable")]) >= -1e-9).all(), "a better score never gains less"
    draws = np.random.default_rng(0).normal(size=20000) * doubt
    truth = np.maximum(np.array(scores)[:, None] + draws - 1.0, 0).mean(axis=1)
    assert found == pytest.approx(truth, abs=0.05 * doubt, rel=0.05)


def test_scores_that_rank_in_reverse_claim_nothing():
    gain = expected_gain(np.array([0.0, 9.0]), np.array([1.0, 0.0]), np.array([0.2, 0.9]), 0.1)
    assert gain[0] == gain[1]


@pytest.mark.parametrize("rows", [8, 60])
def test_seconds_are_learned(rows):
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(400, 12)), rng.normal(size=12) * 0.3
    seconds = np.exp(X @ w - 2)
    found = learned_seconds(X[:rows], seconds[:rows], X[rows:], 1.0)
    close = np.abs(np.log(found / seconds[rows:])).mean()
    blind = np.abs(np.log(seconds[:rows]).mean() - np.log(seconds[rows:])).mean()
    assert close < (0.15 if rows > 12 else 0.95) * blind
    same = learned_seconds(np.ones((5, 3)), np.full(5, 0.2), np.zeros((2, 3)), 1.0)
    assert same == pytest.approx([0.2, 0.2]), "columns that never varied say nothing"


def test_options_that_cannot_be_used_are_refused():
    ctx, codes = offered()
    for options in ({"power": -1}, {"doubt": 0}, {"builders": 0}, {"ridge": 0}, {"overhead_s": -1}):
        with pytest.raises(ValueError, match="must be positive"):
            PerSecond(**options).select(ctx, Proposal(codes, np.zeros(len(codes))), 4)
