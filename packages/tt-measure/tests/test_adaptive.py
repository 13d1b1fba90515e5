"""`Adaptive` on timers whose coefficient of variation is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_measure import Adaptive
from tt_measure.adaptive import variation
from tt_spec import Bar

RNG = np.random.default_rng(0)


class Timer:
    """A warm-up run of `warm_s`, then micro-batches of the given seconds per run; the last goes on for ever."""

    def __init__(self, *each_s, warm_s=None):
        self.each_s = [each_s[0] if warm_s is None else warm_s, *each_s]
        self.calls, self.spent_s = [], 0.0

    def __call__(self, n):
        each = self.each_s[min(len(self.calls), len(self.each_s) - 1)]
        self.calls.append(n)
        self.spent_s += n * each
        return each


def measured(adaptive, timer, **bar):
    timing = adaptive.evaluate(timer, Bar(**bar), RNG)
    assert timing.runs == sum(timer.calls)
    assert timing.seconds == tuple(timer.each_s[min(i, len(timer.each_s) - 1)] for i in range(1, len(timer.calls)))
    return timing


def test_a_constant_timer_needs_three_micro_batches():
    timer = Timer(1e-5)
    timing = measured(Adaptive(), timer)
    assert timer.calls == [1, 50, 50, 50]
    assert timing.why == "150 of 500 runs, 350 saved: CV 0.0% of 3 micro-batches"


def test_variation_by_hand():
    assert variation([1.0]) == 0.0
    assert variation([1.0, 3.0]) == pytest.approx(0.5)
    assert variation([10.0, 5.0, 10.0]) == pytest.approx(math.sqrt(50 / 9) / (25 / 3))
    assert variation([9.0, 1.0, 2.0, 3.0, 0.1], trim=True) == pytest.approx(math.sqrt(2 / 3) / 2)
    assert variation([9.0, 1.0, 2.0, 3.0], trim=True) == variation([9.0, 1.0, 2.0, 3.0])


def test_the_series_is_the_performance_since_the_beginning():
    """Micro-batches of 1, 3 and 2 units: i / Time(i) is 1, 2/4, 3/6, whose deviation is sqrt(1/18) about 2/3."""
    cv = math.sqrt(1 / 18) / (2 / 3)  # 0.35355
    three = Adaptive(number=150, threshold=cv + 1e-6)
    assert measured(three, Timer(1e-5, 3e-5, 2e-5)).why.endswith("CV 35.4% of 3 micro-batches")
    timer = Timer(1e-5, 3e-5, 2e-5)
    measured(Adaptive(number=200, threshold=cv - 1e-6), timer)
    assert timer.calls == [1, 50, 50, 50, 50]


@pytest.mark.parametrize(("growth", "batches"), [(1.1, 3), (1.2, 3), (1.4, 10)])
def test_a_drifting_timer(growth, batches):
    """Micro-batch k takes growth^k: Perf_i is i over the geometric sum; the rule's verdict is computed from there."""
    perf = [i * (growth - 1) / (growth**i - 1) for i in range(1, 11)]
    cv = [np.std(perf[:i]) / np.mean(perf[:i]) for i in range(1, 11)]
    first = next((i for i in range(3, 11) if cv[i - 1] < 0.1), 10)
    timer = Timer(*(1e-5 * growth**k for k in range(10)))
    measured(Adaptive(), timer)
    assert len(timer.calls) - 1 == first == batches


def test_a_noisy_timer_is_timed_longer_than_a_quiet_one():
    """An alternating timer, 1 and 3 units: Perf_i is 1/2 at even i and i / (2i - 1) at odd i; CV falls below 10 %
    at a micro-batch that the formula gives."""
    perf = [0.5 if i % 2 == 0 else i / (2 * i - 1) for i in range(1, 11)]
    expected = next((i for i in range(3, 11) if np.std(perf[:i]) / np.mean(perf[:i]) < 0.1), 10)
    timer = Timer(*[1e-5, 3e-5] * 5)
    measured(Adaptive(), timer)
    assert len(timer.calls) - 1 == expected > 3


def test_trimming_forgets_one_outlier_of_five():
    outlier = (5e-5, *[1e-5] * 9)
    plain, trimmed = Timer(*outlier), Timer(*outlier)
    measured(Adaptive(threshold=0.25), plain)
    measured(Adaptive(threshold=0.25, trim=True), trimmed)
    assert len(trimmed.calls) < len(plain.calls)


def test_the_cap_shrinks_runs_and_micro_batches_together():
    timer = Timer(0.01)
    timing = measured(Adaptive(most_s=0.2), timer)  # 20 runs fit: micro-batches of 2
    assert timer.calls == [1, 2, 2, 2] and timing.why.startswith("6 of 500 runs, 494 saved")
    timer = Timer(0.5)
    measured(Adaptive(most_s=0.2), timer, cap_s=10)
    assert timer.calls == [1, 1, 1, 1]


def test_a_cold_first_run_does_not_count():
    timer = Timer(1e-4, warm_s=0.1)
    timing = measured(Adaptive(most_s=0.2), timer)
    assert max(timing.seconds) == 1e-4
    assert timer.calls[:2] == [1, 1] and max(timer.calls) == 50  # 0.1 s a run seemed to allow 3 runs at first


def test_a_slow_program_is_its_warm_up_run():
    timer = Timer(6.0)
    timing = Adaptive().evaluate(timer, Bar(cap_s=10), RNG)
    assert timing.seconds == (6.0,) and timer.calls == [1] and "warm-up run is the timing" in timing.why


@settings(deadline=None)
@given(
    st.integers(1, 600),
    st.integers(1, 100),
    st.floats(0, 1),
    st.lists(st.floats(1e-7, 3), min_size=1, max_size=9),
    st.floats(0.05, 20),
)
def test_never_more_runs_than_asked_nor_past_the_cap(number, micro_batch, threshold, each_s, cap_s):
    timer = Timer(*each_s)
    timing = Adaptive(number, micro_batch, threshold).evaluate(timer, Bar(cap_s=cap_s), RNG)
    assert timing.runs == sum(timer.calls) <= 1 + number
    assert len(timing.seconds) >= 1 and max(timer.calls) <= micro_batch
    expected = timer.spent_s - timer.calls[-1] * timing.seconds[-1]  # before the last call, at the pace known then
    assert len(timer.calls) == 1 or expected <= cap_s


def test_refuses_what_makes_no_sense():
    with pytest.raises(ValueError, match="at least 1, got 0, 50 and 3"):
        Adaptive(number=0).evaluate(Timer(1.0), Bar(), RNG)
