"""The rules by which candidates are built, timed and judged."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from tt_spec.roles import Evaluator
from tt_spec.types import Bar, Task, Timing
from tt_spec.windows import Reference, Seen

__all__ = ["Builds", "Rules", "Terms", "Verdict", "run_limit_s"]

USUAL, LONG, LEAST_S = 16, 25.0, 2.5
"""Builds after which it is known how long they take here, times the median that one may take, and seconds that each
may."""


@dataclass
class Builds:
    """How long builds take in this run.

    A program that takes far longer to build than others is one that unrolls too much. Of 19,240 candidates six took 2
    to 4 s (median 0.09), and ran for 1.3 to 30 times as long as their task's best; two took 20 and 30 s. Meanwhile
    nothing is timed.
    """

    seconds: list[float] = field(default_factory=list)

    def tell(self, build_s: float) -> None:
        """A build that went well."""
        bisect.insort(self.seconds, build_s)

    def limit_s(self, most_s: float) -> float:
        """Seconds that a build may take, `most_s` at most."""
        if len(self.seconds) < USUAL:
            return most_s
        return min(most_s, max(LEAST_S, LONG * self.seconds[len(self.seconds) // 2]))


SLOWER, LEAST_RUN_S = 1000.0, 5.0
"""Times the best program's seconds that an evaluation may take, and seconds that each may."""


def run_limit_s(most_s: float, bar: Bar) -> float:
    """Seconds that an evaluation may take, `most_s` at most: once a task has a program, one that is hundreds of times
    slower is not waited for. Of a softmax five had taken 95 of a search's 151 s."""
    return min(most_s, max(LEAST_RUN_S, SLOWER * bar.incumbent_s))


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
        builds: How long builds take; learns from every one.
    """

    build_s: float
    run_s: float
    check_s: float
    verify: bool
    chunk: int
    evaluator: Evaluator
    seed: int
    reference: Reference
    builds: Builds

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
