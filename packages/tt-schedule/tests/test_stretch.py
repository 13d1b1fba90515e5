"""The stretch move against emcee's, number for number."""

import emcee
import numpy as np
import pytest
from tt_schedule.stretch import stretch


def gaussian(theta):
    return -0.5 * (theta**2).sum(axis=1)


def box(theta):
    return np.where((abs(theta) <= 1).all(axis=1), 0.0, -np.inf)


@pytest.mark.parametrize("density", [gaussian, box])
@pytest.mark.parametrize(("walkers", "p", "steps"), [(100, 5, 60), (10, 3, 200), (7, 2, 100)])
def test_the_chain_is_emcees(density, walkers, p, steps):
    start = 0.1 * np.random.default_rng(3).standard_normal((walkers, p))
    sampler = emcee.EnsembleSampler(walkers, p, density, vectorize=True)
    sampler.random_state = np.random.RandomState(11).get_state()
    sampler.run_mcmc(start, steps)
    chain, acceptance = stretch(density, start, steps, np.random.RandomState(11))
    np.testing.assert_array_equal(chain, sampler.get_chain())
    assert acceptance == pytest.approx(np.mean(sampler.acceptance_fraction)) and 0.1 < acceptance < 0.9


def test_the_start_stays_as_it_was():
    start = np.random.default_rng(0).standard_normal((10, 2))
    kept = start.copy()
    stretch(gaussian, start, 5, np.random.RandomState(0))
    assert (start == kept).all()
