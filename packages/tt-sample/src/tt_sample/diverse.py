"""Diversity-aware selection."""

from __future__ import annotations

import numpy as np
from tt_spec.space import Space
from tt_spec.types import Context, Proposal, Selection

__all__ = ["Diverse", "worth"]


class Diverse:
    """Greedily maximises the batch's scores plus the number of knob values that it covers.

        L(S) = sum_{s in S} f(s) + alpha/d * sum_j |union_{s in S} {s_j}|

    with f the score stretched to [0, 1] over the proposal, d the number of knobs, and inactive knobs covering
    nothing. L is monotone and submodular, so greedy reaches (1 - 1/e) of the best batch.

    Source: Chen et al. (2018), Learning to Optimize Tensor Programs, eq. 3 (arXiv:1805.08166), whose alpha is our
    alpha / d: the paper leaves its value open, and scaled this way it means the same in every space.

    Args:
        alpha: Worth of a row that brings a new value of every knob, in units of the distance between the
            proposal's best and worst score. At 1 such a row may come first however low its score, and one new value
            outweighs 1/d of the distance: a proposal is the top of a search, whose scores differ by less than the
            model's error. 0 picks by score alone. (default: 1.0)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        if not self.alpha >= 0:
            raise ValueError(f"alpha must not be negative, got {self.alpha}: use 0 to pick by score alone")
        fresh = ctx.fresh(proposal.codes)
        codes = proposal.codes[fresh]
        f = _stretched(proposal.scores[fresh])
        values, total = _values(ctx.space, codes)
        uncovered = np.ones(total + 1)
        uncovered[total] = 0.0
        alpha = self.alpha / max(len(ctx.space.knobs), 1)
        left = np.ones(len(codes), dtype=bool)
        picks = []
        for _ in range(min(n, len(codes))):
            gain = f + alpha * uncovered[values].sum(axis=1)
            pick = int(np.where(left, gain, -np.inf).argmax())
            picks.append(pick)
            left[pick] = False
            uncovered[values[pick]] = 0.0
        return Selection(codes[picks], {"covered": int(total - uncovered.sum())})


def worth(space: Space, codes: np.ndarray, f: np.ndarray, alpha: float) -> float:
    """L(S) of a batch: rows `(n, d)` with stretched scores `f` `(n,)`."""
    values, total = _values(space, codes)
    return float(f.sum() + alpha / max(len(space.knobs), 1) * len(set(values.ravel().tolist()) - {total}))


def _stretched(scores: np.ndarray) -> np.ndarray:
    """Scores mapped to [0, 1]; zeros where all are equal."""
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 0.0)
    return (scores - low) / (high - low) if high > low else np.zeros(len(scores))


def _values(space: Space, codes: np.ndarray) -> tuple[np.ndarray, int]:
    """The (knob, value) pair of each code as one index `(n, d)`, inactive knobs as the last, and that last index."""
    offsets = np.concatenate([[0], np.cumsum(space.shape)])
    return np.where(space.active(codes), codes + offsets[:-1], offsets[-1]), int(offsets[-1])
