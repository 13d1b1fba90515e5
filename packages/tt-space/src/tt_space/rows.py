"""The template of reductions along the last axis: softmax, norms, means and sums of rows.

A row is read in vectors, whatever its length: its tail in ever shorter ones. Each lane has a partial result, and halves
of them are joined at the end of the row. Operators that pass over a row between two reductions share one pass, and what
they compute of each element lies in a buffer of one row, which stays in the cache. TVM's sketches reduce one element
after the other, or in lanes whose number divides the row.

Source: the passes over a row of Dukhan and Ablavatski (2020), Two-pass softmax algorithm, arXiv:2001.04438, whose
baseline has three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tt_spec import Knob, Space
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from tt_space.machine import vector_unit
from tt_space.programs import Features, TemplateRows, blocks_of, copied, loads_of

__all__ = ["RowPrograms"]

VERSION = "1"
VECTORS = (1, 2, 4, 8)
"""Registers that hold the partial results of a reduction: so many run at a time, each waiting for its last sum."""

_JOINED: dict[type, float | None] = {tirx.Add: 0.0, tirx.Mul: 1.0, tirx.Max: None, tirx.Min: None}
"""How two partial results become one, with the number that each lane may start from; None is any."""


class RowPrograms(TemplateRows):
    """Rows to schedules for one workload. Every row in range has a program, and is its own canonical row."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        work = _read(mod)
        if work is None:
            raise ValueError("the workload does not reduce along its last axis")
        self.mod, self.work = mod, work
        self.space = _space(work, vector_unit(target).lanes("float32"))
        self.features = Features(mod, target)

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        body = _program(self.work, knobs["width"], knobs.get("threads", "one") == "all")
        root = SBlock([], [], [], "root", body)
        func = self.mod["main"].with_body(SBlockRealize([], True, root))
        return copied(tvm.IRModule({"main": func}, attrs=self.mod.attrs))


@dataclass(frozen=True)
class _Part:
    """What a block does with one element, or with one row.

    Args:
        target, indices: What it stores to, in terms of `rows` and `column`.
        value: What it stores, or what the reduction takes of one element.
        rows: Its iterators of the row, outermost first; those of one element are zero already.
        column: Its iterator along the row; None for what is computed once a row.
        joined, start: How a reduction joins two results and what it starts from; None for what is no reduction.
    """

    target: tirx.Buffer
    indices: tuple[Any, ...]
    value: Any
    rows: tuple[tirx.Var, ...]
    column: tirx.Var | None
    joined: type | None = None
    start: Any = None


@dataclass
class _Pass:
    """One pass over a row: what is done at each element, then what is done once."""

    each: list[_Part] = field(default_factory=list)
    after: list[_Part] = field(default_factory=list)


@dataclass(frozen=True)
class _Work:
    """A workload: its passes over each row.

    Args:
        rows: Extents of the axes before the last, those of one element left out.
        columns: Elements of a row.
        kept: Shape of each buffer of one row, by the buffer of all rows that it replaces.
    """

    passes: tuple[_Pass, ...]
    rows: tuple[int, ...]
    columns: int
    kept: dict[tirx.Buffer, int]


# -- reading a workload ------------------------------------------------------------------------------------------------


def _read(mod: tvm.IRModule) -> _Work | None:
    """The passes of a function whose blocks all walk along the same rows, or None."""
    blocks = blocks_of(mod)
    first = next((b for b in blocks if _extents(b, reduced=True)), None)
    if first is None or len(_extents(first, reduced=True)) != 1:
        return None
    rows, (columns,) = tuple(_extents(first)), _extents(first, reduced=True)
    parts: list[_Part] = []
    for block in blocks:
        found = _parts(block, rows, columns)
        if found is None:
            return None
        parts += found
    inner = list(mod["main"].body.block.alloc_buffers)
    if not _local(parts, inner) or not all(_straight(p, math.prod(rows), columns) for p in parts):
        return None
    kept = {p.target: 1 if p.column is None or p.joined else columns for p in parts if _in(p.target, inner)}
    return _Work(tuple(_passes(parts)), rows, columns, kept)


