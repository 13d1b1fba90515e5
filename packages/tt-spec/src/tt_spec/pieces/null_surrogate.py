"""No model at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from tt_spec.types import Group, Prediction, Task

__all__ = ["NullSurrogate"]


class NullSurrogate:
    """Predicts the mean label of what it saw, whatever the row."""

    inputs: Literal["knobs", "statements"] = "knobs"
    shared = False

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        seen = np.concatenate([y for _, _, y in groups]) if groups else np.zeros(0)
        self.mean_ = float(seen.mean()) if len(seen) else 0.0
        self.std_ = float(seen.std()) if len(seen) else 0.0

    def predict(self, task: Task, X: Any) -> Prediction:
        mean = getattr(self, "mean_", 0.0)
        return Prediction(np.full(len(X), mean), np.full(len(X), getattr(self, "std_", 0.0)))

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean
