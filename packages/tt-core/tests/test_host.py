"""What the host offers to plug-ins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_core.host import by_races, by_rounds


def test_a_state_that_comes_between_rounds_does_not_change_ratios():
    slow = np.array([1.0, 1.0, 2.0, 2.0, 2.0])
    one, other = 1.0 * slow, 1.25 * slow
    other[4] /= 2.0  # the state ends between the turns of the last round
    assert np.median(other) / np.median(one) == 0.625, "medians of each alone are of different states"
    np.testing.assert_allclose(by_rounds([one, other]), [2.0, 2.5])
    np.testing.assert_allclose(by_rounds([other, one]), [2.5, 2.0])


def test_what_is_hopeless_was_timed_once():
    np.testing.assert_allclose(by_rounds([[8.0], [1.0, 2.0, 3.0]]), [16.0, 2.0])


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=9), st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3))
def test_under_any_states_ratios_are_those_of_the_things(seconds, states):
    told = by_rounds([[s * state for state in states] for s in seconds])
    assert told == pytest.approx([s * float(np.median(states)) for s in seconds])


def test_one_race_of_three_may_be_of_a_bad_moment():
    """Ratios 2, 2 and 9 to the first; its seconds are 1, 3 and 2."""
    np.testing.assert_allclose(by_races([[1.0, 2.0], [3.0, 6.0], [2.0, 18.0]]), [2.0, 4.0])


def test_each_file_has_the_median_of_its_own_ratios():
    races = [[1.0, 2.0, 7.0], [1.0, 3.0, 5.0], [1.0, 9.0, 6.0]]
    np.testing.assert_allclose(by_races(races), [1.0, 3.0, 6.0])
