"""The statements of scheduled nests as features are taken of them: buffers compact, paddings simplified."""

from __future__ import annotations

from typing import Any

import numpy as np

from tt_space.nests.blocks import Block, Buffer, Compared
from tt_space.nests.features import Access, Store
from tt_space.nests.index import Affine, Atom, Lane, Loop, product
from tt_space.nests.schedule import NestSchedule, region

__all__ = ["lowered"]


def lowered(s: NestSchedule) -> list[Store]:
    """The statements in order, as TVM's passes before its extractor leave them. Raises `Uninterpreted`."""
    blocks = s.blocks()
    placed = {b.name: _placed(b, blocks, s) for b in s.buffers.values()}
    return [_store(b, placed, s) for b in blocks]


class _Placed:
    """A buffer where it is allocated: its extents, the loops around, and by how much its indices move."""

    def __init__(self, shape: tuple[Lane, ...], around: list[Loop], moves: list[Affine] | None) -> None:
        self.shape, self.around, self.moves = shape, around, moves

    def index(self, indices: list[Affine]) -> tuple[Affine, ...]:
        if self.moves is not None:
            indices = [e - m for e, m in zip(indices, self.moves, strict=True)]
        return tuple(_merged(_tidy(e)) for e in indices)


def _placed(buffer: Buffer, blocks: list[Block], s: NestSchedule) -> _Placed:
    if buffer.param:
        return _Placed(buffer.shape, [], None)
    indices, paths = [], []
    for b in blocks:
        if b.target is buffer:
            indices.append(_written(b))
            paths.append(s.get_loops(b))
            if b.above is not None:
                paths.append(list(b.above))
        for load in b.loads:
            if load.buffer is buffer:
                indices.append([i(b.bound) for i in load.indices])
                paths.append(s.get_loops(b))
    around = _common(paths)
    regions = [
        region(tuple(dim), around, most, s.cut)
        for dim, most in zip(zip(*indices, strict=True), buffer.shape, strict=True)
    ]
    return _Placed(tuple(e for _, e in regions), around, [low for low, _ in regions])


def _common(paths: list[list[Loop]]) -> list[Loop]:
    """The loops around all of them."""
    found = []
    for loops in zip(*paths, strict=False):
        if any(x is not loops[0] for x in loops):
            break
        found.append(loops[0])
    return found


def _written(b: Block) -> list[Affine]:
    return [Affine((), i) if isinstance(i, int) else b.bound[i] for i in b.written]


def _tidy(e: Affine) -> Affine:
    """Without terms that are zero in every program."""
    return Affine(tuple(t for t, on in zip(e.terms, e.active(), strict=True) if np.any(on)), e.base)


def _merged(e: Affine) -> Affine:
    """With neighbouring digits of one loop as one, as TVM writes them: `f // 12 % 2 * 6 + f // 4 % 3 * 2`."""
    terms = list(e.terms)
    for i in range(len(terms)):
        for j in range(i + 1, len(terms)):
            (a, c), (b, k) = terms[i], terms[j]
            if a.loop is not b.loop:
                continue
            both = (np.asarray(a.size) > 1) & (np.asarray(b.size) > 1)
            joined = both & (np.asarray(c) == k * b.size) & (np.asarray(a.below) == b.below * b.size)
            if np.any(joined):
                size = np.where(joined, a.size * b.size, a.size)
                terms[i] = Atom(a.loop, np.where(joined, b.below, a.below), size), np.where(joined, k, c)
                terms[j] = Atom(b.loop, b.below, np.where(joined, 1, b.size)), k
    return Affine(tuple(terms), e.base)


def _store(b: Block, placed: dict[str, _Placed], s: NestSchedule) -> Store:
    mine = placed[b.target.name]
    accesses: dict[str, tuple[Buffer, int, list[tuple[Affine, ...]]]] = {
        b.target.name: (b.target, 1, [mine.index(_written(b))])
    }
    counts: dict[str, Lane] = dict(b.counts)
    for load in b.loads:
        index = placed[load.buffer.name].index([i(b.bound) for i in load.indices])
        for e in index:
            _count(counts, e)
        buffer, kind, indices = accesses.setdefault(load.buffer.name, (load.buffer, 0, []))
        if kind == 0:
            indices.append(index)
        else:
            accesses[load.buffer.name] = buffer, 2, indices
    for guard in b.guards:
        _guard(counts, guard, b)
    numel = product(mine.shape)
    return Store(
        loops=tuple(s.get_loops(b)),
        counts=counts,
        accesses=tuple(Access(x.name, placed[x.name].shape, x.bytes, k, tuple(i)) for x, k, i in accesses.values()),
        alloc_size=numel * b.target.bytes,
        alloc_outer=product([x.extent for x in mine.around]),
        alloc_numel=numel,
    )


def _add(counts: dict[str, Lane], what: str, n: Any) -> None:
    counts[what] = counts.get(what, 0) + n


def _count(counts: dict[str, Lane], e: Affine, where: Any = True) -> None:
    """Count the integer operations of an index as it is written."""
    written = np.int64(0)
    for (atom, c), active in zip(e.terms, e.active(), strict=True):
        on = (active & where).astype(np.int64)
        written = written + on
        _add(counts, "int_mul", on * (np.abs(c) != 1))
        _add(counts, "int_div_mod", on * (np.asarray(atom.below) > 1))
        _add(counts, "int_div_mod", on * (np.asarray(atom.below) * atom.size < atom.loop.extent))
    some = (np.asarray(e.base) != 0) & (written > 0)
    _add(counts, "int_add_sub", np.maximum(written - 1, 0) + some)


def _unfolded(e: Affine) -> tuple[tuple[Atom, Lane], ...]:
    """The terms of a bounded index: TVM writes `i % 90 // 30 < 2` as `i % 90 < 60`."""
    if not e.terms:
        return ()
    active = e.active()
    alone = np.sum([np.asarray(a, dtype=np.int64) for a in np.broadcast_arrays(*active)], axis=0) == 1
    found = []
    for (a, c), on in zip(e.terms, active, strict=True):
        plain = alone & on
        found.append((Atom(a.loop, np.where(plain, 1, a.below), np.where(plain, a.below * a.size, a.size)), c))
    return tuple(found)


def _guard(counts: dict[str, Lane], guard: tuple[Compared, ...], b: Block) -> None:
    """Count the conditions of a padding that the loops' extents do not tell."""
    kept: Any = np.int64(0)
    for c in guard:
        e = _merged(_tidy(c.index(b.bound)))
        known = e.low() >= c.at_least if c.at_least is not None else e.high() < c.below
        open_ = ~np.asarray(known)
        kept = kept + open_
        _add(counts, "int_cmp", open_.astype(np.int64))
        _count(counts, Affine(_unfolded(e)), open_)
    _add(counts, "bool_op", np.maximum(kept - 1, 0))
    _add(counts, "float_math", (kept > 0).astype(np.int64))
