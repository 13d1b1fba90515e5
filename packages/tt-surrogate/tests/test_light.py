"""The piece `lightgbm`, with the real LightGBM."""

from __future__ import annotations

import numpy as np
import pytest
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.types import Statements
from tt_surrogate import LightGBM, weights
from tt_surrogate.weights import WeightsError

TASK = synthetic_task("a", knobs=5)


def data(n, rng):
    """Programs of 1 to 4 statements; a program's seconds are a sum over its statements."""
    counts = rng.integers(1, 5, n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.zeros((offsets[-1], 164))
    values[:, :6] = rng.integers(0, 9, (offsets[-1], 6))
    seconds = np.bincount(np.repeat(np.arange(n), counts), 1 + values[:, 0] + 2 * (values[:, 2] > 5))
    return Statements(values, offsets, np.zeros((n, 10))), seconds.min() / seconds


def pairs(model, X, y):
    F = model.predict(TASK, X).mean
    right = np.sign(F[:, None] - F[None, :])[y[:, None] > y[None, :]]
    return (0.5 + 0.5 * right).mean()


@pytest.fixture
def school():
    rng = np.random.default_rng(0)
    return [(synthetic_task(f"t{i}", knobs=4), *data(60, rng)) for i in range(5)]


def test_learns_beforehand_and_from_nothing(school):
    X, y = data(200, np.random.default_rng(9))
    before, nothing = LightGBM(rounds=60), LightGBM()
    losses = []
    before.pretrain(school, np.random.default_rng(0), lambda p: losses.append(p.loss) is None)
    nothing.fit(school, np.random.default_rng(0))
    assert pairs(before, X, y) > 0.85 and pairs(nothing, X, y) > 0.85
    assert len(losses) == 6 and losses == sorted(losses, reverse=True), "more trees, a smaller loss"


def test_fit_goes_on_from_what_was_learned(school):
    rng = np.random.default_rng(1)
    model = LightGBM(rounds=30, tune_rounds=40)
    model.pretrain(school, rng, lambda p: True)
    X, y = data(120, rng)
    y = 1.05 - y  # here the slow ones are fast: only own rows can tell
    wrong = pairs(model, X, y)
    model.fit([(TASK, X, y)], rng)
    assert wrong < 0.3 < 0.6 < pairs(model, X, y)


def test_weights_without_trees_are_one_line(tmp_path):
    for name, tensors in (
        ("text", {"trees": weights.from_bytes(b"not a booster"), "range": np.zeros(2)}),
        ("none", {"range": np.zeros(2)}),
        ("numbers", {"trees": np.zeros(9), "range": np.zeros(2)}),
    ):
        weights.write(tmp_path / name, weights.Weights("lightgbm", {}, tensors))
        with pytest.raises(WeightsError, match="train them again"):
            LightGBM(weights=tmp_path / name).prestart()


def test_options_reach_lightgbm(school):
    model = LightGBM(rounds=10, leaves=3)
    model.pretrain(school, np.random.default_rng(0), lambda p: True)
    assert model.base_ is not None
    assert "num_leaves=3" in model.base_.text and "[feature_fraction: 0.84]" in model.base_.text
