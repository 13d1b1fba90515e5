"""Paired comparison of a recipe with the default."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tt_history.errors import HistoryError

__all__ = ["ALPHA", "Gain", "compared", "needs"]

ALPHA = 0.05
"""A suggestion counts as better below this p value."""

_DRAWS = 4000


@dataclass(frozen=True)
class Gain:
    """One recipe against another, over pairs.

    Args:
        ratio: Geometric mean of its seconds over the other's; below 1 it is quicker.
        low, high: The 95 % interval of that.
        p: Of the paired test, two-sided; 1 where nothing differs.
        trials: The same mean of trials.
        wins: Share of the pairs in which it was quicker, ties by half.
    """

    pairs: int
    tasks: int
    ratio: float
    low: float
    high: float
    p: float
    trials: float
    wins: float

    @property
    def better(self) -> bool:
        """Whether it is quicker, and not by chance."""
        return self.p < ALPHA and self.ratio < 1

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        shown = f"{self.ratio:.2f} of its seconds [{self.low:.2f}, {self.high:.2f}], {self.trials:.2f} of its trials"
        return f"{shown}, p {self.p:.3f}, {self.pairs} pairs of {self.tasks} tasks"


def compared(seconds: Sequence[float], trials: Sequence[float], tasks: int) -> Gain:
    """The gain from the logs of each pair's ratio of seconds and trials, at least one.

    Source: Wilcoxon (1945), Individual comparisons by ranking methods; the interval: Efron and Tibshirani (1993), An
    Introduction to the Bootstrap, chapter 13.
    """
    needs("scipy")
    from scipy.stats import wilcoxon

    logs = np.asarray(seconds, dtype=np.float64)
    p = float(wilcoxon(logs, zero_method="zsplit").pvalue) if logs.any() else 1.0
    drawn = logs[np.random.default_rng(0).integers(0, len(logs), (_DRAWS, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return Gain(
        len(logs),
        tasks,
        float(np.exp(logs.mean())),
        float(low),
        float(high),
        p,
        float(np.exp(np.mean(trials))),
        float(np.where(logs == 0, 0.5, logs < 0).mean()),
    )


def needs(module: str) -> None:
    """Refuse to go on without a module of the extra."""
    if importlib.util.find_spec(module) is None:
        raise HistoryError(f"a suggestion needs {module}: pip install 'tt-history[suggest]'")
