"""Losses of programs' scores by name, for networks and trees alike.

"squared": 1/2 (F - y)^2, ATFormer's MSELoss. "logistic": its equation 4, log(1 + exp(-(F_i - F_j))) over pairs with
y_i > y_j. "lambda": the same, each pair weighed by LambdaRank. Pairs are of one slate, which holds programs of one task
on one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tt_surrogate.lambda_rank import lambda_weights
from tt_surrogate.pack_sum import pairwise_logistic, squared_error

__all__ = ["LOSSES", "LossName", "mean_loss"]

LossName = Literal["lambda", "logistic", "squared"]
LOSSES: tuple[LossName, ...] = ("lambda", "logistic", "squared")


def mean_loss(name: LossName, F: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> tuple[float, np.ndarray]:
    """The loss and dL/dF `(n,)`: a mean over programs, or over pairs by their weights; 0 where nothing differs.

    Args:
        F, y: Scores and labels `(n,)` float64, slate after slate.
        sizes: Programs of each slate.
    """
    if name == "squared":
        loss, grad, _ = squared_error(F, y, np.full(len(y), 1.0 / max(1, len(y))))
        return loss, grad
    better, worse = _pairs(y, sizes)
    if name == "lambda":
        slate = np.repeat(np.arange(len(sizes)), sizes)
        weight = lambda_weights(F, y, slate, better, worse)
    else:
        weight = np.ones(len(better))
    total = weight.sum()
    if not total > 0:
        return 0.0, np.zeros(len(y))
    loss, grad, _ = pairwise_logistic(F, better, worse, weight / total)
    return loss, grad


def _pairs(y: np.ndarray, sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """All pairs `(better, worse)` of one slate with different labels."""
    found, start = [np.zeros((2, 0), dtype=np.int64)], 0
    for n in sizes:
        found.append(np.stack(np.nonzero(y[start : start + n, None] > y[None, start : start + n])) + start)
        start += n
    better, worse = np.concatenate(found, axis=1)
    return better, worse
