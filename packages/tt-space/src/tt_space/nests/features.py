"""The 164 statement features of many programs with one structure, as closed forms of their loop nests.

Source: Zheng et al. (2020), Ansor, OSDI, appendix B, as TVM 0.27's `PerStoreFeature` defines them, quirks included: one
vector per buffer, that of its last store; positions of annotated loops are always "mixed"; a stride is read off the
written form of an index; what a loop touches is summed over the statements visited so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tt_space.nests.index import Affine, Lane, Loop, product

__all__ = ["Access", "Store", "features_of"]

CACHE_LINE = 64
BUFFERS = 5
SAMPLES = 10
COUNTS = (
    "float_mad",
    "float_add_sub",
    "float_mul",
    "float_div_mod",
    "float_cmp",
    "float_math",
    "float_other",
    "int_mad",
    "int_add_sub",
    "int_mul",
    "int_div_mod",
    "int_cmp",
    "int_math",
    "int_other",
    "bool_op",
    "select_op",
)


@dataclass(frozen=True)
class Access:
    """The accesses of a statement to one buffer.

    Args:
        name: The buffer's.
        shape: Its extents when features are taken.
        bytes: Of one element.
        kind: 0 read, 1 written, 2 both.
        indices: For each access, an index per dimension.
    """

    name: str
    shape: tuple[Lane, ...]
    bytes: int
    kind: int
    indices: tuple[tuple[Affine, ...], ...]


@dataclass(frozen=True)
class Store:
    """A statement that stores a value that is not constant.

    Args:
        loops: Around it, outermost first.
        counts: Operations of one execution, by the names in `COUNTS`.
        accesses: By buffer, the stored one first.
        alloc_size: Bytes of the stored buffer.
        alloc_outer: Product of the extents of the loops around its allocation.
        alloc_numel: Elements of the stored buffer.
    """

    loops: tuple[Loop, ...]
    counts: dict[str, Lane]
    accesses: tuple[Access, ...]
    alloc_size: Lane
    alloc_outer: Lane
    alloc_numel: Lane


@dataclass
class _Touched:
    """Memory touched under a loop by the statements so far: bytes in all; by buffer how often, and least elements."""

    total: Lane = 0
    by: dict[str, tuple[int, Lane]] = field(default_factory=dict)

    def add(self, a: Access, numel: Lane) -> None:
        self.total = self.total + numel * a.bytes
        count, least = self.by.get(a.name, (0, numel))
        self.by[a.name] = count + 1, np.minimum(least, numel)


def features_of(stores: list[Store], n: int) -> np.ndarray:
    """Features `(n, buffers stored to, 164)` float64 of `n` programs, from their statements in order."""
    touched: dict[int, _Touched] = {}
    found: dict[str, np.ndarray] = {}
    for store in stores:
        found[store.accesses[0].name] = _features(store, touched, n)
    return np.stack(list(found.values()), axis=1) if found else np.zeros((n, 0, 164))


def _features(store: Store, touched: dict[int, _Touched], n: int) -> np.ndarray:
    nest = _Nest(store.loops, n)
    spans = [_spans(a, nest) for a in store.accesses]
    at_loop = np.zeros((len(nest.loops), n))
    for i, loop in enumerate(nest.loops):
        here = touched.setdefault(id(loop), _Touched())
        for a, numels in zip(store.accesses, spans, strict=True):
            here.add(a, numels[0][i])
            at_loop[i] += numels[0][i] * a.bytes
    columns = [
        *(_slog(store.counts.get(c, 0) * nest.prod) for c in COUNTS),
        *nest.kinds("vectorized"),
        *nest.kinds("unrolled"),
        *nest.kinds("parallel"),
        0.0,
        *[1.0] * 7,
    ]
    out = np.zeros((n, 164))
    for i, c in enumerate(columns):
        out[:, i] = c
    top = sum(a.bytes for a in store.accesses)
    subs = [_access(a, s, nest, top, touched) for a, s in zip(store.accesses, spans, strict=True)]
    out[:, 57:147] = _sorted(subs, [a.name for a in store.accesses], n)
    ops = sum(store.counts.get(c, 0) for c in COUNTS[:7])
    out[:, 147:157] = _curve(np.broadcast_to(np.asarray(ops, dtype=np.float64), (n,)), nest, at_loop)
    tail = (
        store.alloc_size,
        store.alloc_numel * store.alloc_outer,
        store.alloc_outer,
        nest.prod / store.alloc_outer,
        nest.prod,
        nest.count,
        nest.auto_unroll,
    )
    for i, c in enumerate(tail):
        out[:, 157 + i] = _slog(c)
    return out


class _Nest:
    """The loops around a statement, outermost first, with where they are present: `present` `(loops, n)` bool."""

    def __init__(self, loops: tuple[Loop, ...], n: int) -> None:
        self.loops, self.n = loops, n
        shape = (len(loops), n)
        self.extent = np.ones(shape, dtype=np.int64)
        self.present = np.zeros(shape, dtype=bool)
        for i, loop in enumerate(loops):
            self.extent[i], self.present[i] = loop.extent, loop.present
        self.prod = self.extent.prod(axis=0)
        self.count = self.present.sum(axis=0)

    @property
    def auto_unroll(self) -> np.ndarray:
        found = np.zeros(self.n, dtype=np.int64)
        for loop in self.loops:
            found = np.where(np.asarray(loop.unroll) > 0, loop.unroll, found)
        return found

    def kinds(self, kind: str) -> list[Any]:
        """Eleven features of the loops of a kind."""
        number, prod, last = np.zeros(self.n), np.ones(self.n), np.zeros(self.n)
        for loop, extent, present in zip(self.loops, self.extent, self.present, strict=True):
            if loop.kind == kind:
                number, prod, last = number + present, prod * extent, np.where(present, extent, last)
        some = number > 0
        return [_slog(number), _slog(prod * some), _slog(last), ~some, *[0.0] * 6, some]


def _spans(a: Access, nest: _Nest) -> tuple[np.ndarray, list[Lane]]:
    """Elements that each loop and those in it touch `(loops, n)`, and the extents of what all of them touch."""
    low = [[e.base for e in index] for index in a.indices]
    high = [[e.base for e in index] for index in a.indices]
    uses: dict[int, list[tuple[int, int, Any, Lane]]] = {}
    for j, index in enumerate(a.indices):
        for d, e in enumerate(index):
            for atom, c in e.terms:
                uses.setdefault(id(atom.loop), []).append((j, d, atom, c))

    def reached(d: int) -> Lane:
        return _most([h[d] for h in high], np.maximum) - _most([x[d] for x in low], np.minimum) + 1

    numels = np.ones((len(nest.loops), nest.n), dtype=np.int64)
    shape: list[Lane] = [reached(d) for d in range(len(a.shape))]
    for i in range(len(nest.loops) - 1, -1, -1):
        mine = uses.get(id(nest.loops[i]), [])
        for j, d, atom, c in mine:
            # TVM keeps the first value of a loop in its modular sets, so that a remainder is 0 for it
            reach = (atom.size - 1) * (np.asarray(atom.below) * atom.size == atom.loop.extent)
            low[j][d] = low[j][d] + np.minimum(c, 0) * reach
            high[j][d] = high[j][d] + np.maximum(c, 0) * reach
            shape[d] = reached(d)
        numels[i] = product(shape) if mine or i == len(nest.loops) - 1 else numels[i + 1]
    return numels, shape if nest.loops else [1] * len(a.shape)


def _most(values: list[Lane], which: Any) -> Lane:
    result = values[0]
    for v in values[1:]:
        result = which(result, v)
    return result


def _access(
    a: Access, spans: tuple[np.ndarray, list[Lane]], nest: _Nest, top: int, touched: dict[int, _Touched]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eighteen features of one buffer `(n, 18)`, with its lines and its bytes `(n,)`, by which buffers are sorted."""
    n = nest.n
    numels, shape = spans
    none = nest.count == 0
    continuous = np.ones(n, dtype=np.int64)
    for mine, whole in zip(shape, a.shape, strict=True):  # the last dimension that is touched whole counts
        continuous = np.where(np.asarray(mine) == whole, whole * a.bytes, continuous)
    least, innermost, still = _strides(a, nest)
    kind, count, iterations, distance = _reuse(a, nest, top, touched)
    bytes_ = (a.bytes * nest.prod).astype(np.float64)
    unique = np.where(none, 1.0, numels[0] * float(a.bytes) if len(nest.loops) else 1.0)
    lines = np.maximum(1.0, nest.prod / still * np.minimum(1.0, least * a.bytes / CACHE_LINE))
    lines = np.where(none, 1.0, lines)
    unique_lines = np.where(none, 1.0, np.maximum(1.0, unique / np.minimum(CACHE_LINE, continuous)))
    per = np.where(count > 0, count, 0.5)
    out = np.zeros((n, 18))
    out[:, a.kind] = 1.0
    for i, c in enumerate((bytes_, unique, lines, unique_lines)):
        out[:, 3 + i] = _slog(c)
        out[:, 13 + i] = _slog(c / per)
    out[np.arange(n), 7 + kind] = 1.0
    for i, c in enumerate((iterations, distance, count)):
        out[:, 10 + i] = _slog(c)
    out[:, 17] = _slog(innermost)
    return out, lines, bytes_


