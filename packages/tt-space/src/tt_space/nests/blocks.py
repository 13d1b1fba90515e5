"""The statements of a workload before it is scheduled, read from TVM once per space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from tt_space.nests.index import Affine, Uninterpreted, divided, remainder

__all__ = ["Block", "Buffer", "Compared", "Index", "Load", "read_blocks"]

Index = Callable[[dict[str, Affine]], Affine]
"""An index of a block's iterators, given what they are bound to."""


@dataclass(eq=False)
class Buffer:
    """Args: `param` says whether the caller owns it; one that is not is allocated where it is used."""

    name: str
    shape: tuple[int, ...]
    bytes: int
    param: bool


@dataclass(frozen=True)
class Load:
    """A load of a value, with the indices of a buffer."""

    buffer: Buffer
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Compared:
    """A condition of an `if_then_else`: `at_least <= index` or `index < below`."""

    index: Index
    at_least: int | None
    below: int | None


@dataclass(eq=False)
class Block:
    """A statement.

    Args:
        iters: Extent of each iterator by name, in order; `reduced` are those it reduces over.
        target, written: The stored buffer, with the name of its iterator, or a number, for each dimension.
        counts: Operations of the value by the names in `tt_space.nests.features.COUNTS`, those of indices aside.
        guards: Conditions, of which some may be known; where all are, the value has no `if_then_else`.
        bound: What the iterators are bound to.
        above: The loops around its initialisation, for one that reduces.
    """

    name: str
    iters: dict[str, int]
    reduced: frozenset[str]
    target: Buffer
    written: tuple[str | int, ...]
    loads: tuple[Load, ...]
    counts: dict[str, int]
    guards: tuple[tuple[Compared, ...], ...]
    bound: dict[str, Affine] = field(default_factory=dict)
    parent: Any = None
    above: tuple[Any, ...] | None = None


_FLOAT_OR_INT = {
    "Add": "add_sub",
    "Sub": "add_sub",
    "Mul": "mul",
    "Div": "div_mod",
    "Mod": "div_mod",
    "FloorDiv": "div_mod",
    "FloorMod": "div_mod",
    "Max": "cmp",
    "Min": "cmp",
    "EQ": "cmp",
    "NE": "cmp",
    "LT": "cmp",
    "LE": "cmp",
    "GT": "cmp",
    "GE": "cmp",
}
_SHIFTS = ("LShift", "RShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor")
"""Operators of integers that are calls by the time TVM counts them."""
_LEAVES = ("IntImm", "FloatImm", "Var", "StringImm")


def read_blocks(mod: tvm.IRModule) -> list[Block]:
    """The blocks of a function that is a list of loop nests, in order. Raises `Uninterpreted`."""
    main = mod["main"]
    root: Any = getattr(main.body, "block", None)
    if getattr(root, "name_hint", "") != "root" or list(root.iter_vars) or main.attrs is None:
        raise Uninterpreted("the function is not a list of loop nests")
    buffers: dict[str, Buffer] = {}
    for param, buffer in [*((True, p) for p in main.params), *((False, b) for b in root.alloc_buffers)]:
        shape = [int(d) for d in buffer.shape if isinstance(d, int | tirx.IntImm)]
        if len(shape) != len(buffer.shape) or buffer.name in buffers:
            raise Uninterpreted(f"buffer {buffer.name} has no static shape or a name twice")
        buffers[buffer.name] = Buffer(buffer.name, tuple(shape), _bytes(str(buffer.dtype)), param)
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    return [_read(nest, buffers) for nest in nests]


