"""The forest's deviations: by definition, and against known noise."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from forestci import random_forest_error
from sklearn.ensemble import RandomForestRegressor
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SurrogateContract
from tt_surrogate import ForestEI, GaussianProcess
from tt_surrogate.improvement import expected_improvement

TASK = synthetic_task(knobs=4)
NOISE = 0.1


@pytest.mark.parametrize("uncertainty", ["trees", "forestci"])
@pytest.mark.parametrize("calibrate", [False, True])
class TestForest(SurrogateContract):
    @pytest.fixture
    def piece(self, uncertainty, calibrate):
        return ForestEI(uncertainty=uncertainty, calibrate=calibrate)


class TestGaussianProcess(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return GaussianProcess(steps=5)


def noisy(n, seed, noise=NOISE):
    """`n` rows of a smooth function of 4 columns, with normal noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 4))
    return X, 0.3 + 0.3 * np.sin(3 * X[:, 0]) * X[:, 1] + 0.1 * X[:, 2] + noise * rng.standard_normal(n)


def fitted(model, n=300, seed=0, noise=NOISE):
    X, y = noisy(n, seed, noise)
    model.fit([(TASK, X, y)], np.random.default_rng(seed))
    return model


def forest_of(n=300, trees=10):
    """The same forest by scikit-learn alone, its bootstrap counts `(n, B)` and its trees' predictions."""
    X, y = noisy(n, 0)
    seed = int(np.random.default_rng(0).integers(2**31))
    forest = RandomForestRegressor(trees, max_features=4, random_state=seed).fit(X.astype(np.float32), y)
    counts = np.stack([np.bincount(drawn, minlength=n) for drawn in forest.estimators_samples_], axis=1)
    return forest, counts


def test_mean_and_spread_of_the_trees():
    forest, _ = forest_of()
    fresh = noisy(50, 1)[0].astype(np.float32)
    each = np.stack([tree.predict(fresh) for tree in forest.estimators_])
    got = fitted(ForestEI(calibrate=False)).predict(TASK, fresh)
    assert got.mean == pytest.approx(forest.predict(fresh))
    assert got.std == pytest.approx(np.sqrt(((each - each.mean(axis=0)) ** 2).mean(axis=0)))


def test_forestci_is_the_infinitesimal_jackknife_and_never_negative():
    """V = sum_i Cov_b(N_bi, t_b)^2 less its Monte Carlo bias, n / B^2 sum_b (t_b - mean)^2 times the counts' variance
    (Wager, Hastie and Efron 2014, equations 5 and 7)."""
    forest, counts = forest_of()
    n, B = counts.shape
    fresh = noisy(400, 1)[0].astype(np.float32)
    t = np.stack([tree.predict(fresh) for tree in forest.estimators_], axis=1)
    t -= t.mean(axis=1, keepdims=True)
    covariance = (counts - 1) @ t.T / B
    bias = n * counts.var(axis=1).mean() * (t**2).mean(axis=1) / B
    V = (covariance**2).sum(axis=0) - bias
    assert V.min() < 0 < V.max()
    got = fitted(ForestEI(uncertainty="forestci", calibrate=False)).predict(TASK, fresh)
    assert got.std == pytest.approx(np.sqrt(np.maximum(V, 0)))


@pytest.mark.parametrize("uncertainty", ["trees", "forestci"])
def test_calibrated_deviations_are_as_large_as_the_errors(uncertainty):
    """On fresh observations, over three forests: RMS(error) / RMS(deviation) within 15 % of 1; and no less than the
    noise, which nothing could predict."""
    ratios, sigmas = [], []
    for seed in range(3):
        X, y = noisy(1500, 100 + seed)
        p = fitted(ForestEI(uncertainty=uncertainty, calibrate=True), seed=seed).predict(TASK, X)
        sigmas.append(np.sqrt((p.std**2).mean()))
        ratios.append(np.sqrt(((y - p.mean) ** 2).mean()) / sigmas[-1])
    assert 0.85 < np.mean(ratios) < 1.15
    assert NOISE < np.mean(sigmas) < 1.4 * NOISE


def test_uncalibrated_forestci_with_few_trees_overstates():
    X, y = noisy(1500, 1)
    p = fitted(ForestEI(uncertainty="forestci", calibrate=False), n=1000).predict(TASK, X)
    assert np.sqrt((p.std**2).mean()) > 1.5 * np.sqrt(((y - p.mean) ** 2).mean())


def test_the_process_finds_the_noise_and_leaves_it_out():
    X, y = noisy(1000, 1, noise=0.0)
    model = fitted(GaussianProcess(), noise=NOISE)
    p = model.predict(TASK, X)
    error = np.sqrt(((y - p.mean) ** 2).mean())  # against the function, not against observations
    assert error < 0.5 * NOISE
    assert 0.5 * error < np.sqrt((p.std**2).mean()) < 2 * error
    assert p.std.mean() < fitted(GaussianProcess(), n=40).predict(TASK, X).std.mean()


def test_the_process_learns_from_the_best_rows_of_many():
    X, y = noisy(500, 0)
    model = GaussianProcess(rows=60)
    model.fit([(TASK, X, y)], np.random.default_rng(0))
    learned = model.models_[TASK.key].process.X_train_
    model.fit([(TASK, X[np.argsort(-y)[:30]], np.sort(y)[::-1][:30])], np.random.default_rng(0))
    assert len(learned) == 60 and len(model.models_[TASK.key].process.X_train_) == 30


@pytest.mark.parametrize("model", [ForestEI(), GaussianProcess()])
def test_score_is_expected_improvement_over_the_best(model):
    p = fitted(model).predict(TASK, noisy(20, 1)[0])
    assert np.array_equal(model.score(p, 0.7), expected_improvement(p.mean, p.std, 0.7))
    assert (model.score(p, 0.7) > model.score(p, 0.8)).all()


def test_the_jackknife_is_forestcis_own_without_its_matrix():
    """All of 3000 by 4000 rows would take 96 MB."""
    X, y = noisy(3000, 0)
    fresh = noisy(4000, 1)[0].astype(np.float32)
    model = fitted(ForestEI(uncertainty="forestci", calibrate=False), n=3000)
    tracemalloc.start()
    try:
        got = model.predict(TASK, fresh)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10e6
    forest = RandomForestRegressor(10, max_features=4, random_state=int(np.random.default_rng(0).integers(2**31)))
    forest.fit(X.astype(np.float32), y)
    theirs = random_forest_error(forest, X.shape, fresh[:200], calibrate=False)
    assert got.std[:200] == pytest.approx(np.sqrt(np.maximum(theirs, 0)))


def test_refuses_an_unknown_uncertainty():
    with pytest.raises(ValueError, match="'trees' or 'forestci', got 'jackknife'"):
        ForestEI(uncertainty="jackknife")  # type: ignore[arg-type]
