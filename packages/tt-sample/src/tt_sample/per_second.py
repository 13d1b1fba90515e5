"""Gain per second."""

from __future__ import annotations

import math

import numpy as np
from tt_spec.types import Context, Proposal, Selection

__all__ = ["PerSecond", "expected_gain", "learned_seconds"]


class PerSecond:
    """The `n` rows of most expected gain per second of building and timing them.

        EI(x) / (build(x) / builders + run(x) + overhead)^power

    EI is the expected improvement over the best label, 1, of a normal distribution around the row's label: a line
    through the scores and labels of the rows measured, with a deviation of `doubt` at least. Seconds are learned from
    what the task's rows took (`Context.costs`): a ridge regression of their logarithms on the encoded knobs. Until
    `least` rows have told, and without a model, rows are picked by score alone.

    Source: tt; expected improvement per second is Snoek, Larochelle and Adams (2012), Practical Bayesian Optimization
    of Machine Learning Algorithms, section 3.2 (arXiv:1206.2944).

    Args:
        power: Of the seconds; 0 ranks by gain alone. (default: 1)
        doubt: Least deviation of a label. (default: 0.1)
        builders: Workers that build at once. (default: 2)
        overhead_s: Seconds of a row that are neither. (default: 0.01)
        least: Rows that must have told their seconds. (default: 8)
        ridge: Penalty. (default: 4)
    """

    def __init__(
        self,
        power: float = 1.0,
        doubt: float = 0.1,
        builders: int = 2,
        overhead_s: float = 0.01,
        least: int = 8,
        ridge: float = 4.0,
    ) -> None:
        self.power, self.doubt, self.builders = power, doubt, builders
        self.overhead_s, self.least, self.ridge = overhead_s, least, ridge

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        if self.power < 0 or not self.doubt > 0 or self.builders < 1 or self.overhead_s < 0 or not self.ridge > 0:
            raise ValueError("doubt, builders and ridge must be positive, power and overhead_s not negative")
        fresh = ctx.fresh(proposal.codes)
        codes, scores = proposal.codes[fresh], proposal.scores[fresh]
        seconds = self._seconds(ctx, codes) if ctx.fitted and len(codes) else None
        valid = np.flatnonzero(ctx.y > 0)
        if seconds is None or len(valid) < 2:
            return Selection(codes[np.argsort(-scores, kind="stable")][:n])
        gain = expected_gain(scores, ctx.score(ctx.rows[valid]), ctx.y[valid], self.doubt)
        order = np.lexsort((-scores, -gain / seconds**self.power))[:n]
        info = {"seconds": float(seconds.mean()), "seconds_chosen": float(seconds[order].mean())} if n else {}
        return Selection(codes[order], {name: round(s, 4) for name, s in info.items()})

    def _seconds(self, ctx: Context, codes: np.ndarray) -> np.ndarray | None:
        """Predicted seconds of rows `(m,)`; None while too few have told theirs."""
        told = np.flatnonzero(np.isfinite(ctx.costs).all(axis=1))
        if len(told) < max(2, self.least):
            return None
        X, Z = ctx.space.encode(ctx.rows[told]), ctx.space.encode(codes)
        build, run = (learned_seconds(X, ctx.costs[told, i], Z, self.ridge) for i in (0, 1))
        return build / self.builders + run + self.overhead_s


def expected_gain(scores: np.ndarray, known: np.ndarray, y: np.ndarray, doubt: float) -> np.ndarray:
    """Expected improvement over label 1 `(m,)` of rows with these scores.

    Args:
        known, y: Scores and labels of rows measured `(n,)`.
        doubt: Least deviation.
    """
    spread = float(known.var())
    slope = max(0.0, float(((known - known.mean()) * (y - y.mean())).mean()) / spread) if spread > 0 else 0.0
    rest = y - y.mean() - slope * (known - known.mean())
    mean, std = y.mean() + slope * (scores - known.mean()), max(doubt, float(rest.std()))
    z = (mean - 1.0) / std
    phi = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    Phi = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z])
    return std * np.maximum(z * Phi + phi, 1e-300)


def learned_seconds(X: np.ndarray, seconds: np.ndarray, Z: np.ndarray, ridge: float) -> np.ndarray:
    """Seconds of rows `Z` `(m, p)` by a ridge regression of log seconds of rows `X` `(n, p)`."""
    centre, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 1e-9, 1.0 / np.maximum(scale, 1e-9), 0.0)
    A, B, t = (X - centre) * scale, (Z - centre) * scale, np.log(seconds)
    if len(A) < A.shape[1]:
        weights = A.T @ np.linalg.solve(A @ A.T + ridge * np.eye(len(A)), t - t.mean())
    else:
        weights = np.linalg.solve(A.T @ A + ridge * np.eye(A.shape[1]), A.T @ (t - t.mean()))
    return np.exp(np.clip(t.mean() + B @ weights, t.min() - 1.0, t.max() + 1.0))
