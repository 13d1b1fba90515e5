"""The quality of a ranking: what a cost model's scores are worth, from recorded seconds.

Source: Zheng et al. (2021), TenSet, NeurIPS Datasets and Benchmarks, section 5 (pairwise accuracy, top-k score).
Higher scores mean faster programs; a failure takes inf seconds. Of equal scores the earlier row counts as higher where
rows are chosen, and as half right where pairs are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Ranked", "best_of", "best_of_chance", "mean_interval", "pair_accuracy", "summary", "top_k"]


@dataclass(frozen=True)
class Ranked:
    """One operator's rows on one device, ranked by a model.

    Args:
        name: Of the operator.
        scores: `(n,)`, higher is better.
        seconds: `(n,)`, inf for failures.
        weight: How often a model runs it.
    """

    name: str
    scores: np.ndarray
    seconds: np.ndarray
    weight: float = 1.0


def pair_accuracy(scores: np.ndarray, seconds: np.ndarray, apart: float = 0.0) -> float:
    """Share of pairs in the right order, of those whose seconds differ; NaN where there is none.

    Args:
        apart: Pairs count if the slower takes more than `1 + apart` times the seconds of the faster.
    """
    fast, slow = seconds[:, None], seconds[None, :]
    counted = np.isfinite(fast) & (slow > fast * (1.0 + apart))
    if not counted.any():
        return math.nan
    ahead = np.sign(scores[:, None] - scores[None, :])
    return float((0.5 + 0.5 * ahead[counted]).mean())


def best_of(scores: np.ndarray, seconds: np.ndarray, k: int) -> float:
    """Best of all seconds / best among the k rows of highest score: 1 if the fastest is among them, 0 if all fail."""
    return float(seconds.min() / _best_seconds(scores, seconds, k))


def best_of_chance(seconds: np.ndarray, k: int) -> float:
    """The expected `best_of` of k rows drawn at random."""
    ordered, n = np.sort(seconds), len(seconds)
    k = min(k, n)
    # the i-th fastest is the best of k with probability C(n - i - 1, k - 1) / C(n, k)
    share = [math.comb(n - i - 1, k - 1) / math.comb(n, k) for i in range(n - k + 1)]
    return float(sum(p * ordered[0] / s for p, s in zip(share, ordered[: len(share)], strict=True)))


def top_k(ranked: Sequence[Ranked], k: int) -> float:
    """TenSet's top-k score: sum of weight x best seconds / sum of weight x best seconds among the k of highest score.

    Operators without a valid row do not count; one whose k rows all fail makes the score 0.
    """
    counted = [r for r in ranked if np.isfinite(r.seconds).any()]
    best = sum(r.weight * r.seconds.min() for r in counted)
    found = sum(r.weight * _best_seconds(r.scores, r.seconds, k) for r in counted)
    return float(best / found) if counted else math.nan


def _best_seconds(scores: np.ndarray, seconds: np.ndarray, k: int) -> float:
    return float(seconds[np.argsort(-scores, kind="stable")[:k]].min())


def mean_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """Mean over operators with its 95 % percentile bootstrap interval; NaN of none."""
    known = np.array([v for v in values if not math.isnan(v)])
    if not len(known):
        return math.nan, math.nan, math.nan
    rng = np.random.default_rng(0)
    means = known[rng.integers(0, len(known), (draws, len(known)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(known.mean()), float(low), float(high)


def summary(ranked: Sequence[Ranked]) -> dict[str, Any]:
    """All figures of some operators, as plain data without NaN: means over operators as `[mean, low, high]`."""
    usable = [r for r in ranked if len(r.seconds) and np.isfinite(r.seconds).any()]
    per_operator = {
        "pairs": [pair_accuracy(r.scores, r.seconds) for r in usable],
        "pairs 5 % apart": [pair_accuracy(r.scores, r.seconds, 0.05) for r in usable],
        "best of 16": [best_of(r.scores, r.seconds, 16) for r in usable],
        "best of 16 by chance": [best_of_chance(r.seconds, 16) for r in usable],
    }
    found: dict[str, Any] = {"operators": float(len(usable))}
    for name, values in per_operator.items():
        figures = mean_interval(values)
        if not math.isnan(figures[0]):
            found[name] = [round(f, 4) for f in figures]
    if usable:
        found |= {f"top-{k}": round(top_k(usable, k), 4) for k in (1, 5)}
    return found
