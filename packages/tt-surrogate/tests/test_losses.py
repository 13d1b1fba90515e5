"""Losses and LambdaRank's weights, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tt_surrogate.lambda_rank import lambda_weights
from tt_surrogate.losses import LOSSES, mean_loss

ONE = np.zeros(3, dtype=np.int64)


def test_lambda_weights_of_three_rows_by_hand():
    # labels 1, 0.5, 0; scores say 2nd, 1st, 3rd
    y, F = np.array([1.0, 0.5, 0.0]), np.array([0.2, 0.9, 0.1])
    gain = np.array([1.0, math.sqrt(2) - 1, 0.0])
    most = 1.0 / math.log2(2) + (math.sqrt(2) - 1) / math.log2(3)  # the ranking by y
    share = np.array([1 / math.log2(3), 1 / math.log2(2), 1 / math.log2(4)])  # 1 / D at ranks 2, 1, 3
    better, worse = np.array([0, 0, 1]), np.array([1, 2, 2])
    wanted = [abs(share[i] - share[j]) * (gain[i] - gain[j]) / most for i, j in zip(better, worse, strict=True)]
    assert lambda_weights(F, y, ONE, better, worse) == pytest.approx(wanted)


def test_ranks_and_gains_are_of_a_slate():
    y, F = np.array([1.0, 0.5, 0.0]), np.array([0.2, 0.9, 0.1])
    pairs = np.array([0, 0, 1]), np.array([1, 2, 2])
    alone = lambda_weights(F, y, ONE, *pairs)
    F2, y2 = np.concatenate([[9.0, 8.0], F]), np.concatenate([[0.3, 0.1], y])
    beside = lambda_weights(F2, y2, np.array([0, 0, 1, 1, 1]), pairs[0] + 2, pairs[1] + 2)
    assert beside == pytest.approx(alone)
    assert not lambda_weights(F, np.zeros(3), ONE, *pairs).any()


def test_equation_4_by_hand():
    F, y = np.array([1.0, 0.0, 5.0]), np.array([0.9, 0.3, 0.5])
    # better-worse: 0-1 (margin 1), 0-2 (margin -4), 2-1 (margin 5)
    wanted = sum(math.log(1 + math.exp(-m)) for m in (1.0, -4.0, 5.0)) / 3
    assert mean_loss("logistic", F, y, [3])[0] == pytest.approx(wanted)
    assert mean_loss("squared", F, y, [3])[0] == pytest.approx(0.5 * (0.1**2 + 0.3**2 + 4.5**2) / 3)


@pytest.mark.parametrize("name", ["logistic", "squared"])
def test_gradients_are_the_slopes(name):
    rng = np.random.default_rng(0)
    F, y, step = rng.normal(size=7), rng.random(7), 1e-6
    grad = mean_loss(name, F, y, [4, 3])[1]
    for i in range(7):
        up, down = F.copy(), F.copy()
        up[i], down[i] = F[i] + step, F[i] - step
        slope = (mean_loss(name, up, y, [4, 3])[0] - mean_loss(name, down, y, [4, 3])[0]) / (2 * step)
        assert grad[i] == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_pairs_never_cross_slates(name):
    rng = np.random.default_rng(1)
    F, y = rng.normal(size=6), rng.random(6)
    if name == "squared":
        return
    higher = F + np.repeat([0.0, 100.0], 3)  # another task's scores may be anywhere
    both, apart = mean_loss(name, F, y, [3, 3]), mean_loss(name, higher, y, [3, 3])
    assert apart[0] == pytest.approx(both[0]) and apart[1] == pytest.approx(both[1])
    assert mean_loss(name, F, np.full(6, 0.5), [3, 3])[0] == 0.0
