"""The piece `xgb`, with the real XGBoost."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from tt_spec import PluginError, Plugins
from tt_spec.hooks import Entry
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.roles import Surrogate
from tt_spec.types import Statements
from tt_surrogate import XGB, hooks

COMBINATIONS = [(i, o) for i in ("knobs", "statements") for o in ("rank", "regression")]
TASK = synthetic_task("a", knobs=5)


def knob_data(n, rng, task=TASK):
    codes = task.space.sample(n, rng)
    return task.space.encode(codes), 1e-3 / SyntheticMeasurer().seconds(task, codes)


def statement_data(n, rng, most=7):
    """Programs of 1 to `most` statements; a program's seconds are a sum over its statements."""
    counts = rng.integers(1, most + 1, n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.zeros((offsets[-1], 164))
    values[:, :6] = rng.integers(0, 9, (offsets[-1], 6))
    cost = 1 + values[:, 0] + 0.15 * (values[:, 1] - 4) ** 2 + 2 * (values[:, 2] > 5)
    seconds = np.bincount(np.repeat(np.arange(n), counts), cost)
    return Statements(values, offsets, np.zeros((n, 10))), 1 - seconds / 120


def data(inputs, n, rng) -> Any:
    return knob_data(n, rng) if inputs == "knobs" else statement_data(n, rng)


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
def test_learns_a_known_function(inputs, objective):
    rng = np.random.default_rng(0)
    X, y = data(inputs, 600, rng)
    held, truth = data(inputs, 400, rng)
    model = XGB(inputs, objective)
    assert isinstance(model, Surrogate) and model.inputs == inputs and model.shared == (inputs == "statements")
    model.fit([(TASK, X, y)], rng)
    prediction = model.predict(TASK, held)
    assert spearmanr(prediction.mean, truth)[0] > 0.9
    assert (model.score(prediction, 1.0) == prediction.mean).all() and not prediction.std.any()
    trained = model.predict(TASK, X).mean
    if objective == "rank":
        assert trained.min() == 0 and trained.max() == 1
    else:
        assert np.abs(prediction.mean - truth).mean() < 0.05


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_programs_of_many_statements_do_not_diverge(objective):
    rng = np.random.default_rng(0)
    X, y = statement_data(200, rng, most=60)
    model = XGB("statements", objective, eta=0.3)
    model.fit([(TASK, X, (y - y.min()) / np.ptp(y))], rng)
    mean = model.predict(TASK, X).mean
    assert np.abs(mean).max() < 2 and spearmanr(mean, y)[0] > 0.9


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
def test_failures_rank_last(inputs, objective):
    rng = np.random.default_rng(1)
    X, y = data(inputs, 600, rng)
    held, _ = data(inputs, 300, rng)

    def fails(X):
        if inputs == "knobs":
            return X[:, 0] > 2.5
        return np.maximum.reduceat(X.values[:, 4], X.offsets[:-1]) == 8

    model = XGB(inputs, objective)
    model.fit([(TASK, X, np.where(fails(X), 0.0, 0.3 + 0.7 * y))], rng)
    mean, bad = model.predict(TASK, held).mean, fails(held)
    assert 20 < bad.sum() < 280
    assert (mean[bad][:, None] < mean[~bad][None]).mean() > 0.95


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
def test_same_seed_same_scores(inputs, objective):
    X, y = data(inputs, 300, np.random.default_rng(2))

    def scores(seed):
        model = XGB(inputs, objective)
        model.fit([(TASK, X, y)], np.random.default_rng(seed))
        again = pickle.loads(pickle.dumps(model)).predict(TASK, X).mean
        assert (again == model.predict(TASK, X).mean).all()
        return again

    assert (scores(7) == scores(7)).all()


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_two_tasks_share_a_model_of_statements(objective):
    rng = np.random.default_rng(3)
    other = synthetic_task("b", knobs=3)
    (X1, y1), (X2, y2) = statement_data(400, rng), statement_data(30, rng)
    held, truth = statement_data(300, rng)
    model, alone = XGB("statements", objective), XGB("statements", objective)
    scale = 0.2 if objective == "rank" else 1.0  # ranking must not mind
    model.fit([(TASK, X1, y1), (other, X2, scale * y2)], rng)
    alone.fit([(other, X2, y2)], rng)
    if objective == "rank":
        shared_rho, alone_rho = (spearmanr(m.predict(other, held).mean, truth)[0] for m in (model, alone))
        assert shared_rho > 0.9 and shared_rho > alone_rho
        second = model.predict(other, X2).mean
        assert second.min() == 0 and second.max() == 1
    stranger = synthetic_task("c")
    assert spearmanr(model.predict(stranger, held).mean, truth)[0] > 0.85


def test_knob_models_are_shared_only_where_columns_agree():
    rng = np.random.default_rng(4)
    like, unlike = synthetic_task("like", knobs=5, choices=6), synthetic_task("unlike", knobs=3)
    groups = [(t, *knob_data(200, rng, t)) for t in (TASK, unlike)]
    model = XGB(shared=True)
    model.fit(groups, rng)
    for task, X, y in groups:
        assert spearmanr(model.predict(task, X).mean, y)[0] > 0.9
    assert model.predict(like, knob_data(50, rng, like)[0]).mean.any()
    assert not model.predict(synthetic_task("new", knobs=4), np.zeros((3, 4))).mean.any()


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
def test_nothing_to_learn_predicts_zeros(inputs, objective):
    rng = np.random.default_rng(5)
    X, y = data(inputs, 20, rng)
    model = XGB(inputs, objective)
    for groups in (None, [], [(TASK, X[:0], y[:0])], [(TASK, X, 0 * y)], [(TASK, X, np.full(20, np.nan))]):
        if groups is not None:
            model.fit(groups, rng)
        prediction = model.predict(TASK, X)
        assert prediction.mean.tolist() == prediction.std.tolist() == [0.0] * 20


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_or_equal_labels(inputs, objective, n):
    rng = np.random.default_rng(6)
    X, y = data(inputs, n, rng)
    for labels in (y, np.ones(n)):
        model = XGB(inputs, objective)
        model.fit([(TASK, X, labels)], rng)
        assert np.isfinite(model.predict(TASK, X).mean).all()
        assert len(model.predict(TASK, X[:0]).mean) == 0


@pytest.mark.parametrize(("inputs", "objective"), COMBINATIONS)
def test_features_that_are_not_finite(inputs, objective):
    rng = np.random.default_rng(7)
    X, y = data(inputs, 300, rng)
    rows = X if inputs == "knobs" else X.values
    rows[::17, 1], rows[::19, 2], rows[::23, 3], rows[5, 4] = np.nan, np.inf, -np.inf, 1e300
    y[3], y[4] = np.nan, np.inf
    model = XGB(inputs, objective)
    model.fit([(TASK, X, y)], rng)
    assert np.isfinite(model.predict(TASK, X).mean).all()


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_programs_without_statements(objective):
    rng = np.random.default_rng(8)
    X, y = statement_data(50, rng)
    empty = Statements(X.values, np.concatenate([[0, 0], X.offsets[1:]]), np.zeros((51, 10)))
    model = XGB("statements", objective)
    model.fit([(TASK, empty, np.concatenate([[0], y]))], rng)
    assert np.isfinite(model.predict(TASK, empty).mean).all()
    model.fit([(TASK, Statements(X.values[:0], np.zeros(4, dtype=int), np.zeros((3, 10))), y[:3])], rng)
    assert np.isfinite(model.predict(TASK, empty).mean).all()


def test_operator_features_count_only_if_there_are_any():
    rng = np.random.default_rng(9)
    X, _ = statement_data(300, rng)
    operator = np.zeros((300, 10))
    operator[:, 3] = rng.integers(0, 2, 300)
    X = Statements(X.values, X.offsets, operator)
    model = XGB("statements", "regression")
    model.fit([(TASK, X, 0.2 + 0.6 * operator[:, 3])], rng)
    mean = model.predict(TASK, X).mean
    assert mean[operator[:, 3] == 1].min() > mean[operator[:, 3] == 0].max()


@pytest.mark.parametrize("options", [{"inputs": "pixels"}, {"objective": "guess"}])
def test_unknown_options_are_named(options):
    with pytest.raises(ValueError, match=r"must be 'knobs' or|must be 'rank' or"):
        XGB(**options)


def test_found_by_name():
    plugins = Plugins()
    assert plugins.find("surrogate", "xgb").distribution == "tt-surrogate"
    assert plugins.build("surrogate", "xgb", inputs="statements").shared
    assert all(isinstance(e, Entry) and e.source and e.requires for e in hooks.tt_surrogates())


def test_without_xgboost_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    plugins = Plugins([("tt-surrogate", hooks)], installed=False)
    with pytest.raises(PluginError, match=r"'xgb' is not installed.*pip install 'tt-surrogate\[xgboost\]'"):
        plugins.build("surrogate", "xgb")


def test_importing_loads_no_learning_library():
    code = "import sys, tt_surrogate as t; t.XGB(); bad = {'xgboost', 'sklearn', 'torch', 'scipy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"{code}; assert not bad, bad"]).returncode == 0


def test_an_annealing_run_is_cheap():
    """500 steps of 128 rows after a fit on 1,000; generous, because CI machines are slow (here: 0.2 s)."""
    rng = np.random.default_rng(10)
    X, y = knob_data(1000, rng)
    model = XGB()
    model.fit([(TASK, X, y)], rng)
    start = time.perf_counter()
    for _ in range(500):
        model.predict(TASK, X[:128])
    assert time.perf_counter() - start < 2.5
