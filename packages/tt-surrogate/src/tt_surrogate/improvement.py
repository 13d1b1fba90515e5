"""Expected positive improvement, the acquisition of the models with doubt."""

from __future__ import annotations

import numpy as np

__all__ = ["expected_improvement"]


def expected_improvement(mean: np.ndarray, std: np.ndarray, best: float) -> np.ndarray:
    """EI(p) = E[max(f(p) - best, 0)] for f(p) normal with these means and deviations, `(n,)`, in the label's unit.

        EI = (mean - best) Phi(Z) + std phi(Z),  Z = (mean - best) / std    where std > 0
        EI = max(0, mean - best)                                           where std = 0

    Source: Li et al. (2020), AdaTune, equations 1 and 2; Brochu, Cora and de Freitas (2010), arXiv:1012.2599.
    """
    from scipy.special import ndtr

    gain = np.asarray(mean, dtype=np.float64) - best
    doubt = np.asarray(std, dtype=np.float64) > 0
    sigma = np.where(doubt, std, 1.0)
    with np.errstate(over="ignore"):  # a deviation of next to nothing
        Z = gain / sigma
        ei = gain * ndtr(Z) + sigma * np.exp(-0.5 * Z**2) / np.sqrt(2 * np.pi)
    return np.maximum(np.where(doubt, ei, gain), 0.0)  # both terms cancel far below best: rounding may go under 0
