"""Expected improvement by hand and by its integral."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from tt_surrogate.improvement import expected_improvement


def test_by_hand():
    """Z = -1/2, 2, 0: Phi 0.3085375, 0.9772499, 0.5; phi 0.3520653, 0.0539910, 0.3989423."""
    mean, std = np.array([0.9, 1.2, 1.0]), np.array([0.2, 0.1, 0.3])
    wanted = [
        -0.1 * 0.3085375 + 0.2 * 0.3520653,
        0.2 * 0.9772499 + 0.1 * 0.0539910,
        0.3 * 0.3989423,
    ]
    assert expected_improvement(mean, std, 1.0) == pytest.approx(wanted, abs=1e-7)


def test_without_doubt_it_is_the_gain():
    with np.errstate(all="raise"):
        got = expected_improvement(np.array([0.7, 1.0, 1.25]), np.zeros(3), 1.0)
    assert got.tolist() == [0.0, 0.0, 0.25]


@settings(deadline=None, max_examples=40)
@given(st.floats(-2, 2), st.floats(0.01, 2), st.floats(-2, 2))
def test_it_is_the_expected_gain(mean, std, best):
    ei = expected_improvement(np.array([mean]), np.array([std]), best)[0]
    law = norm(mean, std)
    top = max(best, mean) + 9 * std
    wanted, _ = quad(lambda x: (x - best) * law.pdf(x), best, top, points=[min(max(mean, best), top)])
    assert ei == pytest.approx(wanted, abs=1e-7)
    assert ei >= max(0.0, mean - best) - 1e-12


@settings(deadline=None, max_examples=40)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_doubt_and_a_higher_mean_never_lower_it(mean, std, more):
    a, b, c = expected_improvement(np.array([mean, mean, mean + more]), np.array([std, std + more, std]), 1.0)
    assert b >= a - 1e-12 and c >= a - 1e-12
