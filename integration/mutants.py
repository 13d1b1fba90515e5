"""Scheduled programs broken on purpose, each way as a template or a schedule may be wrong; and operators to break.

A mutation changes one statement of a program: a store of a block, its initialisation, a loop, or an expression. Some
change nothing that shows, e.g. where the last row is overwritten later; whoever uses them compares bits to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tt_core import models
from tt_core.compiler.backend import TvmBackend, TvmCandidate
from tt_core.compiler.lower import lower
from tt_core.compiler.target import resolve
from tt_spec import Task
from tvm import relax, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock
from tvm.tirx import BufferStore, For

__all__ = ["HARMLESS", "MUTATIONS", "OPERATORS", "Opened", "mutants", "opened"]

_RNG = np.random.default_rng(0)
_WEIGHT, _SCALE, _SHIFT = (relax.const(_RNG.normal(size=shape).astype("float32")) for shape in ((32, 24), (48,), (48,)))

OPERATORS: dict[str, tuple[str | tuple[tuple[int, ...], Callable[[Any], Any]], str, str]] = {
    "convolution": ("op:conv2d:1,8,12,16,3,1,1", "template", ""),
    "convolution, sketched": ("op:conv2d:1,8,12,16,3,1,1", "sketch", ""),
    "convolution, Winograd": ("op:conv2d:1,16,12,16,3,1,1", "both", "winograd"),
    "depthwise convolution": ("op:dwconv2d:1,16,12,3,1,1", "template", ""),
    "product": ("op:matmul:24,32,24", "template", ""),
    "product, GELU": (((20, 32), lambda x: relax.op.nn.gelu(relax.op.matmul(x, _WEIGHT))), "both", ""),
    "batched product": ("op:batch_matmul:2,16,16,24", "both", ""),
    "softmax": (((20, 48), lambda x: relax.op.nn.softmax(x, -1)), "both", "sketch"),
    "layer norm": (((20, 48), lambda x: relax.op.nn.layer_norm(x, _SCALE, _SHIFT, axes=[-1])), "both", "sketch"),
    "maximum pooling": (((1, 8, 12, 12), lambda x: relax.op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))), "both", ""),
}
"""By name: a model, or an input's shape and what is made of it; the space; and the part of it, where it has several."""


@dataclass
class Opened:
    """An operator's task in a backend of this process."""

    task: Task
    backend: TvmBackend
    part: str

    @property
    def work(self) -> Any:
        """What the backend keeps of it."""
        return self.backend._open[self.task.key]

    def candidates(self, rows: int, seed: int = 0) -> Iterator[tuple[np.ndarray, TvmCandidate]]:
        """Random rows that build, and their programs."""
        found = 0
        for row in self.task.space.sample(200 * rows, np.random.default_rng(seed)):
            if self.part and self.task.space.decode(row)["space"] != self.part:
                continue
            try:
                candidate = self.backend.build(self.task, row)
            except (ValueError, RuntimeError):  # no program, or one that TVM cannot build
                continue
            yield row, candidate
            found += 1
            if found == rows:
                return

    def outputs(self, candidate: TvmCandidate) -> list[np.ndarray]:
        """Its outputs on every draw."""
        work = self.work
        draws = work.reference().draws()
        return [out for d in draws for out in work.outputs(candidate._call, d, candidate._repacked)]

    def broken(self, candidate: TvmCandidate, mod: tvm.IRModule) -> TvmCandidate:
        """A mutant of a candidate's program, built."""
        return TvmCandidate(self.work, self.work.compile(mod), 0.0, candidate._repacked)


def opened(operator: str, target: tvm.target.Target | None = None) -> Opened:
    """One of `OPERATORS`."""
    made, space, part = OPERATORS[operator]
    mod = models.load(made).mod if isinstance(made, str) else _model(*made)
    tasks = lower(mod, target or resolve("native"), None, space).tasks
    task = next(t for t in tasks if not t.name.startswith("transpose"))
    backend = TvmBackend()
    backend.open(task)
    return Opened(task, backend, part)


def _model(shape: tuple[int, ...], make: Callable[[Any], Any]) -> tvm.IRModule:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(make(x)))
        builder.emit_func_output(y)
    return builder.get()


Store = Callable[[SBlock, BufferStore], Any]
"""A block and its store to the store's new value; None where the mutation does not apply."""


