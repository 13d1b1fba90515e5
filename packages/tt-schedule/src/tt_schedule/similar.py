"""Conclusions from operators of one kind about each other."""

from __future__ import annotations

from collections.abc import Sequence

from tt_spec.types import TaskState

from tt_schedule.warmup import valid

__all__ = ["similar_s", "vain"]


def similar_s(states: Sequence[TaskState], s: TaskState, beta: float) -> float | None:
    """Seconds that one execution of `s` should take: `beta` times its FLOP at the best rate of its kind, itself
    included; None where nothing is known.

    An operator is of the kind of `s` where its own is the same and `s` can use every algorithm that it can: what
    Winograd reaches says nothing of a convolution that has no such program.

    Source: Zheng et al. (2020), Ansor, section 6 and appendix A (arXiv:2006.06762); the condition on algorithms is
    ours.
    """
    able = s.task.space.parts
    kind = (o for o in states if o.op == s.op and valid(o) and o.task.space.parts <= able)
    rate = max((o.flops / o.best_s for o in kind), default=0.0)
    return beta * s.flops / rate if rate > 0 and s.flops > 0 else None


def vain(s: TaskState, trials: int) -> int:
    """Whole slots of `trials` in this run since the last gain of 1 %."""
    return (s.trials - s.last_gain_trial) // trials
