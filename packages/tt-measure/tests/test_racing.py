"""`Racing`: when a candidate is stopped, and how often wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tt_measure import Adaptive, Fixed, Racing
from tt_spec import Bar

RNG = np.random.default_rng(0)


class Program:
    """Runs one by one from a generator of seconds; counts them."""

    def __init__(self, draw):
        self.draw, self.runs = draw, 0

    def __call__(self, n):
        self.runs += n
        return float(np.mean([self.draw() for _ in range(n)]))


@pytest.mark.parametrize(("slower", "judged"), [(2.5, 14), (3, 8), (4, 5), (6, 3), (100, 3)])
def test_a_constant_candidate_is_stopped_when_the_wager_is_won(slower, judged):
    """(slower / slack)^k >= 1 / 0.05, each factor at most 4."""
    assert judged == math.ceil(math.log(20) / math.log(min(slower / 2, 4)))
    program = Program(lambda: slower * 1e-3)
    timing = Racing(error=0.05, slack=2.0).evaluate(program, Bar(1e-3), RNG)
    assert timing.runs == program.runs == 1 + judged  # the first run is not judged
    assert timing.seconds == pytest.approx([slower * 1e-3] * judged)
    assert timing.why == f"stopped after {1 + judged} runs: {slower:.1f} times slower than the incumbent, 95% sure"


@pytest.mark.parametrize("inner", [Adaptive(), Fixed(slow_factor=0), Fixed(1, 5, 2, 0)])
def test_what_stays_is_timed_as_the_other_evaluator_times_it(inner):
    for slower in (0.5, 1.9):
        plain = inner.evaluate(Program(lambda s=slower: s * 1e-3), Bar(1e-3), RNG)
        raced = Racing(inner).evaluate(Program(lambda s=slower: s * 1e-3), Bar(1e-3), RNG)
        assert raced.runs == plain.runs and raced.why == plain.why
        assert raced.seconds == pytest.approx(plain.seconds)


def test_no_incumbent_no_race():
    program = Program(lambda: 5.0e-3)
    assert Racing().evaluate(program, Bar(), RNG) == Adaptive().evaluate(Program(lambda: 5.0e-3), Bar(), RNG)


def test_a_cold_first_run_is_not_judged():
    seconds = iter([1.0, *[1e-3] * 1000])
    timing = Racing().evaluate(Program(lambda: next(seconds)), Bar(1e-3), RNG)
    assert "stopped" not in timing.why and max(timing.seconds) == pytest.approx(1e-3)


@pytest.mark.parametrize("error", [0.05, 0.2])
@pytest.mark.parametrize("shape", [1.0, 8.0])
def test_an_equal_is_stopped_no_more_often_than_stated(error, shape):
    """At the border of the claim: the expected run takes exactly slack * incumbent. With 1500 timings a true rate of
    `error` stays under the bound with probability 0.999."""
    rng = np.random.default_rng(1)
    trials = 1500
    lost = sum(
        "stopped"
        in Racing(Fixed(50, 2, 0, 0), error, slack=1.0)
        .evaluate(Program(lambda: rng.gamma(shape, 1e-3 / shape)), Bar(1e-3), rng)
        .why
        for _ in range(trials)
    )
    assert lost / trials <= error + 3.1 * math.sqrt(error * (1 - error) / trials)
    assert lost > 0


def test_names_and_refusals():
    assert Racing("fixed").evaluate(Program(lambda: 1e-3), Bar(1e-3), RNG).runs == 1 + 3 * 5
    for bad, what in (
        (Racing("slow"), "got 'slow'"),
        (Racing(error=0.0), "between 0 and 1"),
        (Racing(slack=0.5), "0.5"),
    ):
        with pytest.raises(ValueError, match=what):
            bad.evaluate(Program(lambda: 1e-3), Bar(1e-3), RNG)