def mutants(mod: tvm.IRModule, name: str, most: int) -> list[tvm.IRModule]:
    """The program with a mutation at one place each: at the first, the last and those between, `most` of them."""
    sites = _sites(mod, name)
    if len(sites) > most:
        sites = [sites[round(i * (len(sites) - 1) / max(1, most - 1))] for i in range(most)]
    return [_mapped(mod, name, site)[0] for site in sites]


def _sites(mod: tvm.IRModule, name: str) -> list[int]:
    return list(range(_mapped(mod, name, -1)[1]))


def _mapped(mod: tvm.IRModule, name: str, site: int) -> tuple[tvm.IRModule, int]:
    """The program with the mutation at its `site`-th place, and the number of places."""
    kind, change = MUTATIONS[name]
    count = 0

    def visit(node: Any) -> Any:
        nonlocal count
        new = change(node)
        if new is None:
            return node
        count += 1
        return new if count - 1 == site else node

    func = mod["main"]
    body = tvm_ffi.structural_map(func.body, (kind, visit))
    return tvm.IRModule({"main": func.with_body(body)}), count


# -- what is changed --------------------------------------------------------------------------------------------------


def _block(block: SBlock, body: tirx.Stmt, init: tirx.Stmt | None) -> SBlock:
    return SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip


def _value(change: Store) -> tuple[type, Callable[[SBlock], SBlock | None]]:
    """A mutation of what a block stores; not of a block that initialises alone."""

    def changed(block: SBlock) -> SBlock | None:
        store = block.body
        if not isinstance(store, BufferStore) or not _loads(store.value) or not _is_float(store.value):
            return None
        value = change(block, store)
        return None if value is None else _block(block, BufferStore(store.buffer, value, store.indices), block.init)

    return SBlock, changed


def _begin(change: Store) -> tuple[type, Callable[[SBlock], SBlock | None]]:
    """A mutation of how a sum or a maximum begins."""

    def changed(block: SBlock) -> SBlock | None:
        alone = block.name_hint.endswith("_init")
        store = block.body if alone else block.init
        if not isinstance(store, BufferStore) or not _is_float(store.value):
            return None
        value = change(block, store)
        if value is None:
            return None
        new = BufferStore(store.buffer, value, store.indices)
        return _block(block, new, None) if alone else _block(block, block.body, new)

    return SBlock, changed


def _loop(change: Callable[[For], For | None]) -> tuple[type, Callable[[For], For | None]]:
    return For, change


