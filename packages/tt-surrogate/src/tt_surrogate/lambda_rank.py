"""LambdaRank: pairs weigh as much as exchanging them would change the ranking's quality.

Source: Burges (2010), From RankNet to LambdaRank to LambdaMART, MSR-TR-2010-82; Wang et al. (2018), LambdaLoss, CIKM;
TenSet and TLP train with it.
"""

from __future__ import annotations

import numpy as np

__all__ = ["lambda_weights"]


def lambda_weights(
    F: np.ndarray, y: np.ndarray, slate: np.ndarray, better: np.ndarray, worse: np.ndarray
) -> np.ndarray:
    """w_ij = |1/D_i - 1/D_j| |G_i - G_j| of each pair: D = log2(1 + rank), G = (2^y - 1) / maxDCG.

    The rank is that of the score F within its slate, 1 for the highest; maxDCG is the sum of (2^y - 1) / D in the order
    of y, so that every slate's best ranking is worth 1. A slate whose labels are all 0 has weights of 0.

    Args:
        F, y: Scores and labels `(n,)`.
        slate: `(n,)` int, not decreasing: programs that are ranked together.
        better, worse: `(pairs,)` int, of one slate each.
    """
    gain = 2.0**y - 1.0
    most = np.bincount(slate, gain / _discount(y, slate))
    gain = gain / np.where(most > 0, most, 1.0)[slate]
    share = 1.0 / _discount(F, slate)
    return np.abs(share[better] - share[worse]) * np.abs(gain[better] - gain[worse])


def _discount(values: np.ndarray, slate: np.ndarray) -> np.ndarray:
    """log2(1 + rank) of each value in its slate, highest first."""
    order = np.lexsort((-values, slate))
    first = np.searchsorted(slate, slate)  # where each one's slate begins
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - first[order] + 1
    return np.log2(1.0 + rank)