def _extents(block: SBlock, reduced: bool = False) -> list[int]:
    """Extents of a block's spatial or reduced axes, without those of one element."""
    found = [int(v.dom.extent) for v in block.iter_vars if (int(v.iter_type) == tirx.IterVar.CommReduce) == reduced]
    return [n for n in found if n > 1]


def _parts(block: SBlock, rows: tuple[int, ...], columns: int) -> list[_Part] | None:
    """A block as parts, one for each value that it stores; None if it does not walk along the rows."""
    kinds = {int(v.iter_type) for v in block.iter_vars}
    spatial, reduced = _extents(block), _extents(block, reduced=True)
    wide = spatial == [*rows, columns]
    if kinds - {tirx.IterVar.DataPar, tirx.IterVar.CommReduce} or block.match_buffers or block.alloc_buffers:
        return None
    if not ((wide and not reduced) or (spatial == list(rows) and reduced in ([], [columns]))):
        return None
    bound: dict[tirx.Var, Any] = {v.var: _number(0) for v in block.iter_vars if int(v.dom.extent) == 1}
    walked = [v.var for v in block.iter_vars if int(v.dom.extent) > 1 and int(v.iter_type) == tirx.IterVar.DataPar]
    column = walked.pop() if wide else None
    if reduced:
        (column,) = (v.var for v in block.iter_vars if int(v.dom.extent) > 1 and v.var not in walked)
    stores, starts = _stores(block.body), _stores(block.init) if block.init is not None else []
    if stores is None or starts is None or len(starts) != (len(stores) if reduced else 0):
        return None
    found: list[_Part] = []
    for i, store in enumerate(stores):
        indices = tuple(_mapped(index, bound) for index in store.indices)
        part = _Part(store.buffer, indices, _mapped(store.value, bound), tuple(walked), column)
        if reduced:
            part = _reduction(part, starts[i])
            if part is None:
                return None
        found.append(part)
    return found


def _stores(body: tirx.Stmt) -> list[tirx.BufferStore] | None:
    """The stores of a statement, its bound variables put in; None if there is anything else."""
    found: list[tirx.BufferStore] = []
    bound: dict[tirx.Var, Any] = {}
    for s in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        if isinstance(s, tirx.Bind):
            bound[s.var] = _mapped(s.value, bound)
        elif isinstance(s, tirx.BufferStore):
            found.append(tirx.BufferStore(s.buffer, _mapped(s.value, bound), list(s.indices)))
        else:
            return None
    return found


def _reduction(part: _Part, start: tirx.BufferStore) -> _Part | None:
    """A part whose value joins what was stored before with an element's."""
    joined, value = type(part.value), part.value
    if joined not in _JOINED or not isinstance(start.value, tirx.FloatImm | tirx.IntImm):
        return None
    if _JOINED[joined] is not None and float(start.value.value) != _JOINED[joined]:
        return None
    if not _reads(value.a, part.target) or any(load.source.same_as(part.target) for load in loads_of(value.b)):
        return None
    return _Part(part.target, part.indices, value.b, part.rows, part.column, joined, start.value)


def _reads(value: Any, buffer: tirx.Buffer) -> bool:
    loads = loads_of(value)
    return len(loads) == 1 and loads[0].same_as(value) and loads[0].source.same_as(buffer)


def _local(parts: Sequence[_Part], inner: Sequence[tirx.Buffer]) -> bool:
    """Whether what a part reads of another's results is of its own row, and of its own element, and there already."""
    made: list[tuple[tirx.Buffer, bool]] = []
    for p in parts:
        for load in loads_of(p.value):
            wide = next((w for buffer, w in made if buffer.same_as(load.source)), None)
            if _in(load.source, inner) if wide is None else not _at(load.indices, load.source, p, wide):
                return False
        if _in(p.target, [buffer for buffer, _ in made]):
            return False
        wide = p.column is not None and p.joined is None
        if _at(p.indices, p.target, p, wide):
            made.append((p.target, wide))
        elif _in(p.target, inner) or _in(p.target, [load.source for q in parts for load in loads_of(q.value)]):
            return False  # another shape of the caller's is no matter where nobody reads it
    return True


