"""The losses' gradients against finite differences of the losses."""

from __future__ import annotations

import numpy as np
import pytest
from tt_surrogate.pack_sum import draw_pairs, pairwise_logistic, program_ids, squared_error, sum_statements

OFFSETS = np.array([0, 3, 3, 4, 9, 11, 12, 19])  # the second program has no statement
IDS, N = program_ids(OFFSETS), len(OFFSETS) - 1
Y = np.array([1.0, 0.5, 0.0, 0.25, 0.5, 0.9, 0.0])


def squared(F):
    return squared_error(F, Y, np.maximum(Y, 0.3))


def pairwise(F):
    better, worse = draw_pairs(Y, [4, 3], 64, np.random.default_rng(0))
    return pairwise_logistic(F, better, worse, 2 ** Y[better] - 2 ** Y[worse])


@pytest.mark.parametrize("loss", [squared, pairwise])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_gradient_and_curvature_are_the_losses(loss, scale):
    F, h = scale * np.random.default_rng(1).standard_normal(N), 1e-4
    _, grad, bend = loss(F)
    for i, step in enumerate(h * np.eye(N)):
        up, here, down = loss(F + step)[0], loss(F)[0], loss(F - step)[0]
        assert grad[i] == pytest.approx((up - down) / (2 * h), abs=1e-6)
        assert bend[i] == pytest.approx((up - 2 * here + down) / h**2, abs=1e-5)


@pytest.mark.parametrize("loss", [squared, pairwise])
def test_a_statement_has_its_programs_gradient(loss):
    f, h = np.random.default_rng(2).standard_normal(len(IDS)), 1e-5
    grad = loss(sum_statements(f, IDS, N))[1][IDS]
    for s, step in enumerate(h * np.eye(len(f))):
        up, down = (loss(sum_statements(f + sign * step, IDS, N))[0] for sign in (1, -1))
        assert grad[s] == pytest.approx((up - down) / (2 * h), abs=1e-6)


def test_sums_of_programs_without_statements_are_zero():
    assert sum_statements(np.ones(19), IDS, N).tolist() == [3, 0, 1, 5, 2, 1, 7]


def test_far_scores_do_not_overflow():
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        loss, grad, bend = pairwise_logistic(np.array([-1e6, 1e6]), np.array([0]), np.array([1]), np.ones(1))
    assert loss == 2e6 and grad.tolist() == [-1, 1] and bend.tolist() == [0, 0]


def test_pairs_stay_inside_tasks_and_differ_in_label():
    rng = np.random.default_rng(3)
    y, task = rng.integers(0, 5, 310) / 4, np.repeat([0, 1, 2], [300, 9, 1])
    better, worse = draw_pairs(y, [300, 9, 1], 8, rng)
    assert (task[better] == task[worse]).all() and (y[better] > y[worse]).all()
    assert len(better) <= 300 * 8 + 36
    small = {(b, w) for b, w in zip(better.tolist(), worse.tolist(), strict=True) if b >= 300}
    assert small == {(b, w) for b in range(300, 309) for w in range(300, 309) if y[b] > y[w]}
