"""Winograd's minimal filtering as programs yet to be scheduled: its matrices, its steps in place of a convolution.

Source: Lavin and Gray (2016), Fast algorithms for convolutional neural networks, CVPR, arXiv:1509.09308.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from tt_space.template import Anchor

__all__ = ["convolution", "matrices", "products", "rewritten", "tiles_of", "transformed"]

_POINTS = {2: (0, 1, -1), 4: (0, 1, -1, 2, -2)}


def matrices(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (m, m + 2), B (m + 2, m + 2) and G (m + 2, 3), so that the outputs of a 1-D signal d (m + 2,) filtered with
    g (3,) are A ((G g) * (B d)).

    Toom-Cook with the points of Lavin and Gray and infinity: A and G evaluate powers of the points, B solves for
    the only matrix that makes the identity hold for every d and g.
    """
    points, size = _POINTS[m], m + 2
    a = np.array([[p**i for p in points] + [float(i == m - 1)] for i in range(m)], dtype=np.float64)
    scale = [np.prod([p - q for q in points if q != p]) for p in points]
    g = np.array([[p**i / s for i in range(3)] for p, s in zip(points, scale, strict=True)] + [[0, 0, 1]])
    # sum_r A[i, r] G[r, k] B[r, j] = [j == i + k] for all i, j, k
    left = np.stack([a[i] * g[:, k] for i in range(m) for k in range(3)])
    right = np.stack([np.eye(size)[i + k] for i in range(m) for k in range(3)])
    b = np.linalg.lstsq(left, right, rcond=None)[0]
    return a, np.round(b, 9), g


def transformed(weight: np.ndarray, m: int) -> np.ndarray:
    """Packed weights `(blocks, 3, 3, channels, lanes)` as `(m + 2, m + 2, blocks, channels, lanes)`."""
    _, _, g = matrices(m)
    return np.einsum("iy,jx,byxcl->ijbcl", g, g, weight.astype(np.float64)).astype(weight.dtype)


def convolution(mod: tvm.IRModule, a: Anchor) -> Any:
    schedule = Schedule(mod, debug_mask="none")
    return schedule.get(schedule.get_sblock(a.name))


