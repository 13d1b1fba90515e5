"""The rows that every searcher hands over: the best distinct fresh ones that it met."""

from __future__ import annotations

import functools

import numpy as np
from tt_spec.types import Context

__all__ = ["Best", "row_keys"]


class Best:
    """The `size` best distinct rows seen so far that are neither measured, refused nor pending.

    Rows are told apart by 64-bit keys, so that `add` costs microseconds inside a search's inner loop. A row that
    is not fresh has the key of its twin and never gets in; a collision (odds of 1e-12 in a search that meets 5000
    rows) hides one row.

    Attributes:
        codes: `(m, d)` int64, best first, m at most `size`.
        scores: `(m,)`.
    """

    def __init__(self, ctx: Context, size: int) -> None:
        d = len(ctx.space.knobs)
        seen = np.frombuffer(b"".join(ctx.seen), dtype=np.int64).reshape(-1, d)
        self.size = size
        self.codes, self.scores = np.empty((0, d), dtype=np.int64), np.empty(0)
        self._keys = np.empty(0, dtype=np.int64)
        self._known = np.unique(row_keys(np.concatenate([seen, ctx.rows, ctx.pending])))

    @property
    def bar(self) -> float:
        """The score that a row must beat to get in."""
        return float(self.scores[-1]) if len(self.scores) >= self.size else -np.inf

    def add(self, codes: np.ndarray, scores: np.ndarray) -> bool:
        """Take the rows that are good enough; returns whether anything changed."""
        good = np.flatnonzero(scores > self.bar)
        if len(good):
            keys = row_keys(codes[good])
            good = good[~(_within(keys, self._known) | _within(keys, np.sort(self._keys)))]
        if not len(good):
            return False
        good = good[np.sort(np.unique(row_keys(codes[good]), return_index=True)[1])]
        every = np.concatenate([self.scores, scores[good]])
        order = np.argsort(-every, kind="stable")[: self.size]
        self.scores = every[order]
        self.codes = np.concatenate([self.codes, codes[good]])[order]
        self._keys = np.concatenate([self._keys, row_keys(codes[good])])[order]
        return True


def row_keys(codes: np.ndarray) -> np.ndarray:
    """A 64-bit key of each row, `(n,)` int64: its product with fixed random odd numbers, modulo 2^64."""
    return np.asarray(codes, dtype=np.int64) @ _multipliers(codes.shape[1])


@functools.cache
def _multipliers(d: int) -> np.ndarray:
    return np.random.default_rng(1805_08166).integers(-(2**63), 2**63 - 1, size=d, dtype=np.int64) | 1


def _within(keys: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return np.zeros(len(keys), dtype=bool)
    at = np.searchsorted(ascending, keys)
    return ascending[np.minimum(at, len(ascending) - 1)] == keys