def _straight(part: _Part, rows: int, columns: int) -> bool:
    """Whether a part walks along the last axis of what it reads and stores. What is reduced is read once, or is one row
    that all rows share: a matrix product is no reduction of rows."""
    if part.column is None:
        return True
    wide = [(load.source, load.indices) for load in loads_of(part.value)]
    wide += [] if part.joined else [(part.target, part.indices)]
    for buffer, indices in wide:
        *others, last = [i for i, d in zip(indices, buffer.shape, strict=True) if int(d) > 1] or [_number(0)]
        if any(v.same_as(part.column) for i in others for v in _variables(i)):
            return False
        if last.same_as(part.column):
            if part.joined and columns < math.prod(map(int, buffer.shape)) < rows * columns:
                return False
        elif any(v.same_as(part.column) for v in _variables(last)):
            return False
    return True


def _at(indices: Sequence[Any], buffer: tirx.Buffer, part: _Part, wide: bool) -> bool:
    """Whether indices are those of the part's row, and element where `wide`."""
    if wide and part.column is None:
        return False
    wanted = [*part.rows, *([part.column] if wide else [])]
    given = [i for i, d in zip(indices, buffer.shape, strict=True) if int(d) > 1]
    return len(given) == len(wanted) and all(a.same_as(b) for a, b in zip(given, wanted, strict=True))


def _in(buffer: tirx.Buffer, others: Sequence[tirx.Buffer]) -> bool:
    return any(buffer.same_as(b) for b in others)


def _passes(parts: Sequence[_Part]) -> list[_Pass]:
    """The fewest passes in order: one ends where an element needs what is known of the whole row only then."""
    found = [_Pass()]
    late: list[tirx.Buffer] = []
    for p in parts:
        if p.column is None:
            found[-1].after.append(p)
            late.append(p.target)
            continue
        if any(_in(load.source, late) for load in loads_of(p.value)):
            found.append(_Pass())
            late = []
        found[-1].each.append(p)
        if p.joined:
            late.append(p.target)
    return found


def _variables(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tirx.Var, found.append))
    return found


def _mapped(value: Any, bound: dict[tirx.Var, Any]) -> Any:
    """An expression with variables replaced."""
    return tvm_ffi.structural_map(value, (tirx.Var, lambda v: bound.get(v, v))) if bound else value


