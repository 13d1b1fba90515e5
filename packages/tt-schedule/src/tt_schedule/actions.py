"""Action functions: from expected gains to the operator that gets the slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["epsilon_greedy", "softmax", "ucb"]


def ucb(gains: Sequence[float] | np.ndarray, slots: Sequence[int] | np.ndarray, c: float) -> np.ndarray:
    """Upper confidence bounds `(n,)`: gain + sqrt(C log t / slots), t being all slots so far and this one.

    Source: Auer et al. (2002), Finite-time analysis of the multiarmed bandit problem; Zhang et al. (2021), section 4.2.

    Args:
        gains: Expected, in units of which C is one.
        slots: How many each operator had, at least 1.
        c: Exploration.
    """
    slots = np.asarray(slots, dtype=float)
    return np.asarray(gains, dtype=float) + np.sqrt(c * np.log(slots.sum() + 1.0) / slots)


def epsilon_greedy(gains: np.ndarray, epsilon: float, rng: np.random.Generator) -> tuple[int, str]:
    """The largest gain, or with probability epsilon any; and which of the two it was."""
    if rng.random() < epsilon:
        return int(rng.integers(len(gains))), "random"
    return int(np.argmax(gains)), "greedy"


def softmax(gains: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities `(n,)` of operators whose gains are in units of the temperature."""
    weights = np.exp((gains - gains.max()) / temperature)
    return weights / weights.sum()
