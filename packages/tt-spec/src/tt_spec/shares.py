"""Where a model's time goes: the share of each task, and which tasks are heavy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tt_spec.types import Task

__all__ = ["heavy", "latencies", "shares"]


def latencies(tasks: Sequence[Task], best_s: Sequence[float]) -> np.ndarray:
    """Seconds of one execution of each task, `(n,)`.

    What was measured counts as it is. A task without a valid measurement (inf) takes its FLOP at the rate that the
    measured tasks of its operator reach together, or where there is none, all measured tasks, or 1 GFLOP/s.
    """
    best, flops = np.asarray(best_s, dtype=np.float64), np.array([t.flops for t in tasks], dtype=np.float64)
    measured = np.isfinite(best) & (flops > 0)
    ops = np.array([t.op for t in tasks])
    seconds = best.copy()
    for i in np.flatnonzero(~np.isfinite(best)):
        like = measured & (ops == ops[i])
        like = like if like.any() else measured
        rate = flops[like].sum() / best[like].sum() if like.any() else 1e9
        seconds[i] = flops[i] / rate
    return seconds


def shares(tasks: Sequence[Task], best_s: Sequence[float]) -> np.ndarray:
    """Share of each task in the model's latency, `(n,)`, in sum 1: `weight` times `latencies`."""
    weights = np.array([t.weight for t in tasks], dtype=np.float64)
    spent = weights * latencies(tasks, best_s)
    if not spent.sum() > 0:  # nothing but copies, nothing measured: calls are all that is known
        spent = weights
    return spent / max(spent.sum(), np.finfo(float).tiny)


def heavy(share: np.ndarray, portion: float = 0.95) -> np.ndarray:
    """The heavy tasks, `(n,)` bool: the fewest that together hold `portion` of the model's latency.

    The others are light: tuned as well as they can be, they change the model's latency by at most `1 - portion`.
    """
    order = np.argsort(-share, kind="stable")
    before = np.cumsum(share[order]) - share[order]
    found = np.zeros(len(share), dtype=bool)
    found[order] = before < portion - 1e-9
    return found
