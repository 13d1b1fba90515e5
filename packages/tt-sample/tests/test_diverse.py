from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tt_sample import Diverse
from tt_sample.diverse import worth
from tt_spec import Proposal
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SamplerContract, context, mixed_task


class TestContract(SamplerContract):
    @pytest.fixture
    def piece(self):
        return Diverse()


ROWS = np.array([[0, 0], [0, 1], [1, 1]])
SCORES = np.array([0.9, 0.8, 0.5])
"""Stretched to 1, 0.75 and 0. With d = 2 a new value is worth alpha / 2."""


def test_by_hand():
    ctx = context(synthetic_task("hand", 2, 2))
    # alpha = 1: [0, 0] = 1 + 1; then [0, 1] = 0.75 + 0.5 beats [1, 1] = 0 + 1
    picked = Diverse(alpha=1.0).select(ctx, Proposal(ROWS, SCORES), 2)
    assert picked.codes.tolist() == [[0, 0], [0, 1]] and picked.info["covered"] == 3
    # alpha = 2: [0, 0] = 1 + 2; then [0, 1] = 0.75 + 1 loses against [1, 1] = 0 + 2
    picked = Diverse(alpha=2.0).select(ctx, Proposal(ROWS, SCORES), 2)
    assert picked.codes.tolist() == [[0, 0], [1, 1]] and picked.info["covered"] == 4
    assert worth(ctx.space, ROWS[[0, 2]], np.array([1.0, 0.0]), 2.0) == pytest.approx(1 + 4)


def test_scale_of_scores_does_not_matter():
    ctx = context(mixed_task(), 10)
    codes = ctx.space.sample(60, np.random.default_rng(1))
    scores = np.random.default_rng(2).random(60)
    a = Diverse().select(ctx, Proposal(codes, scores), 10).codes
    assert np.array_equal(a, Diverse().select(ctx, Proposal(codes, 1e-4 * scores - 3.0), 10).codes)


def test_alpha_zero_is_the_top():
    ctx = context(mixed_task())
    codes = np.unique(ctx.space.sample(60, np.random.default_rng(1)), axis=0)
    scores = np.random.default_rng(2).random(len(codes))
    picked = Diverse(alpha=0.0).select(ctx, Proposal(codes, scores), 10).codes
    assert np.array_equal(picked, codes[np.argsort(-scores)[:10]])


def test_inactive_knobs_cover_nothing():
    ctx = context(mixed_task())
    row = ctx.space.canonical(np.zeros((1, 8), dtype=np.int64))
    picked = Diverse().select(ctx, Proposal(row, np.ones(1)), 1)
    assert picked.info["covered"] == int(ctx.space.active(row).sum()) < 8


@pytest.mark.parametrize("seed", range(20))
def test_greedy_reaches_its_bound(seed):
    rng = np.random.default_rng(seed)
    ctx = context(synthetic_task("bound", 3, 4), seed=seed)
    codes = ctx.space.sample(40, rng)
    codes = codes[ctx.fresh(codes)][:9]
    scores = rng.random(9)
    f = (scores - scores.min()) / np.ptp(scores)
    best = max(worth(ctx.space, codes[list(s)], f[list(s)], 1.0) for s in itertools.combinations(range(9), 4))
    picked = Diverse().select(ctx, Proposal(codes, scores), 4).codes
    where = [int((codes == row).all(axis=1).argmax()) for row in picked]
    assert worth(ctx.space, picked, f[where], 1.0) >= (1 - 1 / math.e) * best


def test_refuses_a_negative_alpha():
    with pytest.raises(ValueError, match="alpha must not be negative, got -1"):
        Diverse(alpha=-1).select(context(mixed_task()), Proposal(np.zeros((1, 8), dtype=np.int64), np.ones(1)), 1)
