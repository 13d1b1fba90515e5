"""Families of saturating curves: best performance so far, relative to the device's peak, over trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True)
class Family:
    """A curve y = f(x, theta) with the box of its uniform prior.

    Args:
        f: `(x, theta) -> y`; x is `(m,)` trials from 1 on, theta `(..., p)`, y `(..., m)`.
        low, high: Bounds of the parameters, `(p,)`; an infinite one is the most that the device can do.
        guess: `(first, last) -> theta`, from the first and the last performance, where least squares begin.
        steps: Of a hundred walkers until their posterior is explored; more where parameters make up for each other.
    """

    f: Callable[[np.ndarray, np.ndarray], np.ndarray]
    low: tuple[float, ...]
    high: tuple[float, ...]
    guess: Callable[[float, float], tuple[float, ...]]
    steps: int = 50


def _log_power(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b, c = _columns(theta)
    return a / (1.0 + np.exp(c * (np.log(x) - b)))  # a / (1 + (x / exp(b))^c)


def _pow2(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b = _columns(theta)
    return a * np.exp(b * np.log(x))  # a x^b


def _pow4(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b, c, d = _columns(theta)
    return a - np.exp(-d * np.log(b * x + c))  # a - (b x + c)^-d


def _log_linear(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b = _columns(theta)
    return a * np.log(x) + b


def _log_log_linear(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    a, b = _columns(theta)
    return np.log(a * np.log(x) + b)


def _columns(theta: np.ndarray) -> list[np.ndarray]:
    return [theta[..., i, None] for i in range(theta.shape[-1])]


FAMILIES = {
    "log_power": Family(
        _log_power, (0.0, -5.0, -5.0), (np.inf, 10.0, 0.0), lambda y, z: (1.1 * z, 0.0, -0.5), steps=30
    ),
    "pow2": Family(_pow2, (0.0, 0.0), (np.inf, 1.0), lambda y, z: (y, 0.05)),
    "pow4": Family(
        _pow4,
        (0.0, 1e-3, 1.0, 1e-2),
        (np.inf, 0.5, 10.0, 2.0),
        lambda y, z: (1.1 * z, 0.1, max(z - y, 0.3) ** -2, 0.5),
        steps=1000,
    ),
    "loglinear": Family(_log_linear, (0.0, 0.0), (1.0, np.inf), lambda y, z: (1e-2 * z, y)),
    "logloglinear": Family(_log_log_linear, (0.0, 1.0), (1e2, 1e2), lambda y, z: (1e-2 * z, float(np.exp(y)))),
}
"""By name. Source: Domhan et al. (2015), Speeding up automatic hyperparameter optimization of deep neural networks by
extrapolation of learning curves, table 1; Zhang et al. (2021), DynaTune, section 4.3."""