def _within(kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Store:
    """The first expression of a kind in the stored value for which `change` has another."""

    def changed(block: SBlock, store: BufferStore) -> Any:
        done = False

        def visit(node: Any) -> Any:
            nonlocal done
            new = None if done else change(node)
            done = done or new is not None
            return node if new is None else new

        value = tvm_ffi.structural_map(store.value, (kind, visit))
        return value if done else None

    return changed


# -- parts ------------------------------------------------------------------------------------------------------------


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float")


def _loads(value: Any) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return found


def _itself(store: BufferStore) -> Any:
    return tirx.BufferLoad(store.buffer, list(store.indices))


def _is_update(store: BufferStore) -> bool:
    return any(load.source.same_as(store.buffer) for load in _loads(store.value))


def _wide(store: BufferStore, last: bool) -> tuple[Any, int] | None:
    """The last or first index of more than one value, and how many it has."""
    axes = [(i, int(n)) for i, n in zip(store.indices, store.buffer.shape, strict=True) if int(n) > 1]
    return None if not axes else axes[-1 if last else 0]


def _where(last: bool, cond: Callable[[Any, int], Any], other: Callable[[Any, BufferStore], Any]) -> Store:
    """Another value where a condition holds for the last or first wide index."""

    def change(block: SBlock, store: BufferStore) -> Any:
        axis = _wide(store, last)
        return None if axis is None else tirx.Select(cond(*axis), other(store.value, store), store.value)

    return change


def _stale(value: Any, store: BufferStore) -> Any:
    return _itself(store)


def _zero(value: Any, store: BufferStore) -> Any:
    return tirx.const(0.0, str(value.ty.dtype))


def _times(by: float) -> Callable[[Any, BufferStore], Any]:
    return lambda value, store: value * tirx.const(by, str(value.ty.dtype))


def _step(which: Callable[[int], int]) -> Store:
    """A sum that leaves out one step of its reduction."""

    def change(block: SBlock, store: BufferStore) -> Any:
        steps = [v for v in block.iter_vars if int(v.iter_type) == 2 and int(v.dom.extent) > 1]
        if not steps or not _is_update(store):
            return None
        v = steps[-1]
        return tirx.Select(v.var.equal(which(int(v.dom.extent))), _itself(store), store.value)

    return change


def _updated(make: Callable[[Any, Any], Any]) -> Store:
    """A sum's step made otherwise, of what was there and what is added."""

    def change(block: SBlock, store: BufferStore) -> Any:
        value = store.value
        if not isinstance(value, tirx.Add) or not _is_update(store):
            return None
        if not isinstance(value.a, TensorLoad) or not value.a.source.same_as(store.buffer):
            return None
        return make(value.a, value.b)

    return change


def _moved(by: int, last: bool, itself: bool = False) -> Store:
    """A load from a neighbour, within the buffer."""

    def change(block: SBlock, store: BufferStore) -> Any:
        def moved(load: TensorLoad) -> Any:
            if load.source.same_as(store.buffer) or not str(load.ty.dtype).startswith("float"):
                return None
            axes = [k for k, n in enumerate(load.source.shape) if int(n) > 1]
            if not axes:
                return None
            k = axes[-1 if last else 0]
            n, indices = int(load.source.shape[k]), list(load.indices)
            indices[k] = tirx.min(tirx.max(indices[k] + by, 0), n - 1)
            return tirx.BufferLoad(load.source, indices)

        return _within(TensorLoad, moved)(block, store)

    return change


def _last_as_neighbour(load: TensorLoad) -> Any:
    axes = [k for k, n in enumerate(load.source.shape) if int(n) > 1]
    if not axes or not _is_float(load):
        return None
    k, indices = axes[-1], list(load.indices)
    indices[k] = tirx.min(indices[k], int(load.source.shape[k]) - 2)
    return tirx.BufferLoad(load.source, indices)


def _swapped_indices(load: TensorLoad) -> Any:
    shape = [int(n) for n in load.source.shape]
    pairs = [(i, j) for i in range(len(shape)) for j in range(i) if shape[i] == shape[j] > 1]
    if not pairs:
        return None
    (i, j), indices = pairs[0], list(load.indices)
    indices[i], indices[j] = indices[j], indices[i]
    return tirx.BufferLoad(load.source, indices)


def _through(dtype: str) -> Store:
    return lambda block, store: store.value.astype(dtype).astype(str(store.value.ty.dtype))


def _condition(call: Any) -> tuple[Any, Any, Any] | None:
    """The parts of an if_then_else, e.g. of padding."""
    if isinstance(call, tirx.Select):
        return call.condition, call.true_value, call.false_value
    if getattr(call.op, "name", "").endswith("if_then_else"):
        return tuple(call.args)
    return None


def _padding(make: Callable[[Any, Any, Any], Any]) -> Store:
    def change(call: Any) -> Any:
        parts = _condition(call)
        return None if parts is None else make(*parts)

    return _within((tvm.ir.Call, tirx.Select), change)


def _narrower(cond: Any, then: Any, other: Any) -> Any:
    """One more row counts as padding."""
    done = False

    def visit(node: Any) -> Any:
        nonlocal done
        if done:
            return node
        done = True
        return node.a < node.b

    return tirx.if_then_else(tvm_ffi.structural_map(cond, (tirx.LE, visit)), then, other)


def _clipped_operand(make: Callable[[Any], Any]) -> Store:
    """The first operand otherwise than it is."""

    def change(block: SBlock, store: BufferStore) -> Any:
        def changed(load: TensorLoad) -> Any:
            return None if load.source.same_as(store.buffer) or not _is_float(load) else make(load)

        return _within(TensorLoad, changed)(block, store)

    return change


def _short(loop: For) -> For | None:
    if int(loop.extent) < 2 or int(loop.kind) not in (0, 1, 3):
        return None
    return For(loop.loop_var, loop.min, loop.extent - 1, loop.kind, loop.body, None, loop.annotations)


def _only_first(loop: For) -> For | None:
    """One thread's part."""
    if int(loop.kind) != 1 or int(loop.extent) < 2:
        return None
    return For(loop.loop_var, loop.min, (loop.extent + 1) // 2, loop.kind, loop.body, None, loop.annotations)


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


def _factor(node: tirx.FloatImm) -> Any:
    """But for what keeps a division from zero, which does not count, and what stands for infinity."""
    return tirx.const(node.value * 1.01, str(node.ty.dtype)) if 1e-3 < abs(node.value) < 1e30 else None


MUTATIONS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "a factor of 1.001": _value(lambda b, s: s.value * _f(1.001)),
    "the last lane is not written": _value(_where(True, lambda i, n: i.equal(n - 1), _stale)),
    "the last lane is zero": _value(_where(True, lambda i, n: i.equal(n - 1), _zero)),
    "one lane is half as large again": _value(_where(True, lambda i, n: i.equal(n // 2), _times(1.5))),
    "one lane is off by a thousandth": _value(_where(True, lambda i, n: i.equal(n // 2), _times(1.001))),
    "the last row is not written": _value(_where(False, lambda i, n: i.equal(n - 1), _stale)),
    "the first row is zero": _value(_where(False, lambda i, n: i.equal(0), _zero)),
    "the second half is not written": _value(_where(False, lambda i, n: i >= (n + 1) // 2, _stale)),
    "the tail of an eighth is zero": _value(_where(True, lambda i, n: i >= n - max(1, n // 8), _zero)),
    "every second lane has the other sign": _value(_where(True, lambda i, n: (i % 2).equal(1), _times(-1.0))),
    "no initialisation": _begin(lambda b, s: _itself(s)),
    "a sum begins with a hundredth": _begin(lambda b, s: None if s.value.value else _f(0.01)),
    "a maximum begins with zero": _begin(lambda b, s: _f(0.0) if s.value.value else None),
    "the last step of a sum is left out": _value(_step(lambda n: n - 1)),
    "the first step of a sum is left out": _value(_step(lambda n: 0)),
    "each step of a sum is added twice": _value(_updated(lambda was, x: was + x + x)),
    "a step of a sum replaces the others": _value(_updated(lambda was, x: x + was * _f(0.0))),
    "steps of a sum are subtracted": _value(_updated(lambda was, x: was - x)),
    "a lane too far is loaded": _value(_moved(1, True)),
    "a lane too early is loaded": _value(_moved(-1, True)),
    "a row too far is loaded": _value(_moved(1, False)),
    "a row too early is loaded": _value(_moved(-1, False)),
    "the last lane is its neighbour's": _value(_within(TensorLoad, _last_as_neighbour)),
    "rows and columns are swapped": _value(_within(TensorLoad, _swapped_indices)),
    "an operand is taken twice": _value(_within(tirx.Mul, lambda m: m.a * m.a)),
    "a sum for a product": _value(_within(tirx.Mul, lambda m: m.a + m.b)),
    "a difference the other way round": _value(_within(tirx.Sub, lambda m: m.b - m.a if _is_float(m) else None)),
    "a minimum for a maximum": _value(_within(tirx.Max, lambda m: tirx.min(m.a, m.b) if _is_float(m) else None)),
    "padding is not zero": _value(_padding(lambda c, a, b: tirx.if_then_else(c, a, b + _f(1.0)))),
    "a row is taken for padding": _value(_padding(_narrower)),
    "everything is padding": _value(_padding(lambda c, a, b: b)),
    "through float16": _value(_through("float16")),
    "through int32": _value(_through("int32")),
    "a constant 1 % too large": _value(_within(tirx.FloatImm, _factor)),
    "operands are cut off at 16": _value(_clipped_operand(lambda x: tirx.min(x, _f(16.0)))),
    "negative operands are zero": _value(_clipped_operand(lambda x: tirx.max(x, _f(0.0)))),
    "the sign of an operand is lost": _value(_clipped_operand(lambda x: tirx.abs(x))),
    "a loop ends one short": _loop(_short),
    "only the first threads work": _loop(_only_first),
}
"""By name: the kind of node that is changed, and the change, None where it does not apply."""

HARMLESS = {
    ("layer norm", "a constant 1 % too large"),
    *(
        ("softmax", name)
        for name in (
            "a factor of 1.001",
            "one lane is off by a thousandth",
            "every second lane has the other sign",
            "through float16",
            "through int32",
        )
    ),
}
"""Operators and mutations that need not show. Softmax may subtract any number, and the first thing that it computes is
the maximum, which it does subtract; in a sum of (x - m)(x - m) one of the means m may be any number.
"""
