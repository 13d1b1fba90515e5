"""Losses of a program's score, where the score is a sum over the program's statements ("pack-sum").

A program with statements s in S(P) scores F(P) = sum of f(x_s) over S(P), and a loss of F has the same gradient for
each of P's statements. Each loss here returns its value, its gradient dL/dF `(n,)` and its diagonal curvature
d2L/dF2 `(n,)`.

Source: Zheng et al. (2020), Ansor, OSDI, section 5.2 and its equation for the loss, arXiv:2006.06762; Burges (2010),
From RankNet to LambdaRank to LambdaMART, MSR-TR-2010-82; Wang et al. (2018), LambdaLoss, CIKM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["draw_pairs", "pairwise_logistic", "program_ids", "squared_error", "sum_statements"]

Loss = tuple[float, np.ndarray, np.ndarray]


def program_ids(offsets: np.ndarray) -> np.ndarray:
    """Index of the program that each statement belongs to, `(total,)`, from offsets `(n + 1,)`."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def sum_statements(values: np.ndarray, ids: np.ndarray, n: int) -> np.ndarray:
    """F `(n,)` from f `(total,)`; a program without statements sums to 0."""
    return np.bincount(ids, weights=values, minlength=n)


def squared_error(F: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Loss:
    """Ansor's loss: L = 1/2 sum_P w_P (F(P) - y_P)^2."""
    residual = F - y
    return 0.5 * float((weight * residual**2).sum()), weight * residual, weight


def pairwise_logistic(F: np.ndarray, better: np.ndarray, worse: np.ndarray, weight: np.ndarray) -> Loss:
    """RankNet's loss: L = sum over pairs of w log(1 + exp(-(F_better - F_worse))).

    Args:
        better, worse: `(pairs,)` int, indices into F with y_better > y_worse.
        weight: `(pairs,)`.
    """
    margin = F[better] - F[worse]
    small = np.exp(-np.abs(margin))  # cannot overflow
    loss = weight * (np.maximum(-margin, 0.0) + np.log1p(small))
    wrong = np.where(margin > 0, small, 1.0) / (1.0 + small)  # the logistic function of -margin
    slope, bend = weight * wrong, weight * wrong * (1.0 - wrong)
    n = len(F)
    grad = np.bincount(worse, slope, n) - np.bincount(better, slope, n)
    return float(loss.sum()), grad, np.bincount(worse, bend, n) + np.bincount(better, bend, n)


def draw_pairs(
    y: np.ndarray, sizes: Sequence[int], partners: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs `(better, worse)` of programs of one task with different labels, indices into y.

    A task of at most `2 * partners` programs gives every pair once; in a larger one each program draws `partners`
    others, so that time grows with n and not with n^2.

    Args:
        y: `(n,)` labels of all tasks, one task after the other.
        sizes: Number of programs of each task.
    """
    firsts, seconds, start = [], [], 0
    for n in sizes:
        if n <= 2 * partners:
            a, b = np.triu_indices(n, 1)
        else:
            a = np.repeat(np.arange(n), partners)
            b = (a + rng.integers(1, n, size=len(a))) % n
        firsts.append(a + start)
        seconds.append(b + start)
        start += n
    a, b = np.concatenate(firsts), np.concatenate(seconds)
    a, b = np.where(y[a] > y[b], a, b), np.where(y[a] > y[b], b, a)
    differ = y[a] > y[b]
    return a[differ], b[differ]
