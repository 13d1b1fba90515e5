"""Candidates race the incumbent, and those that are surely slower leave early."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tt_spec.roles import Evaluator
from tt_spec.types import Bar, Timing

from tt_measure.adaptive import Adaptive
from tt_measure.fixed import Fixed

__all__ = ["Racing"]


class Racing:
    """Another evaluator, cut short as soon as the candidate is worse than the incumbent at a stated confidence.

    Run by run a wager on "slower" is multiplied by x_i / (slack * incumbent), at most 4. If the candidate's expected
    run took no longer than slack * incumbent, whatever went before, the wager could only lose on average, so that it
    would ever reach 1 / error with probability `error` at most (Ville's inequality): at that size the candidate is
    stopped. No noise model is needed, and looking after every run costs no confidence. The first run, which may be
    cold, is not judged; and when the wager has fallen to `error`, the other evaluator goes on undisturbed.

    Source: Ville (1939), Étude critique de la notion de collectif; Shafer (2021), Testing by Betting, JRSS A 184;
    racing: Maron and Moore (1994), Hoeffding Races, NIPS 6.

    Slack is what a disturbance may do that lasts as long as a timing, which no number of runs tells from a slow
    program: about twice the time where another process takes one of two cores. On 14 recordings of a machine that was
    busy beside them programs as fast as the incumbent were stopped in 40 % of the timings with slack 1, 12 % with 1.25,
    2.6 % with 2 (6.3 % on the worst recording), each with error 0.05, and the eventual best in none of 210 replays
    (`studies/adatune/study.py --only evaluators`). On a quiet machine 1.25 stopped 0.5 %.

    Args:
        inner: Times what stays in the race: "adaptive", "fixed" (without its `slow_factor`), or an evaluator.
            (default: "adaptive")
        error: How often a candidate that is as good as the incumbent may be stopped. (default: 0.05)
        slack: How many times slower than the incumbent still counts as equal. (default: 2.0)
    """

    MOST = 4.0

    def __init__(self, inner: Any = "adaptive", error: float = 0.05, slack: float = 2.0) -> None:
        self.inner, self.error, self.slack = inner, error, slack

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        if not (0 < self.error < 1 and self.slack >= 1):
            raise ValueError(f"error must lie between 0 and 1 and slack be at least 1, got {self.error}, {self.slack}")
        inner = self._inner()
        if not math.isfinite(bar.incumbent_s):
            return inner.evaluate(run, bar, rng)
        race = _Race(run, self.slack * bar.incumbent_s, math.log(1 / self.error), self.MOST)
        try:
            return inner.evaluate(race, bar, rng)
        except _Lost:
            slower = float(np.median(race.seconds)) / bar.incumbent_s
            why = f"stopped after {race.runs} runs: {slower:.1f} times slower than the incumbent"
            return Timing(tuple(race.seconds), race.runs, f"{why}, {1 - self.error:.0%} sure")

    def _inner(self) -> Any:
        if self.inner == "adaptive":
            return Adaptive()
        if self.inner == "fixed":
            return Fixed(slow_factor=0)
        if not isinstance(self.inner, Evaluator):
            raise ValueError(f"inner must be 'adaptive', 'fixed' or an evaluator, got {self.inner!r}")
        return self.inner


class _Lost(Exception):
    """The candidate is worse: leaves the inner evaluator."""


class _Race:
    """`run` of a candidate in the race.

    Args:
        par: Seconds of a run that leave the wager as it is.
        bound: Log of the wager at which the candidate has lost.
        most: Largest factor of one run.

    Attributes:
        seconds: Judged runs.
        runs: Executions in all, the first one included.
    """

    def __init__(self, run: Callable[[int], float], par: float, bound: float, most: float) -> None:
        self.run, self.par, self.bound, self.most = run, par, bound, most
        self.seconds: list[float] = []
        self.runs, self.wager = 0, 0.0

    def __call__(self, n: int) -> float:
        took, done = 0.0, 0
        while done < n:
            step = n - done if self.wager <= -self.bound else 1
            seconds = self.run(step)
            took, done = took + step * seconds, done + step
            self.runs += step
            if step == 1 and self.runs > 1:
                self._judge(seconds)
        return took / n

    def _judge(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.wager += math.log(min(seconds / self.par, self.most))
        if self.wager >= self.bound:
            raise _Lost
