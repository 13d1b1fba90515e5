"""Operators of the standard that TVM's importer lacks, or takes in some forms only.

Source: ONNX operators Compress-11, CumProd-26, Det-22, LpNormalization-22, Col2Im-18, ConvTranspose-22, Dropout-13,
IsInf-20, LayerNormalization-17, DequantizeLinear-21, Pow-15, RMSNormalization-23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Only, Rewrite, RewriteError

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["operators"]

DET_MOST = 4
"""Rows of the largest matrix whose determinant is expanded."""


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("", "Compress"): _compress,
        ("", "CumProd"): _cumprod,
        ("", "Det"): _det,
        ("", "LpNormalization"): _lp,
        ("", "Col2Im"): _col2im,
        ("", "ConvTranspose"): Only(_has("output_shape"), _conv_transpose),
        ("", "Dropout"): Only(_more_outputs, _dropout),
        ("", "IsInf"): Only(_has("detect_negative", "detect_positive"), _is_inf),
        ("", "LayerNormalization"): Only(_more_outputs, _layer_norm),
        ("", "Pow"): Only(_never, _pow),
        ("", "RMSNormalization"): Only(_inner_axis, _rms),
        ("", "DequantizeLinear"): Only(_has("block_size"), _blocked),
    }


def _has(*names: str) -> Callable[[NodeProto], bool]:
    return lambda node: any(a.name in names for a in node.attribute)


def _more_outputs(node: NodeProto) -> bool:
    return any(o for o in node.output[1:])


def _never(node: NodeProto) -> bool:
    """For forms that a node does not show: tried only where the importer refused the model."""
    return False


def _pow(n: Node, g: Graph) -> Sequence[str] | None:
    """An exponent of another type than the base: ONNX allows that, TVM does not."""
    x, y = n.input(0), n.input(1)
    if g.dtype(x) == g.dtype(y):
        return None
    if g.dtype(x).kind == "f":
        return [g.op("Pow", x, g.cast(y, g.dtype(x)))]
    wide = g.op("Pow", g.cast(x, np.float32), g.cast(y, np.float32))
    return [g.cast(wide, g.dtype(x))]


def _inner_axis(node: NodeProto) -> bool:
    return any(a.name == "axis" and a.i != -1 for a in node.attribute)


def _rms(n: Node, g: Graph) -> Sequence[str] | None:
    """RMSNormalization-23 over several axes."""
    x, rank = n.input(0), len(g.shape(n.input(0)))
    axes = list(range(int(n.get("axis", -1)) % rank, rank))
    if len(axes) == 1:
        return None
    square = g.reduce("ReduceMean", g.op("Mul", x, x), axes)
    deviation = g.op("Sqrt", g.op("Add", square, np.array(n.get("epsilon", 1e-5), g.dtype(x))))
    return [g.op("Mul", g.op("Div", x, deviation), n.input(1))]


def _dropout(n: Node, g: Graph) -> Sequence[str] | None:
    """Inference leaves all as it is; the mask is true."""
    training = g.value(n.input(2)) if n.input(2) else np.array(False)
    ratio = g.value(n.input(1)) if n.input(1) else None
    if training is None or (training.any() and (ratio is None or ratio.any())):
        return None
    return [n.input(0), g.const(np.ones(g.shape(n.input(0)), bool))][: len(n.outputs)]


def _is_inf(n: Node, g: Graph) -> Sequence[str]:
    x = n.input(0)
    limits = [("detect_negative", -np.inf), ("detect_positive", np.inf)]
    found = [g.op("Equal", x, np.array(v, g.dtype(x))) for name, v in limits if n.get(name, 1)]
    if not found:
        return [g.const(np.zeros(g.shape(x), bool))]
    return [found[0] if len(found) == 1 else g.op("Or", *found)]


def _layer_norm(n: Node, g: Graph) -> Sequence[str] | None:
    """With the mean and the inverse deviation as outputs."""
    if not (n.wants(1) or n.wants(2)):
        return None
    x, rank = n.input(0), len(g.shape(n.input(0)))
    axes = list(range(int(n.get("axis", -1)) % rank, rank))
    mean = g.reduce("ReduceMean", x, axes)
    centred = g.op("Sub", x, mean)
    variance = g.reduce("ReduceMean", g.op("Mul", centred, centred), axes)
    deviation = g.op("Sqrt", g.op("Add", variance, np.array(n.get("epsilon", 1e-5), g.dtype(x))))
    y = g.op("Mul", g.op("Div", centred, deviation), n.input(1))
    y = g.op("Add", y, n.input(2)) if n.input(2) else y
    return [y, mean, g.op("Reciprocal", deviation)][: len(n.outputs)]


def _blocked(n: Node, g: Graph) -> Sequence[str] | None:
    """DequantizeLinear-21 with a scale for each `block_size` entries of an axis."""
    block = int(n.get("block_size", 0))
    if not block:
        return None
    x, axis = n.input(0), int(n.get("axis", 1)) % len(g.shape(n.input(0)))
    size = g.shape(x)[axis]
    which = np.arange(size, dtype=np.int64) // block
    scale = g.op("Gather", n.input(1), which, axis=axis)
    wide = g.cast(x, g.dtype(scale))
    if n.input(2):
        wide = g.op("Sub", wide, g.op("Gather", g.cast(n.input(2), g.dtype(scale)), which, axis=axis))
    return [g.op("Mul", wide, scale)]


def _compress(n: Node, g: Graph) -> Sequence[str]:
    kept = np.flatnonzero(g.known(n.input(1), "condition"))
    x, axis = n.input(0), n.get("axis")
    if axis is None:
        x, axis = g.reshape(x, (int(np.prod(g.shape(x))),)), 0
    return [g.op("Gather", x, kept.astype(np.int64), axis=int(axis))]


def _cumprod(n: Node, g: Graph) -> Sequence[str]:
    """Products of 1, 2, 4, ... neighbours: log2 of the length many steps."""
    x = n.input(0)
    shape = g.shape(x)
    axis = int(g.known(n.input(1), "axis").reshape(-1)[0]) % len(shape)
    size, reverse = shape[axis], bool(n.get("reverse", 0))
    one = np.ones((), g.dtype(x))

    def shifted(y: str, by: int) -> str:
        """Entries moved by that many places, ones in their stead."""
        ones = g.const(np.broadcast_to(one, (*shape[:axis], by, *shape[axis + 1 :])))
        if reverse:
            return g.concat([g.slice(y, axis, by, size), ones], axis)
        return g.concat([ones, g.slice(y, axis, 0, size - by)], axis)

    y = shifted(x, 1) if n.get("exclusive", 0) and size > 1 else x
    step = 1
    while step < size:
        y = g.op("Mul", y, shifted(y, step))
        step *= 2
    return [y]


def _det(n: Node, g: Graph) -> Sequence[str]:
    """By expansion along the first row; (..., M, M) to (...)."""
    x = n.input(0)
    rank, size = len(g.shape(x)), g.shape(x)[-1]
    if size > DET_MOST:
        raise RewriteError(f"its matrices have {size} rows, determinants are expanded for {DET_MOST} at most")

    def entry(i: int, j: int) -> str:
        return g.squeeze(g.slice(g.slice(x, rank - 2, i, i + 1), rank - 1, j, j + 1), rank - 2, rank - 1)

    def minor(row: int, columns: tuple[int, ...]) -> str:
        if len(columns) == 1:
            return entry(row, columns[0])
        total = ""
        for k, column in enumerate(columns):
            term = g.op("Mul", entry(row, column), minor(row + 1, columns[:k] + columns[k + 1 :]))
            total = term if not total else g.op("Sub" if k % 2 else "Add", total, term)
        return total

    return [minor(0, tuple(range(size)))]


def _lp(n: Node, g: Graph) -> Sequence[str]:
    x, axis, p = n.input(0), int(n.get("axis", -1)), int(n.get("p", 2))
    axis %= len(g.shape(x))
    norm = g.reduce("ReduceL1" if p == 1 else "ReduceL2", x, [axis])
    none = g.op("Equal", norm, np.zeros((), g.dtype(x)))
    return [g.op("Div", x, g.op("Where", none, np.ones((), g.dtype(x)), norm))]


def _col2im(n: Node, g: Graph) -> Sequence[str]:
    """(B, C * block, L) to (B, C, image): every pixel gathers the columns that hold it."""
    x = n.input(0)
    image, block = (g.known(n.input(i), w).astype(int) for i, w in ((1, "image_shape"), (2, "block_shape")))
    rank = len(image)
    dilations, strides = (list(n.get(a) or [1] * rank) for a in ("dilations", "strides"))
    pads = list(n.get("pads") or [0] * 2 * rank)
    batch, _, length = g.shape(x)
    counts = [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(rank)
    ]
    sources: dict[int, list[int]] = {}
    for offset in np.ndindex(*block):
        for at in np.ndindex(*counts):
            pixel = [at[i] * strides[i] + offset[i] * dilations[i] - pads[i] for i in range(rank)]
            if all(0 <= p < image[i] for i, p in enumerate(pixel)):
                column = np.ravel_multi_index(offset, block) * length + np.ravel_multi_index(at, counts)
                sources.setdefault(int(np.ravel_multi_index(pixel, image)), []).append(int(column))
    columns = int(np.prod(block)) * length
    flat = g.reshape(x, (batch, -1 if not batch else g.shape(x)[1] // int(np.prod(block)), columns))
    flat = g.concat([flat, g.const(np.zeros((*g.shape(flat)[:2], 1), g.dtype(x)))], 2)  # what absent sources read
    total = ""
    for k in range(max(map(len, sources.values()), default=0)):
        index = [s[k] if k < len(s := sources.get(p, [])) else columns for p in range(int(np.prod(image)))]
        part = g.op("Gather", flat, np.array(index, np.int64), axis=2)
        total = part if not total else g.op("Add", total, part)
    return [g.reshape(total, (batch, g.shape(flat)[1], *map(int, image)))]


def _conv_transpose(n: Node, g: Graph) -> Sequence[str] | None:
    """An output_shape as the pads that give it; all else as it is."""
    wanted = n.get("output_shape")
    if not wanted:
        return None
    x, w = g.shape(n.input(0)), g.shape(n.input(1))
    rank = len(x) - 2
    wanted = list(wanted)[-rank:]
    strides, dilations, more = (
        list(n.get(a) or [d] * rank) for a, d in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    begin, end = [], []
    for i in range(rank):
        full = strides[i] * (x[2 + i] - 1) + more[i] + (w[2 + i] - 1) * dilations[i] + 1
        total = full - wanted[i]
        first = total // 2 if n.get("auto_pad", "NOTSET") == "SAME_UPPER" else total - total // 2
        begin.append(first)
        end.append(total - first)
    if min(begin + end) < 0:  # the output is larger than what the kernel reaches: zeros, and the bias, beyond it
        more = [m - min(0, e) - min(0, b) for m, b, e in zip(more, begin, end, strict=True)]
        begin, end = [max(0, b) for b in begin], [max(0, e) for e in end]
    kept = {k: v for k, v in n.attributes.items() if k not in ("output_shape", "auto_pad", "pads", "output_padding")}
    return [g.op("ConvTranspose", *n.inputs, pads=begin + end, output_padding=more, **kept)]
