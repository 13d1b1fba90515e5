"""Programs made ready for networks: statements scaled, cut into slates, padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tt_spec.types import Group, Statements, concat_statements

from tt_surrogate.pack_sum import program_ids
from tt_surrogate.weights import STATEMENT

__all__ = ["Programs", "batches", "column_maxima", "pad", "scaled", "slates", "usable"]

FAR = 2.0
"""Multiples of a column's maximum in training at which values are cut off."""


@dataclass(frozen=True)
class Programs:
    """Programs of many tasks, one task after the other.

    Args:
        X: `(total, width)` float32, scaled.
        offsets: `(n + 1,)`: program i owns `X[offsets[i]:offsets[i + 1]]`.
        y: `(n,)` labels.
        sizes: Programs of each task.
    """

    X: np.ndarray
    offsets: np.ndarray
    y: np.ndarray
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, groups: Sequence[Group], maxima: np.ndarray) -> Programs:
        """Those of groups over statements, scaled."""
        programs = concat_statements([X for _, X, _ in groups])
        y = np.concatenate([y for _, _, y in groups] or [np.zeros(0)])
        return cls(scaled(programs, maxima), programs.offsets, y, tuple(len(y) for _, _, y in groups))


def column_maxima(groups: Sequence[Group], width: int) -> np.ndarray:
    """The largest magnitude of each column `(width,)` float32."""
    maxima = np.zeros(width, np.float32)
    for _, X, _ in groups:
        for part, at in ((X.values, slice(0, STATEMENT)), (X.operator, slice(STATEMENT, width))):
            if len(part) and at.stop > at.start:
                np.maximum(maxima[at], np.abs(_finite(part)).max(axis=0), out=maxima[at])
    return maxima


def scaled(X: Statements, maxima: np.ndarray) -> np.ndarray:
    """Statements, followed by their operator's features where `maxima` has as many, divided by the columns' maxima.

    The features are log2 values already. Columns without any value in training are left out (0), values far beyond
    the maximum are cut off, and those that are not finite count as 0: nothing unseen may decide alone.
    """
    values = _finite(X.values)
    if len(maxima) > STATEMENT:
        values = np.concatenate([values, _finite(X.operator)[program_ids(X.offsets)]], axis=1)
    scale = np.where(maxima > 0, 1.0 / np.where(maxima > 0, maxima, 1.0), 0.0).astype(np.float32)
    return np.clip(values * scale, -FAR, FAR)


def usable(groups: Iterable[Group]) -> list[Group]:
    """Groups with a program and a label that is not 0; a label that is not finite counts as a failure."""
    found = []
    for task, X, y in groups:
        y = np.nan_to_num(np.asarray(y, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        if len(y) and y.any():
            found.append((task, X, y))
    return found


def slates(sizes: Sequence[int], most: int, rng: np.random.Generator | None = None) -> list[np.ndarray]:
    """Indices of programs that are ranked together: at most so many of one task, drawn anew if there is an rng."""
    found, start = [], 0
    for n in sizes:
        order = np.arange(n) if rng is None else rng.permutation(n)
        parts = -(-n // most) if n else 0
        found += [part + start for part in np.array_split(order, parts)] if parts else []
        start += n
    return found if rng is None else [found[i] for i in rng.permutation(len(found))]


def batches(found: Sequence[np.ndarray], most: int) -> Iterator[list[np.ndarray]]:
    """Slates in groups of at most so many programs, or of one slate."""
    batch: list[np.ndarray] = []
    for slate in found:
        if batch and sum(map(len, batch)) + len(slate) > most:
            yield batch
            batch = []
        batch.append(slate)
    if batch:
        yield batch


def pad(X: np.ndarray, offsets: np.ndarray, index: np.ndarray, length: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Statements of some programs, zeros behind them: `(n, L, width)`, and which are statements, `(n, L)` bool.

    Args:
        index: Programs.
        length: L at least.
    """
    counts = np.diff(offsets)[index]
    place = np.arange(max(length, int(counts.max(initial=1))))
    keep = place < counts[:, None]
    Z = np.zeros((*keep.shape, X.shape[1]), np.float32)
    Z[keep] = X[(offsets[:-1][index][:, None] + place)[keep]]
    return Z, keep


def _finite(X: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        X = np.asarray(X, dtype=np.float32)
    ok = np.isfinite(X)
    return X if ok.all() else np.where(ok, X, np.float32(0))
