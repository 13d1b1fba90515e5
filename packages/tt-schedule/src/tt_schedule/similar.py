"""Conclusions from operators of one kind about each other."""

from __future__ import annotations

from collections.abc import Sequence

from tt_spec.types import TaskState

from tt_schedule.warmup import valid

__all__ = ["similar_s"]


def similar_s(states: Sequence[TaskState], s: TaskState, beta: float) -> float | None:
    """Seconds that one execution of `s` should take: `beta` times its FLOP at the best rate of its kind, itself
    included; None where nothing is known.

    Source: Zheng et al. (2020), Ansor, section 6 and appendix A (arXiv:2006.06762).
    """
    rate = max((o.flops / o.best_s for o in states if o.op == s.op and valid(o)), default=0.0)
    return beta * s.flops / rate if rate > 0 and s.flops > 0 else None