def _strides(a: Access, nest: _Nest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stride of the innermost loop that has one, that stride if no loop is inside it, and the trips inside it."""
    n = nest.n
    steps: list[Lane] = [1]
    for extent in a.shape[:0:-1]:
        steps.append(steps[-1] * extent)
    steps.reverse()
    least, innermost, still = np.zeros(n, np.int64), np.zeros(n, np.int64), np.ones(n, np.int64)
    open_, first = np.ones(n, bool), np.ones(n, bool)
    for loop, extent, present in zip(nest.loops[::-1], nest.extent[::-1], nest.present[::-1], strict=True):
        stride = np.where(present & open_, _stride(a, loop, steps, n), 0)
        here = stride > 0
        least = np.where(here, stride, least)
        innermost = np.where(here & first, stride, innermost)
        open_ &= ~here
        still = np.where(open_, still * extent, still)
        first &= ~present
        if not open_.any():
            break
    return least, innermost, still


def _stride(a: Access, loop: Loop, steps: list[Lane], n: int) -> np.ndarray:
    """The least stride of a loop's variable over a buffer's accesses `(n,)`; 0 where it is in none."""
    result = np.zeros(n, dtype=np.int64)
    for index in a.indices:
        mine = np.zeros(n, dtype=np.int64)
        for e, step in zip(index, steps, strict=True):  # the last dimension that has the variable counts
            if any(atom.loop is loop for atom, _ in e.terms):
                factor = _factor(e, loop, n)
                mine = np.where(factor != 0, np.abs(factor) * step, mine)
        result = np.where((result == 0) | ((mine > 0) & (mine < result)), mine, result)
    return result


def _factor(e: Affine, loop: Loop, n: int) -> np.ndarray:
    """A variable's coefficient as TVM reads it off the written index: the last factor written after the variable.

    Where the variable is written again without a factor, TVM has 2 for it until the next one.
    """
    seen, multiplied, added, some = (np.zeros(n, bool) for _ in range(4))
    factor = np.zeros(n, dtype=np.int64)
    for (atom, c), active in zip(e.terms, e.active(), strict=True):
        if atom.loop is loop:
            seen, factor = seen | active, np.where(active & multiplied, 2, factor)
        times = active & (np.abs(c) != 1) & seen & ~added
        multiplied, factor = multiplied | times, np.where(times, c, factor)
        added = added | (active & some & seen & ~multiplied)
        some = some | active
    added = added | (some & seen & ~multiplied & (np.asarray(e.base) > 0))
    return np.where(seen, np.where(multiplied, factor, 1), 0)


def _reuse(
    a: Access, nest: _Nest, top: int, touched: dict[int, _Touched]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Kind of reuse (0 by a loop, 1 by statements, 2 none), how often, and after how many iterations and bytes."""
    n = nest.n
    kind, count = np.full(n, 2), np.zeros(n, dtype=np.int64)
    iterations, distance = np.zeros(n), np.zeros(n)
    open_, inside = np.ones(n, bool), np.ones(n, dtype=np.int64)
    below: Any = np.full(n, float(top))
    for loop, extent, present in zip(nest.loops[::-1], nest.extent[::-1], nest.present[::-1], strict=True):
        here, looks = touched[id(loop)], present & open_
        if looks.any():
            by_loop = looks & ~_varies(a, loop, n)
            times, least = here.by[a.name]
            by_store = looks & ~by_loop & (times >= 2)
            found = by_loop | by_store
            kind = np.where(found, np.where(by_loop, 0, 1), kind)
            count = np.where(found, np.where(by_loop, extent, times - 1), count)
            iterations = np.where(found, np.where(by_loop, inside, least / extent), iterations)
            distance = np.where(found, np.where(by_loop, below, here.total / extent), distance)
            open_ &= ~found
            if not open_.any():
                break
        inside = inside * extent
        below = np.where(present, here.total, below)
    return kind, count, iterations, distance


def _varies(a: Access, loop: Loop, n: int) -> np.ndarray:
    """Where an index has the loop's variable in it."""
    found = np.zeros(n, bool)
    for index in a.indices:
        for e in index:
            for (atom, _), active in zip(e.terms, e.active(), strict=True):
                if atom.loop is loop:
                    found = found | active
    return found


def _sorted(subs: list[tuple[np.ndarray, np.ndarray, np.ndarray]], names: list[str], n: int) -> np.ndarray:
    """Buffers' features `(n, 90)`, those with most lines first, then with most bytes, then by name; five at most."""
    values = np.stack([s[0] for s in subs], axis=1)
    lines, bytes_ = (np.stack([s[i] for s in subs], axis=1) for i in (1, 2))
    rank = np.broadcast_to(np.argsort(np.argsort(names, kind="stable")), lines.shape)
    order = np.lexsort((rank, -bytes_, -lines), axis=1)[:, :BUFFERS]
    chosen = np.take_along_axis(values, order[:, :, None], axis=1)
    out = np.zeros((n, BUFFERS, 18))
    out[:, : chosen.shape[1]] = chosen
    return out.reshape(n, BUFFERS * 18)


def _curve(ops: np.ndarray, nest: _Nest, at_loop: np.ndarray) -> np.ndarray:
    """Operations per byte `(n, 10)` as loops are added from the innermost on, at tenths of all operations."""
    n, depth = nest.n, len(nest.loops)
    out = np.zeros((n, SAMPLES))
    if not depth:
        return out
    order = np.argsort(~nest.present[::-1], axis=0, kind="stable")  # present loops, innermost first
    extent = np.take_along_axis(nest.extent[::-1], order, axis=0)
    memory = np.take_along_axis(at_loop[::-1], order, axis=0)
    compute = ops * np.cumprod(extent.astype(np.float64), axis=0)
    valid = np.arange(depth)[:, None] < nest.count
    total = compute[-1]
    rows = np.arange(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = compute / memory
        for i in range(SAMPLES):
            want = (i + 1) / SAMPLES * total
            p = np.argmax(valid & (compute >= want - 1e-4), axis=0)
            before = np.maximum(p - 1, 0)
            here, base = ratio[p, rows], ratio[before, rows]
            slope = (here - base) / (compute[p, rows] - compute[before, rows])
            value = np.where(p == 0, here, base + slope * (want - compute[before, rows]))
            out[:, i] = np.where((ops > 0) & (nest.count > 0), _slog(value), 0.0)
    return out


def _slog(x: Any) -> Any:
    return np.log2(np.abs(np.asarray(x, dtype=np.float64)) + 1.0)
