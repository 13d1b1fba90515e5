"""Scores by row, for searchers that meet rows again: each row is scored once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tt_search.best import row_keys

__all__ = ["Scored"]


class Scored:
    """The model's score of each row `(n,)`, asked once.

    Args:
        score: `(m, d) -> (m,)`, as of `Context`.

    Attributes:
        known: Score by row key.
    """

    def __init__(self, score: Callable[[np.ndarray], np.ndarray]) -> None:
        self.score = score
        self.known: dict[int, float] = {}

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        keys, first, back = np.unique(row_keys(rows), return_index=True, return_inverse=True)
        new = np.array([k not in self.known for k in keys.tolist()], dtype=bool)
        if new.any():
            self.known.update(zip(keys[new].tolist(), self.score(rows[first[new]]).tolist(), strict=True))
        return np.array([self.known[k] for k in keys.tolist()])[back]
