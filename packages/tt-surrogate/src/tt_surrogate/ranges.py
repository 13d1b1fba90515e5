"""Scores without a unit, mapped to labels' range."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Ranges"]


@dataclass
class Ranges:
    """The smallest and the largest score in training become 0 and 1, task by task; rows beyond either stay beyond, so
    that order is kept. A task that was not in training borrows the range of all.

    Args:
        tasks: `(low, high)` by task key.
        overall: Of all tasks together; (0, 0) maps everything to 0.
    """

    tasks: dict[str, tuple[float, float]] = field(default_factory=dict)
    overall: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, scores: Iterable[tuple[str, np.ndarray]]) -> Ranges:
        """From the raw scores `(n,)` of each task in training."""
        tasks = {key: (float(raw.min()), float(raw.max())) for key, raw in scores if len(raw)}
        if not tasks:
            return cls()
        return cls(tasks, (min(low for low, _ in tasks.values()), max(high for _, high in tasks.values())))

    def map(self, key: str, raw: np.ndarray) -> np.ndarray:
        """Raw scores `(n,)` of a task in the range of labels."""
        low, high = self.tasks.get(key, self.overall)
        return (raw - low) / (high - low) if high > low else np.zeros(len(raw))