def _bytes(dtype: str) -> int:
    return max(1, tvm.DataType(dtype).bits // 8)


def _read(nest: Any, buffers: dict[str, Buffer]) -> Block:
    loops = []
    while isinstance(nest, tirx.For):
        if nest.annotations or int(nest.kind) != tirx.ForKind.SERIAL:
            raise Uninterpreted("a loop of the workload is annotated")
        loops.append(nest.loop_var)
        nest = nest.body
    if not isinstance(nest, tvm.s_tir.SBlockRealize) or not _true(nest.predicate):
        raise Uninterpreted("a nest of the workload does not end in one plain block")
    block, values = nest.block, list(nest.iter_values)
    if not isinstance(block.body, tirx.BufferStore) or list(block.alloc_buffers) or list(block.match_buffers):
        raise Uninterpreted(f"block {block.name_hint} has more than one statement")
    if len(values) != len(loops) or not all(v.same_as(x) for v, x in zip(values, loops, strict=True)):
        raise Uninterpreted(f"block {block.name_hint} is not bound to its loops in order")
    store = block.body
    if block.init is not None and not (
        isinstance(block.init, tirx.BufferStore) and isinstance(block.init.value, tirx.FloatImm | tirx.IntImm)
    ):
        raise Uninterpreted(f"block {block.name_hint} starts from a value that is not constant")
    names = {v.var: f"{i}" for i, v in enumerate(block.iter_vars)}
    reader = _Reader(names, buffers)
    reader.visit(store.value)
    return Block(
        name=block.name_hint,
        iters={f"{i}": int(v.dom.extent) for i, v in enumerate(block.iter_vars)},
        reduced=frozenset(f"{i}" for i, v in enumerate(block.iter_vars) if v.iter_type != 0),
        target=buffers[store.buffer.name],
        written=tuple(_plain(i, names) for i in store.indices),
        loads=tuple(reader.loads),
        counts=reader.counts,
        guards=tuple(reader.guards),
    )


def _true(e: Any) -> bool:
    return (isinstance(e, bool) and e) or (isinstance(e, tirx.IntImm) and int(e) == 1)


def _plain(e: Any, names: dict[Any, str]) -> str | int:
    if isinstance(e, tirx.IntImm):
        return int(e)
    for var, name in names.items():
        if e.same_as(var):
            return name
    raise Uninterpreted("a block stores to an index that is not one of its iterators")


class _Reader:
    """Operations, loads and conditions of a value."""

    def __init__(self, names: dict[Any, str], buffers: dict[str, Buffer]) -> None:
        self.names, self.buffers = names, buffers
        self.loads: list[Load] = []
        self.counts: dict[str, int] = {}
        self.guards: list[tuple[Compared, ...]] = []

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def visit(self, e: Any) -> None:
        kind = type(e).__name__
        if kind in ("BufferLoad", "TensorLoad"):
            source = getattr(e, "buffer", None) or e.source
            self.loads.append(Load(self.buffers[source.name], tuple(self.index(i) for i in e.indices)))
        elif kind in ("FloatImm", "IntImm"):
            return
        elif kind == "Call" and e.op.name.endswith("if_then_else"):
            self._guarded(e)
        elif kind == "Call" and _pure(e):
            self.count("float_math" if "float" in str(e.ty) else "int_math")
            for a in e.args:
                self.visit(a)
        elif kind == "Cast":
            self.visit(e.value)
        elif kind in _SHIFTS:
            self.count("int_math")
            self.visit(e.a)
            self.visit(e.b)
        elif kind in _FLOAT_OR_INT and kind not in ("FloorDiv", "FloorMod", "EQ", "NE", "LT", "LE", "GT", "GE"):
            self.count(("float_" if "float" in str(e.ty) else "int_") + _FLOAT_OR_INT[kind])
            self.visit(e.a)
            self.visit(e.b)
        else:
            raise Uninterpreted(f"a value has a {kind}")

    def _guarded(self, e: Any) -> None:
        """`if_then_else(conditions on indices, value, constant)`: the padding of a convolution."""
        condition, value, other = e.args
        if not isinstance(other, tirx.FloatImm | tirx.IntImm) or self.guards:
            raise Uninterpreted("a value has an if_then_else that is no padding")
        self.guards.append(tuple(self._compared(condition)))
        self.visit(value)

    def _compared(self, e: Any) -> list[Compared]:
        if isinstance(e, tirx.And):
            return [*self._compared(e.a), *self._compared(e.b)]
        if isinstance(e, tirx.LE) and isinstance(e.a, tirx.IntImm):
            return [Compared(self.index(e.b), int(e.a), None)]
        if isinstance(e, tirx.GE) and isinstance(e.b, tirx.IntImm):
            return [Compared(self.index(e.a), int(e.b), None)]
        if isinstance(e, tirx.LT) and isinstance(e.b, tirx.IntImm):
            return [Compared(self.index(e.a), None, int(e.b))]
        raise Uninterpreted("a condition of a padding is no bound of an index")

    def index(self, e: Any) -> Index:
        if isinstance(e, int | tirx.IntImm):
            number = Affine((), int(e))
            return lambda bound: number
        for var, name in self.names.items():
            if e.same_as(var):
                return lambda bound, name=name: bound[name]
        kind = type(e).__name__
        if kind in ("Add", "Sub"):
            a, b = self.index(e.a), self.index(e.b)
            return (lambda bound: a(bound) + b(bound)) if kind == "Add" else (lambda bound: a(bound) - b(bound))
        if kind in ("Mul", "FloorDiv", "FloorMod") and isinstance(e.b, tirx.IntImm) and int(e.b) > 0:
            a, c = self.index(e.a), int(e.b)
            if kind == "Mul":
                return lambda bound: a(bound) * c
            make = divided if kind == "FloorDiv" else remainder
            return lambda bound: make(a(bound), c)
        raise Uninterpreted(f"an index has a {kind}")


def _pure(e: Any) -> bool:
    """Whether a call is a function of its arguments alone: TVM's effects 0 and 1."""
    effect = e.op.get_attr("TCallEffectKind")
    return effect is not None and int(effect) <= 1
