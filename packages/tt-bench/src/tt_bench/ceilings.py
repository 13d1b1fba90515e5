"""The most that a cost model can rank right on a data set: what noise and equal features leave to chance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tt_spec import Statements
from tt_spec.types import ERRORS

from tt_bench.dataset import DataSet, Operator, load_all, path_of
from tt_bench.errors import BenchError
from tt_bench.held_out import held_out
from tt_bench.statements import statements

__all__ = ["APART", "Line", "Shown", "repeats", "show", "twins"]

APART = 0.05
"""Share by which two rows differ that are not about as fast."""


@dataclass(frozen=True)
class Line:
    """A part of a data set: a kind of operator, an algorithm, or all.

    Args:
        failed: Rows by error.
        median, slow: Seconds of the median row and of the slowest of nine in ten over the best's; medians over
            operators; NaN without valid rows.
        repeats: Share of the pairs of rows timed twice whose order was the same both times, mean over operators; NaN
            where none was.
        apart: The same of pairs that the first timing found `APART` apart at least.
        pairs: Of rows timed twice.
        twins: Share of pairs that have all features in common, mean over operators; NaN without statements.
        twin_rows: Share of valid rows that have a twin, likewise.
    """

    name: str
    operators: int
    rows: int
    failed: dict[str, int]
    median: float
    slow: float
    repeats: float
    apart: float
    pairs: int
    twins: float
    twin_rows: float

    @property
    def twin_ceiling(self) -> float:
        """Share of pairs that a model which sees only statements ranks right at most: half of the twins by chance."""
        return 1 - self.twins / 2


@dataclass(frozen=True)
class Shown:
    """One device's data set in figures.

    Args:
        size: Bytes of the file.
        total: Of all operators.
        kinds, parts: By kind of operator, and by algorithm.
        held_out: Names of operators that no data set should hold.
    """

    data: DataSet
    size: int
    total: Line
    kinds: tuple[Line, ...]
    parts: tuple[Line, ...]
    held_out: tuple[str, ...]


def show(folder: Path) -> Iterator[Shown]:
    """Each data set of a folder in figures; of twins only where `tt dataset features` ran. Raises `BenchError`."""
    for data in load_all(folder):
        try:
            known = list(statements(folder, data))
        except BenchError:
            known = [None] * len(data.operators)
        every = [_Part.of(o, k) for o, k in zip(data.operators, known, strict=True)]
        kinds = [_line(kind, [p for p in every if p.kind == kind]) for kind in sorted({p.kind for p in every})]
        names = sorted({n for p in every for n in p.names})
        parts = [_line(n, [p.only(n) for p in every if n in p.names]) for n in names]
        out = tuple(o.task.name for o in data.operators if held_out(o.task))
        size = path_of(folder, data.device).stat().st_size
        yield Shown(data, size, _line("all", every), tuple(kinds), tuple(parts), out)


def repeats(seconds: np.ndarray, again: np.ndarray, apart: float = 0.0) -> tuple[int, int]:
    """Pairs of rows timed twice, `(n,)` seconds each, whose order was the same both times, and such pairs.

    Args:
        again: NaN for rows timed once.
        apart: Pairs count that the first timing found this share apart at least.
    """
    both = np.isfinite(seconds) & np.isfinite(again)
    first, second = np.log(seconds[both]), np.log(again[both])
    i, j = np.triu_indices(len(first), 1)
    d, e = first[i] - first[j], second[i] - second[j]
    counts = (d != 0) & (np.abs(d) >= np.log1p(apart))
    return int((counts & (d * e > 0)).sum()), int(counts.sum())


def twins(names: Sequence[bytes], seconds: np.ndarray) -> tuple[int, int, int]:
    """Pairs of valid rows that share a name, pairs of valid rows, both without those of equal seconds, and valid rows
    that share theirs with another.

    Args:
        names: `(n,)`, what a model sees of each row.
    """
    _, of = np.unique(np.array([n.hex() for n in names]), return_inverse=True)
    valid = np.isfinite(seconds)
    of, s = of.reshape(-1)[valid], seconds[valid]
    sizes = np.bincount(of, minlength=1)
    same = sum(_unequal(s[of == g]) for g in np.flatnonzero(sizes > 1))
    return same, _unequal(s), int(sizes[sizes > 1].sum())


def _unequal(seconds: np.ndarray) -> int:
    """Pairs of different seconds."""
    n, counts = len(seconds), np.unique(seconds, return_counts=True)[1]
    return n * (n - 1) // 2 - int((counts * (counts - 1) // 2).sum())


@dataclass(frozen=True)
class _Part:
    """Rows of an operator: algorithm, first and second seconds, error and a digest of the statements of each."""

    kind: str
    algorithms: np.ndarray
    seconds: np.ndarray
    again: np.ndarray
    errors: np.ndarray
    digests: np.ndarray | None

    @classmethod
    def of(cls, o: Operator, known: tuple[Statements, np.ndarray] | None) -> _Part:
        digests = None if known is None else _digests(*known)
        return cls(o.task.op, o.parts(), o.seconds, o.again, o.errors, digests)

    @property
    def names(self) -> set[str]:
        return set(self.algorithms.tolist())

    def only(self, name: str) -> _Part:
        """The rows of one algorithm."""
        k = self.algorithms == name
        digests = None if self.digests is None else self.digests[k]
        return _Part(self.kind, self.algorithms[k], self.seconds[k], self.again[k], self.errors[k], digests)


def _digests(found: Statements, ok: np.ndarray) -> np.ndarray:
    """Of each row's statements, `(n,)` objects; b"" where there are none."""
    digests = np.full(len(ok), b"", dtype=object)
    values = found.values.astype("<f4")
    for at, i in zip(np.flatnonzero(ok), range(len(found)), strict=True):
        part = values[found.offsets[i] : found.offsets[i + 1]]
        digests[at] = hashlib.sha256(part.tobytes()).digest()
    return digests


def _line(name: str, parts: Sequence[_Part]) -> Line:
    errors = np.concatenate([np.zeros(0, np.int8), *(p.errors for p in parts)])
    failed = {e: int((errors == i).sum()) for i, e in enumerate(ERRORS) if (errors == i).any()}
    spreads = [np.quantile(v, [0.5, 0.9]) / v.min() for p in parts if len(v := p.seconds[np.isfinite(p.seconds)])] or [
        np.full(2, np.nan)
    ]
    again = [repeats(p.seconds, p.again) for p in parts]
    far = [repeats(p.seconds, p.again, APART) for p in parts]
    same = [twins(list(p.digests), p.seconds) for p in parts if p.digests is not None]
    valid = [int(np.isfinite(p.seconds).sum()) for p in parts if p.digests is not None]
    median, slow = np.median(np.array(spreads), axis=0)
    return Line(
        name,
        len(parts),
        len(errors),
        failed,
        float(median),
        float(slow),
        _mean(again),
        _mean(far),
        sum(n for _, n in again),
        _mean([t[:2] for t in same]),
        _mean([(t[2], n) for t, n in zip(same, valid, strict=True)]),
    )


def _mean(shares: Sequence[tuple[int, int]]) -> float:
    known = [a / b for a, b in shares if b]
    return float(np.mean(known)) if known else float("nan")