def rewritten(mod: tvm.IRModule, a: Anchor, m: int, weight: int) -> tvm.IRModule:
    """The workload with Winograd's steps in place of the convolution, and transformed weights as that argument.

    What stands before and after the convolution becomes a function of its own; `FuseTIR` joins them with the steps.
    """
    func = mod["main"]
    conv = convolution(mod, a)
    source, made = conv.reads[0].source, conv.writes[0].source
    root = func.body.block
    statements = list(root.body.seq)
    first = 1 if a.pad else 0
    inner = [b for b in root.alloc_buffers if not (b.same_as(made) or b.same_as(source))]
    *arguments, out = func.params
    others = [p for i, p in enumerate(arguments) if i != weight and not (a.pad is None and p.same_as(source))]
    image = others.pop(0) if a.pad else source
    builder = relax.BlockBuilder()
    made_of: dict[str, relax.Var] = {p.name: relax.Var(p.name, _tensor(p)) for p in (image, *others)}
    steps = _steps(a, m, str(source.dtype))
    repacked = relax.Var("weight", _tensor(steps.params[1]))
    order = [repacked if p is arguments[weight] else made_of[p.name] for p in arguments]
    with builder.function("fused", order, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            data = made_of[image.name]
            if a.pad:
                data = _emit(builder, "pad", [image], source, [], statements[:1], root, [data])
            packed = builder.add_func(steps.without_attr("global_symbol"), "winograd")
            y = builder.emit(relax.call_tir(packed, [data, repacked], _tensor(made)))
            rest = [made_of[p.name] for p in others]
            y = _emit(builder, "tail", [made, *others], out, inner, statements[first + 1 :], root, [y, *rest])
            y = builder.emit_output(y)
        fused = builder.emit_func_output(y)
    inputs = [relax.Var(v.name, v.ty) for v in order]
    with builder.function("main", inputs):
        with builder.dataflow():
            y = builder.emit_output(relax.Call(fused, inputs))
        builder.emit_func_output(y)
    joined = relax.transform.FuseTIR()(builder.get())
    (result,) = (f for f in joined.functions.values() if isinstance(f, tirx.PrimFunc))
    return tvm.IRModule({"main": result.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def _emit(
    builder: relax.BlockBuilder,
    name: str,
    params: list[Any],
    out: Any,
    inner: list[Any],
    statements: list[Any],
    root: Any,
    arguments: list[relax.Expr],
) -> relax.Var:
    """Call a function made of some statements of another one's root block."""
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
    block = tvm.s_tir.SBlock([], [], [], "root", body, None, inner)
    func = (
        tirx.PrimFunc([*params, out], tvm.s_tir.SBlockRealize([], True, block))
        .with_attr("s_tir", True)
        .with_attr("tirx.noalias", True)
    )
    return builder.emit(relax.call_tir(builder.add_func(func, name), arguments, _tensor(out)))


def _tensor(buffer: Any) -> relax.TensorType:
    return relax.TensorType([int(d) for d in buffer.shape], str(buffer.dtype))


def tiles_of(a: Anchor, m: int) -> int:
    """Number of tiles of m x m outputs."""
    n, height, width = a.pixels
    return n * -(-height // m) * -(-width // m)


def products(a: Anchor, m: int, tiles: int) -> tirx.PrimFunc:
    """The products of `_steps` alone, of some tiles."""
    size, channels = m + 2, a.reduce[2]
    whole = te.placeholder((size, size, tiles, channels), "float32", name="whole")
    weight = te.placeholder((size, size, a.blocks, channels, a.lanes), "float32", name="weight")
    return te.create_prim_func([whole, weight, _multiplied(whole, weight)], index_dtype_override="int64")


def _steps(a: Anchor, m: int, dtype: str) -> tirx.PrimFunc:
    """Padded image (NHWC) and transformed weights to packed outputs."""
    n, height, width = a.pixels
    channels, size = a.reduce[2], m + 2
    high, wide = -(-height // m), -(-width // m)
    image = te.placeholder((n, height + 2, width + 2, channels), dtype, name="image")
    weight = te.placeholder((size, size, a.blocks, channels, a.lanes), dtype, name="weight")
    at, bt, _ = (_constant(x, dtype, name) for x, name in zip(matrices(m), "ABG", strict=True))
    r = [te.reduce_axis((0, size), name) for name in ("r0", "r1", "r2", "r3")]

    def pixel(i: Any, y: Any, x: Any, c: Any) -> Any:
        inside = [*([y < height + 2] if height % m else []), *([x < width + 2] if width % m else [])]
        value = image(i, y, x, c)
        return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, dtype)) if inside else value

    # the tile of the image, its columns and then its rows transformed
    cut = te.compute(
        (n, high, wide, size, size, channels),
        lambda i, h, w, y, x, c: pixel(i, h * m + y, w * m + x, c),
        name="cut",
    )
    half = te.compute(
        (n, high, wide, size, size, channels),
        lambda i, h, w, y, x, c: te.sum(bt(y, r[0]) * cut(i, h, w, r[0], x, c), axis=r[0]),
        name="half",
    )
    whole = te.compute(
        (size, size, n * high * wide, channels),
        lambda y, x, t, c: te.sum(
            bt(x, r[1]) * half(t // (high * wide), t // wide % high, t % wide, y, r[1], c), axis=r[1]
        ),
        name="whole",
    )
    product = _multiplied(whole, weight)
    fold = te.compute(
        (n, high, wide, a.blocks, m, size, a.lanes),
        lambda i, h, w, b, y, x, f: te.sum(at(y, r[2]) * product(r[2], x, (i * high + h) * wide + w, b, f), axis=r[2]),
        name="fold",
    )
    out = te.compute(
        (n, height, width, a.blocks, a.lanes),
        lambda i, y, x, b, f: te.sum(at(x % m, r[3]) * fold(i, y // m, x // m, b, y % m, r[3], f), axis=r[3]),
        name="out",
    )
    return te.create_prim_func([image, weight, out], index_dtype_override="int64")


def _multiplied(whole: Any, weight: Any) -> Any:
    size, _, tiles, channels = whole.shape
    k = te.reduce_axis((0, channels), "k")
    return te.compute(
        (size, size, tiles, weight.shape[2], weight.shape[4]),
        lambda y, x, t, b, f: te.sum(whole(y, x, t, k) * weight(y, x, b, k, f), axis=k),
        name="product",
    )


def _constant(values: np.ndarray, dtype: str, name: str) -> Any:
    """A function of two indices; with loops unrolled, a number.

    Every pass over an unrolled program walks through what it is before it is one: row by row and without zeros it is
    less than half as long as a choice among all elements, and building a program takes 0.7 to 0.8 of the time.
    """

    def among(cases: list[tuple[Any, Any]], other: Any) -> Any:
        for here, value in reversed(cases):
            other = tirx.Select(here, value, other)
        return other

    def at(i: Any, j: Any) -> Any:
        zero = tirx.const(0.0, dtype)
        rows = [
            among([(tirx.EQ(j, x), tirx.const(float(v), dtype)) for x, v in enumerate(row) if v], zero)
            for row in values
        ]
        return among([(tirx.EQ(i, y), row) for y, row in enumerate(rows[:-1])], rows[-1])

    return at
