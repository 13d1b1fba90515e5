"""The rules by which candidates are built, timed and judged."""

from __future__ import annotations

from dataclasses import dataclass

from tt_spec.roles import Evaluator
from tt_spec.types import Task, Timing
from tt_spec.windows import Reference, Seen

__all__ = ["Rules", "Terms", "Verdict"]


@dataclass(frozen=True)
class Rules:
    """The rules by which a batch is measured.

    Args:
        build_s, run_s, check_s: Limits of one candidate's build, evaluation and check, seconds.
        verify: Whether candidates that beat the incumbent must show right results.
        chunk: Built candidates per worker before timing starts.
        evaluator: Decides the runs of a candidate, in the workers.
        seed: Root of the evaluator's randomness.
        reference: The machine's state in which timings count; learns from every timing.
    """

    build_s: float
    run_s: float
    check_s: float
    verify: bool
    chunk: int
    evaluator: Evaluator
    seed: int
    reference: Reference

    def terms(self, task: Task) -> Terms:
        """The terms for a candidate of the task, now."""
        state = self.reference
        limits = self.verify, self.run_s, self.check_s
        return Terms(*limits, state.seconds, state.sensitivity(task.key), state.wait_s())


@dataclass(frozen=True)
class Verdict:
    """A worker's answer after timing a candidate.

    Args:
        timing: The evaluator's.
        run_s: Seconds that it took.
        wrong: The fault in its outputs, or None; None too if nobody looked.
        seen: The states of the machine that it met, where a probe tells.
        kept: Names of the task's programs that the worker goes on holding.
    """

    timing: Timing
    run_s: float
    wrong: str | None
    seen: Seen | None
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Terms:
    """The part of the rules that a worker needs to judge a candidate.

    Args:
        verify: Whether one that beats the incumbent must show right results.
        run_s, check_s: Limits of its evaluation and check, seconds.
        reference_s: The probe's seconds in the machine's reference state; None: it is timed as it comes.
        sensitivity, wait_s: See `tt_spec.windows.Reference`.
    """

    verify: bool
    run_s: float
    check_s: float
    reference_s: float | None = None
    sensitivity: float = 1.0
    wait_s: float = 0.03
