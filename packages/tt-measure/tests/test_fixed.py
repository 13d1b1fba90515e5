"""`Fixed` against a program of known speed: which calls it makes."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_measure import Fixed
from tt_spec import Bar

RNG = np.random.default_rng(0)


class Program:
    """Takes `seconds` per execution, the first one `cold` times as long."""

    def __init__(self, seconds, cold=1.0):
        self.seconds, self.cold, self.calls, self.spent = seconds, cold, [], 0.0

    def __call__(self, n):
        each = self.seconds * (1.0 if self.calls else self.cold)
        self.calls.append(n)
        self.spent += n * each
        return each


def schedule(fixed, program, **bar):
    timing = fixed.evaluate(program, Bar(**bar), RNG)
    assert timing.runs == sum(program.calls)
    return program.calls, timing


def test_number_is_raised_until_a_repeat_lasts_long_enough():
    assert schedule(Fixed(3, 1, 100), Program(0.01))[0] == [1, 10]
    assert schedule(Fixed(3, 2, 0), Program(0.01))[0] == [1, 3, 3]
    assert schedule(Fixed(3, 1, 100), Program(0.2))[0] == [1, 3]
    assert schedule(Fixed(), Program(0.001))[0] == [1, 5, 5, 5]


def test_a_slow_warm_up_run_is_made_up_for_once():
    calls, timing = schedule(Fixed(1, 3, 10), Program(0.001, cold=5.0))
    assert calls == [1, 2, 8, 10, 10]
    assert timing.seconds == pytest.approx((0.001,) * 3) and timing.why == ""


def test_fewer_runs_within_the_cap():
    calls, timing = schedule(Fixed(3, 2, 0), Program(1.0), cap_s=5)
    assert calls == [1, 3] and "fewer runs" in timing.why
    calls, timing = schedule(Fixed(10, 3, 0), Program(1.0), cap_s=5)
    assert calls == [1, 4] and "fewer runs" in timing.why
    calls, timing = schedule(Fixed(), Program(6.0), cap_s=10)
    assert calls == [1] and timing.seconds == (6.0,) and "warm-up run is the timing" in timing.why


def test_slow_factor():
    calls, timing = schedule(Fixed(slow_factor=3), Program(0.004), incumbent_s=0.001)
    assert calls == [1, 1] and "4.0 times slower" in timing.why
    assert schedule(Fixed(slow_factor=3), Program(0.002), incumbent_s=0.001)[0] == [1, 3, 3, 3]
    assert schedule(Fixed(slow_factor=3), Program(0.004))[0] == [1, 2, 2, 2]
    assert schedule(Fixed(slow_factor=0), Program(0.004), incumbent_s=0.001)[0] == [1, 2, 2, 2]


def test_a_fast_program_whose_first_run_is_slow_is_timed_in_full():
    calls, timing = schedule(Fixed(slow_factor=3), Program(0.001, cold=9.0), incumbent_s=0.001)
    assert calls == [1, 1, 5, 5, 5]
    assert timing.seconds == pytest.approx((0.001,) * 3) and timing.why == ""


@given(
    st.integers(1, 20),
    st.integers(1, 5),
    st.floats(0, 200),
    st.floats(1e-7, 20),
    st.floats(1, 10),
    st.floats(0.1, 20),
)
def test_never_past_the_cap_by_more_than_one_run(number, repeat, min_repeat_ms, seconds, cold, cap_s):
    program = Program(seconds, cold)
    _, timing = schedule(Fixed(number, repeat, min_repeat_ms), program, cap_s=cap_s)
    assert 1 <= len(timing.seconds) <= repeat and all(math.isfinite(s) and s > 0 for s in timing.seconds)
    assert program.spent <= max(cap_s, seconds * cold) * (1 + 1e-9)
    if not timing.why:
        assert len(timing.seconds) == repeat and timing.runs >= 1 + number * repeat


def test_picklable_and_particular_about_its_options():
    assert vars(pickle.loads(pickle.dumps(Fixed(2, 4, 7.0, 3.0)))) == vars(Fixed(2, 4, 7.0, 3.0))
    with pytest.raises(ValueError, match="at least 1, got 0 and 3"):
        Fixed(number=0).evaluate(lambda n: 1.0, Bar(), RNG)
