"""Posteriors against curves whose parameters are known."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_schedule import Belief
from tt_schedule.belief import improvement, last_segment
from tt_schedule.curves import FAMILIES

PRIORS = {
    "log_power": lambda u: (u(0.4, 0.9), u(1.0, 4.0), u(-1.5, -0.4)),
    "pow2": lambda u: (u(0.1, 0.3), u(0.05, 0.3)),
    "pow4": lambda u: (u(0.5, 0.9), u(0.02, 0.2), u(2.0, 6.0), u(0.4, 1.5)),
    "loglinear": lambda u: (u(0.02, 0.1), u(0.1, 0.3)),
    "logloglinear": lambda u: (u(0.05, 0.2), u(1.1, 1.4)),
}


def observed(family, seed, n=48, noise=0.01, ahead=16):
    """Noisy performance `(n,)` of a curve with known parameters, and its truth at `n + ahead`."""
    rng = np.random.default_rng(seed)
    theta = np.array(PRIORS[family](rng.uniform))
    y = FAMILIES[family].f(np.arange(1.0, n + 1), theta)
    truth = FAMILIES[family].f(np.array([float(n + ahead)]), theta)[0]
    return np.maximum(y + noise * y[-1] * rng.standard_normal(n), 1e-3), truth


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_ninety_percent_intervals_hold_the_truth(family):
    held, seed = [], 0
    while len(held) < 100:
        seed += 1
        y, truth = observed(family, seed)
        if truth < y[-1]:  # the prior forbids what lies under the last observation
            continue
        fitted = Belief(family, jump=np.inf).fit(list(enumerate(y, 1)), len(y), len(y) + 16, 1.0, rng(seed))
        low, high = np.quantile(fitted.at(len(y) + 16), [0.05, 0.95])
        held.append(low <= truth <= high)
        assert not fitted.fallback
    assert 0.8 <= np.mean(held) <= 0.97


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_least_squares_find_the_parameters_without_noise(family):
    y, truth = observed(family, 3, noise=0.0)
    fitted = Belief(family, steps=101, jump=np.inf).fit(list(enumerate(y, 1)), len(y), len(y) + 16, 1.0, rng())
    assert fitted.at(len(y) + 16).mean() == pytest.approx(truth, rel=0.02)
    assert fitted.best == y[-1]


@settings(max_examples=8, deadline=None)
@given(
    family=st.sampled_from(list(FAMILIES)),
    steps=st.lists(st.tuples(st.integers(1, 9), st.floats(1.001, 1.6)), min_size=1, max_size=8),
    flat=st.integers(0, 60),
    ceiling=st.floats(1.0, 3.0),
)
def test_no_prediction_under_the_incumbent_or_over_the_ceiling(family, steps, flat, ceiling):
    trial, y, gains = 0, 0.02, []
    for wait, factor in steps:
        trial, y = trial + wait, y * factor
        gains.append((trial, y))
    trial += flat
    found = Belief(family, steps=150).fit(gains, trial, trial + 16, ceiling, rng())
    at = found.at(trial + 16)
    assert (at >= y * (1 - 1e-6)).all() and (at <= ceiling * (1 + 1e-6)).all()
    assert 0 <= found.improvement(trial + 16) <= ceiling


def test_what_still_rises_promises_more_than_what_stands_still():
    rising = [(n, 0.2 + 0.02 * n) for n in range(1, 17)]
    still = [(1, 0.2), (2, rising[-1][1])]
    gains = [Belief().fit(g, 16, 32, 1.0, rng()).improvement(32) for g in (rising, still)]
    assert gains[0] > 0.04 > 0.01 > gains[1]


@pytest.mark.parametrize("family", ["log_power", "pow2", "loglinear"])
def test_many_walkers_see_what_the_papers_ten_see_in_more_steps(family):
    gains = list(enumerate(np.maximum.accumulate(observed(family, 5)[0]), 1))
    few, many = (
        np.concatenate([Belief(family, *shape).fit(gains, 48, 64, 1.0, rng(k)).at(64) for k in range(5)])
        for shape in ((10, 1000), (100, 50))
    )
    assert many.mean() == pytest.approx(few.mean(), abs=0.4 * few.std())
    assert many.std() == pytest.approx(few.std(), rel=0.2)


def test_a_jump_begins_a_segment():
    gains = [(2, 0.1), (3, 0.115), (10, 0.2), (12, 0.21)]
    since, x, y = last_segment(gains, 15, 0.2)
    assert since == 9 and x.tolist() == [1, 2, 3, 4, 5, 6] and y.tolist() == [0.2, 0.2, 0.21, 0.21, 0.21, 0.21]
    since, x, y = last_segment(gains, 15, 1.0)
    assert since == 1 and len(x) == 14 and y[0] == 0.1
    assert len(last_segment([(1, 0.1)], 5000, 0.2)[1]) == 256


def test_walkers_start_where_the_prior_leaves_little_room():
    gains = [(1, 0.798), (2, 0.807), (6, 0.814), (10, 0.822), (29, 0.870), (30, 0.879), (36, 0.9)]  # SqueezeNet, live
    for seed in range(5):
        found = Belief().fit(gains, 42, 50, 1.125, rng(seed))
        assert not found.fallback and (found.at(50) >= 0.9).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("y", [1e-4, 1e-8])
def test_operators_far_under_the_peak_are_believed_in_too(family, y):
    for seed in range(4):
        gains, trials = [(1, y), (3, 1.1 * y), (9, 1.15 * y), (20, 1.16 * y)], 40 + 60 * seed
        found = Belief(family, steps=20).fit(gains, trials, trials + 16, 1.0, rng(seed))
        assert (found.at(trials + 16) >= 1.16 * y * (1 - 1e-3)).all()


def test_improvement_is_the_mean_positive_part():
    draws = np.random.default_rng(0).normal(0.3, 0.05, 400_000)
    for best in (0.2, 0.3, 0.36):
        assert improvement(0.3, 0.05, best) == pytest.approx(np.maximum(draws - best, 0).mean(), rel=0.02)
    assert improvement(0.3, 0.0, 0.2) == pytest.approx(0.1) and improvement(0.3, 0.0, 0.4) == 0.0


def test_a_chain_that_does_not_explore_is_not_believed(monkeypatch):
    gains = [(n, 0.2 + 0.02 * n) for n in range(1, 17)]
    for acceptance in (0.05, 0.95):
        monkeypatch.setattr(Belief, "_sample", lambda self, p, start, rng: (start, acceptance, 30.0))  # noqa: B023
        found = Belief().fit(gains, 16, 32, 1.0, rng())
        assert found.fallback == f"acceptance was {acceptance:.2f}" and found.acceptance == acceptance
        assert len(found.thetas) == 1 and found.at(32)[0] > gains[-1][1]


def test_an_update_is_deterministic_and_takes_less_than_half_a_second_of_one_core():
    gains = [(n, 0.2 + 0.1 * np.log(n)) for n in range(1, 200)]
    Belief().fit(gains, 200, 216, 1.0, rng())  # libraries load
    began = time.process_time()
    one = Belief().fit(gains, 200, 216, 1.0, rng())
    assert time.process_time() - began < 0.5
    assert (one.thetas == Belief().fit(gains, 200, 216, 1.0, rng()).thetas).all() and one.thetas.shape == (200, 3)
    assert one.acceptance is not None and 0.1 <= one.acceptance <= 0.9
    assert one.autocorrelation is not None and one.autocorrelation > 1
