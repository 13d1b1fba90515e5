"""The contract of evaluators."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from tt_spec.types import Bar, Timing

__all__ = ["EvaluatorContract"]


class EvaluatorContract:
    """Subclass it and override `piece`."""

    @pytest.fixture
    def piece(self) -> Any:
        """A fresh evaluator."""
        raise NotImplementedError("override the fixture `piece`")

    def test_times_what_ran(self, piece: Any) -> None:
        for true_s in (2e-6, 1e-3, 0.05):
            for bar in (Bar(), Bar(true_s, 1e9, 5.0), Bar(true_s / 20, 1e9, 5.0), Bar(true_s * 3, 0.0, 5.0)):
                program = _Program(true_s)
                t = copy.deepcopy(piece).evaluate(program.run, bar, np.random.default_rng(0))
                _check(t, program)
                assert 0.7 * true_s < np.median(t.seconds) < 1.4 * true_s, (
                    f"seconds are per execution: {true_s:g} expected, got {np.median(t.seconds):g}"
                )

    def test_counts_every_execution(self, piece: Any) -> None:
        program = _Program(1e-3)
        t = piece.evaluate(program.run, Bar(2e-3, 1e9), np.random.default_rng(0))
        assert t.runs == program.runs, f"runs counts executions, warm-up included: {program.runs}, got {t.runs}"

    def test_stays_within_the_time_allowed(self, piece: Any) -> None:
        for true_s, cap_s in ((1.0, 0.5), (1.0, 3.0), (0.01, 0.2), (1e-6, 0.05)):
            for incumbent_s in (math.inf, true_s, true_s * 2):
                program = _Program(true_s)
                t = copy.deepcopy(piece).evaluate(program.run, Bar(incumbent_s, 1e9, cap_s), np.random.default_rng(0))
                _check(t, program)
                assert program.spent_s <= cap_s + 1.2 * true_s, (
                    f"{program.spent_s:.3g} s were spent on runs of {true_s:g} s; {cap_s:g} s and one run are allowed"
                )

    def test_travels_to_a_worker(self, piece: Any) -> None:
        clone = pickle.loads(pickle.dumps(piece))
        for one in (clone, pickle.loads(pickle.dumps(clone))):
            program = _Program(1e-3)
            _check(one.evaluate(program.run, Bar(), np.random.default_rng(0)), program)

    def test_same_rng_same_timing(self, piece: Any) -> None:
        a, b = (
            e.evaluate(_Program(1e-3).run, Bar(1.1e-3, 1e9), np.random.default_rng(4))
            for e in (copy.deepcopy(piece), copy.deepcopy(piece))
        )
        assert a == b, "same runs and rng must give the same timing: draw from the rng argument only"

    def test_a_failing_run_is_not_swallowed(self, piece: Any) -> None:
        def crash(n: int) -> float:
            raise RuntimeError("the candidate crashed")

        with pytest.raises(RuntimeError, match="the candidate crashed"):
            piece.evaluate(crash, Bar(), np.random.default_rng(0))


class _Program:
    """Runs in simulated time with 2 % noise."""

    def __init__(self, true_s: float) -> None:
        self.true_s, self.runs, self.spent_s = true_s, 0, 0.0
        self.rng = np.random.default_rng(11)

    def run(self, n: int) -> float:
        assert n == int(n) and n >= 1, f"run(n) executes a whole number of times, at least once, got {n!r}"
        mean = self.true_s * max(1 + 0.02 * self.rng.standard_normal() / math.sqrt(n), 0.9)
        self.runs += int(n)
        self.spent_s += n * mean
        return mean


def _check(t: Timing, program: _Program) -> None:
    assert isinstance(t, Timing), f"evaluate returns a Timing, got {type(t).__name__}"
    assert isinstance(t.seconds, tuple) and len(t.seconds) >= 1, "seconds must be a tuple of at least one timing"
    assert all(math.isfinite(s) and s > 0 for s in t.seconds), f"seconds must be finite and positive, got {t.seconds}"
    assert len(t.seconds) <= t.runs <= program.runs, (
        f"runs counts executions made: {program.runs} were, {t.runs} are reported for {len(t.seconds)} timings"
    )
    assert isinstance(t.why, str), "why is text"