def _number(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


# -- programs ----------------------------------------------------------------------------------------------------------


def _space(work: _Work, lanes: int) -> Space:
    widths = [n * lanes for n in VECTORS if n * lanes <= work.columns]
    knobs = [Knob("width", "choice", tuple(widths) or (1 << (work.columns.bit_length() - 1),))]
    if math.prod(work.rows) > 1:
        knobs.append(Knob("threads", "choice", ("all", "one")))
    return Space(tuple(knobs), version=VERSION, name="rows")


def _program(work: _Work, width: int, parallel: bool) -> tirx.Stmt:
    """The loop over all rows."""
    count, row = math.prod(work.rows), tirx.Var("row", "int32")
    at, stride = [], count
    for n in work.rows:
        stride //= n
        at.append(tirx.floormod(tirx.floordiv(row, stride), n))
    writer = _Writer(work, width, at)
    body = tirx.stmt_seq(*writer.allocated(), *(s for p in work.passes for s in writer.walked(p)))
    kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
    return tirx.For(row, _number(0), _number(count), kind, body)


class _Writer:
    """Writes the statements of one row.

    Args:
        width: Elements of a vector, a power of two.
        at: The row's index on each axis.
    """

    def __init__(self, work: _Work, width: int, at: list[Any]) -> None:
        self.work, self.width, self.at = work, width, at
        self.kept = {b: tirx.decl_buffer((n,), str(b.dtype), f"row_{b.name}") for b, n in work.kept.items()}
        reduced = [p for one in work.passes for p in one.each if p.joined]
        self.partial = {
            p.target: tirx.decl_buffer((width,), str(p.target.dtype), f"lanes_{p.target.name}", scope="local")
            for p in reduced
        }

    def allocated(self) -> list[tirx.Stmt]:
        return [tirx.AllocBuffer(b) for b in (*self.kept.values(), *self.partial.values())]

    def walked(self, one: _Pass) -> Iterator[tirx.Stmt]:
        """The statements of a pass."""
        sums = [p for p in one.each if p.joined]
        for p in sums:
            yield _vector(self.width, lambda lane, p=p: self._lanes(p, lane, p.start))
        columns, width = self.work.columns, self.width
        if one.each and (whole := columns // width):
            block = tirx.Var("block", "int32")
            body = tirx.stmt_seq(*(self._element(p, block * width, width) for p in one.each))
            yield tirx.For(block, _number(0), _number(whole), tirx.ForKind.SERIAL, body)
        start, left = columns - columns % width, columns % width if one.each else 0
        while left:
            width = 1 << (left.bit_length() - 1)
            yield from (self._element(p, _number(start), width) for p in one.each)
            start, left = start + width, left - width
        for p in sums:
            yield from self._joined(p)
        for p in one.after:
            yield self._store(p, self._bound(p, None), self._local(p.value, p))

    def _element(self, p: _Part, start: Any, width: int) -> tirx.Stmt:
        """A part at `width` elements from `start` on."""

        def at(lane: Any) -> tirx.Stmt:
            column = start + lane
            bound = self._bound(p, column)
            value = _mapped(self._local(p.value, p), bound)
            if p.joined is None:
                return self._store(p, bound, value)
            return self._join(p, lane, value)

        return _vector(width, at)

    def _joined(self, p: _Part) -> Iterator[tirx.Stmt]:
        """Halves of the partial results until one is left, which is stored."""
        lanes = self.partial[p.target]
        half = self.width // 2
        while half:

            def at(lane: Any, half: int = half) -> tirx.Stmt:
                return self._join(p, lane, tirx.BufferLoad(lanes, [lane + half]))

            yield _vector(half, at)
            half //= 2
        yield self._store(p, self._bound(p, None), tirx.BufferLoad(lanes, [_number(0)]))

    def _join(self, p: _Part, lane: Any, value: Any) -> tirx.Stmt:
        """A lane's partial result with a value."""
        assert p.joined is not None, "a part that reduces"
        return self._lanes(p, lane, p.joined(tirx.BufferLoad(self.partial[p.target], [lane]), value))

    def _lanes(self, p: _Part, lane: Any, value: Any) -> tirx.Stmt:
        return tirx.BufferStore(self.partial[p.target], value, [lane])

    def _bound(self, p: _Part, column: Any) -> dict[tirx.Var, Any]:
        bound = dict(zip(p.rows, self.at, strict=True))
        return bound if column is None or p.column is None else {**bound, p.column: column}

    def _store(self, p: _Part, bound: dict[tirx.Var, Any], value: Any) -> tirx.Stmt:
        """To the buffer of one row, or to the caller's."""
        value = _mapped(value, bound)
        if p.target in self.kept:
            column = bound[p.column] if p.column is not None and p.joined is None else _number(0)
            return tirx.BufferStore(self.kept[p.target], value, [column])
        return tirx.BufferStore(p.target, value, [_mapped(i, bound) for i in p.indices])

    def _local(self, value: Any, p: _Part) -> Any:
        """A value that reads the buffers of one row."""

        def moved(load: Any) -> Any:
            mine = self.kept.get(load.source)
            if mine is None:
                return load
            return tirx.BufferLoad(mine, [p.column if self.work.kept[load.source] > 1 else _number(0)])

        return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, moved))


def _vector(width: int, at: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A statement for each of `width` lanes."""
    if width == 1:
        return at(_number(0))
    lane = tirx.Var("lane", "int32")
    return tirx.For(lane, _number(0), _number(width), tirx.ForKind.VECTORIZED, at(lane))
