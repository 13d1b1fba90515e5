"""Heavy operators in the form that templates can cut: weights packed by lanes, channels innermost.

Activations stay NHWC, on which every operator of a network agrees, whatever its channel count; only the weights have to
lie in lane-sized blocks for full vector loads, and those are constants: they are packed when the model is compiled,
`(blocks, kernel height, kernel width, input channels, lanes)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tt_space.machine import vector_unit

__all__ = ["ANCHOR", "WHOLE", "legalizers"]

ANCHOR = "tt.anchor"
"""Annotation of the block that a template schedules; its value is the kind: contraction, depthwise or batched."""

WHOLE = "tt.whole"
"""Annotation of such a block whose weights are whole numbers, as those of quantised operators: its sums may be meant to
be exact, whole numbers too, so programs must not compute anything else than these products."""

MOST_WHOLE = 255
"""Largest magnitude of such weights: of bytes without their zero point."""

OUT_EWISE_FUSABLE = 4


def legalizers(target: tvm.target.Target) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """Legalisation of the operators that have a template on this target, for `relax.transform.LegalizeOps`."""
    if target.kind.name != "llvm":
        return {}
    unit = vector_unit(target)
    images: list[tuple[relax.Expr, relax.Expr]] = []  # NHWC copies, and the NCHW images they were made of

    def permute_dims(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        copy = _default(builder, call)
        if call.attrs.axes is not None and _ints(call.attrs.axes) == [0, 2, 3, 1]:
            images.append((copy, call.args[0]))
        return copy

    def conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        attrs, (data, weight) = call.attrs, call.args
        values = _constant(weight)
        dtype = str(data.ty.dtype) if _shape(data) else ""
        known = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NHWC", "OIHW", "NHWC")
        if not (known and values is not None and _float(dtype) and _same(attrs.out_dtype, dtype)):
            return _default(builder, call)
        filters, channels, *kernel = values.shape
        groups, lanes = int(attrs.groups), unit.lanes(dtype)
        if channels == 1 and groups == filters > 1:
            name, lanes = "depthwise_conv2d", _dividing(filters, lanes)
            packed = _packed(values[:, 0].transpose(1, 2, 0), lanes)
        else:
            name = "conv2d" if groups == 1 else "group_conv2d"
            lanes = _fitting(filters, lanes) if groups == 1 else _grouped(filters // groups, groups, lanes)
            packed = _packed(values.transpose(2, 3, 1, 0), lanes) if groups == 1 else _spread(values, groups, lanes)
        bound = builder.lookup_binding(data) if isinstance(data, relax.Var) else None
        image = None
        if bound is not None and channels * groups < unit.lanes(dtype):  # with more channels a separate copy is faster
            image = next((i for copy, i in images if copy.same_as(bound)), None)
        steps = (_ints(attrs.strides), _ints(attrs.padding), _ints(attrs.dilation))
        geometry = _Geometry(kernel, channels, filters, groups, *steps, image is not None)
        compute = partial(_conv2d, geometry=geometry, whole=_whole(values))
        source = data if image is None else image
        how = {"primfunc_name_hint": name, "primfunc_attrs": _attrs()}
        return builder.call_te(compute, source, relax.const(packed), **how)

    def matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        left, right = call.args
        a, b = _shape(left), _shape(right)
        dtype = str(left.ty.dtype) if a else ""
        if not a or not b or len(a) < 2 or not _float(dtype) or not _same(call.attrs.out_dtype, dtype):
            return _default(builder, call)
        lanes = unit.lanes(dtype)
        values = _constant(right)
        if len(b) == 2 and values is not None:
            weight = relax.const(_packed(values, _fitting(b[1], lanes)))
            more = (b[1], _whole(values))
            return builder.call_te(_matmul, left, weight, *more, primfunc_name_hint="matmul", primfunc_attrs=_attrs())
        if len(a) == len(b) > 2 and a[:-2] == b[:-2] and b[-1] % lanes == 0:
            return builder.call_te(
                _batched, left, right, lanes, primfunc_name_hint="batch_matmul", primfunc_attrs=_attrs()
            )
        return _default(builder, call)

    return {"relax.nn.conv2d": conv2d, "relax.matmul": matmul, "relax.permute_dims": permute_dims}


# -- weights and computations --------------------------------------------------------------------------------------


def _packed(weight: np.ndarray, lanes: int) -> np.ndarray:
    """`(..., filters)` to `(blocks, ..., lanes)`, zeros after the last filter."""
    *front, filters = weight.shape
    blocks = -(-filters // lanes)
    padded = np.zeros((*front, blocks * lanes), weight.dtype)
    padded[..., :filters] = weight
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*front, blocks, lanes), -2, 0))


def _spread(weight: np.ndarray, groups: int, lanes: int) -> np.ndarray:
    """Weights `(filters, channels of a group, ky, kx)` as `_packed` gives them, with the channels of all groups that a
    block has filters of: zeros for those of another group."""
    filters, channels, *kernel = weight.shape
    size, most = filters // groups, _groups_of_a_block(filters // groups, groups, lanes)
    wide = np.zeros((*kernel, most * channels, filters), weight.dtype)
    for f in range(filters):
        at = f // size - _first_group(f // lanes, size, groups, lanes)
        wide[:, :, at * channels : (at + 1) * channels, f] = weight[f].transpose(1, 2, 0)
    return _packed(wide, lanes)


def _first_group(block: Any, size: int, groups: int, lanes: int) -> Any:
    """The first group of which a block reads channels; it may be an expression."""
    first = block * lanes // size
    last = groups - _groups_of_a_block(size, groups, lanes)
    return first if size % lanes == 0 else min(first, last) if isinstance(block, int) else tirx.min(first, last)


def _groups_of_a_block(size: int, groups: int, lanes: int) -> int:
    """The most groups, of `size` filters each, that a block has filters of."""
    filters = size * groups
    return max((min(f + lanes, filters) - 1) // size - f // size + 1 for f in range(0, filters, lanes))


def _grouped(size: int, groups: int, lanes: int) -> int:
    """The lanes with which a convolution of groups takes the fewest operations on vectors; the fewest lanes of equals,
    which multiply the fewest zeros."""
    choices, filters = [_dividing(size, lanes)], size * groups
    while choices[-1] < lanes:
        choices.append(2 * choices[-1])
    return min(choices, key=lambda n: (-(-filters // n) * _groups_of_a_block(size, groups, n), n))


@dataclass(frozen=True)
class _Geometry:
    """A convolution's sizes as in relax; `channels` are those of one group, `padding` is top, left, bottom, right, and
    `nchw` tells the image's layout."""

    kernel: Sequence[int]
    channels: int
    filters: int
    groups: int
    strides: list[int]
    padding: list[int]
    dilation: list[int]
    nchw: bool


def _padded(data: te.Tensor, padding: list[int], nchw: bool) -> te.Tensor:
    """The image as NHWC with zeros around. An NCHW image is transposed on the way: a copy is made anyway."""
    top, left, bottom, right = padding
    n, h, w, c = (int(data.shape[i]) for i in ((0, 2, 3, 1) if nchw else (0, 1, 2, 3)))
    if not any(padding) and not nchw:
        return data

    def value(i: Any, y: Any, x: Any, ch: Any) -> Any:
        here = data(i, ch, y - top, x - left) if nchw else data(i, y - top, x - left, ch)
        inside = [
            *([y >= top] if top else []),
            *([y < h + top] if bottom else []),
            *([x >= left] if left else []),
            *([x < w + left] if right else []),
        ]
        return tirx.if_then_else(tirx.all(*inside), here, tirx.const(0, data.dtype)) if inside else here

    return te.compute((n, h + top + bottom, w + left + right, c), value, name="pad")


def _unpacked(packed: te.Tensor, size: int, lanes: int) -> te.Tensor:
    """`(..., blocks, lanes)` to `(..., size)`."""
    shape = [*(int(d) for d in packed.shape[:-2]), size]
    return te.compute(shape, lambda *i: packed(*i[:-1], i[-1] // lanes, i[-1] % lanes), name="unpack")


def _window(data: te.Tensor, kernel: Sequence[int], strides: list[int], dilation: list[int]) -> tuple[int, int]:
    return tuple(  # type: ignore[return-value]
        (int(data.shape[1 + i]) - (kernel[i] - 1) * dilation[i] - 1) // strides[i] + 1 for i in (0, 1)
    )


def _conv2d(data: te.Tensor, weight: te.Tensor, geometry: _Geometry, whole: bool) -> te.Tensor:
    """Contraction of weights `(blocks, ky, kx, channels, lanes)`; depthwise of `(blocks, ky, kx, lanes)`."""
    g, depthwise = geometry, len(weight.shape) == 4
    padded = _padded(data, g.padding, g.nchw)
    height, width = _window(padded, g.kernel, g.strides, g.dilation)
    blocks, channels, lanes = (int(weight.shape[i]) for i in (0, 3, -1))
    ky, kx = te.reduce_axis((0, g.kernel[0]), "ky"), te.reduce_axis((0, g.kernel[1]), "kx")
    ch = te.reduce_axis((0, channels), "c")

    def value(n: Any, y: Any, x: Any, b: Any, f: Any) -> Any:
        pixel = (n, y * g.strides[0] + ky * g.dilation[0], x * g.strides[1] + kx * g.dilation[1])
        if depthwise:
            return te.sum(padded(*pixel, b * lanes + f) * weight(b, ky, kx, f), axis=[ky, kx])
        first = _first_group(b, g.filters // g.groups, g.groups, lanes) * g.channels if g.groups > 1 else 0
        return te.sum(padded(*pixel, first + ch) * weight(b, ky, kx, ch, f), axis=[ky, kx, ch])

    shape = (int(data.shape[0]), height, width, blocks, lanes)
    name, kind = ("depthwise_conv2d", "depthwise") if depthwise else ("conv2d", "contraction")
    return _unpacked(te.compute(shape, value, name=name, attrs=_marks(kind, whole)), g.filters, lanes)


def _matmul(left: te.Tensor, weight: te.Tensor, size: int, whole: bool) -> te.Tensor:
    blocks, depth, lanes = (int(d) for d in weight.shape)
    k = te.reduce_axis((0, depth), "k")
    shape = (*(int(d) for d in left.shape[:-1]), blocks, lanes)
    out = te.compute(
        shape,
        lambda *i: te.sum(left(*i[:-2], k) * weight(i[-2], k, i[-1]), axis=k),
        name="matmul",
        attrs=_marks("contraction", whole),
    )
    return _unpacked(out, size, lanes)


def _batched(left: te.Tensor, right: te.Tensor, lanes: int) -> te.Tensor:
    size, k = int(right.shape[-1]), te.reduce_axis((0, int(left.shape[-1])), "k")
    shape = (*(int(d) for d in left.shape[:-1]), size // lanes, lanes)
    out = te.compute(
        shape,
        lambda *i: te.sum(left(*i[:-2], k) * right(*i[:-3], k, i[-2] * lanes + i[-1]), axis=k),
        name="batch_matmul",
        attrs={ANCHOR: "batched"},
    )
    return _unpacked(out, size, lanes)


# -- small things ---------------------------------------------------------------------------------------------------


def _default(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _attrs() -> dict[str, int]:
    """Attributes that let elementwise consumers be fused: TVM cannot tell from an operator of several stages."""
    return {"op_pattern": OUT_EWISE_FUSABLE}


def _marks(kind: str, whole: bool) -> dict[str, Any]:
    return {ANCHOR: kind, WHOLE: 1} if whole else {ANCHOR: kind}


def _whole(weight: np.ndarray) -> bool:
    """Whether weights are those of a quantised operator."""
    most = np.abs(weight).max(initial=0)
    return bool(1 < most <= MOST_WHOLE and (weight == np.rint(weight)).all())


def _constant(expr: relax.Expr) -> np.ndarray | None:
    """The value of a constant, else None."""
    return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def _shape(expr: relax.Expr) -> list[int] | None:
    """A known static shape, or None."""
    shape = getattr(expr.ty, "shape", None)
    values = getattr(shape, "values", None)
    if values is None or not all(isinstance(d, int | tirx.IntImm) for d in values):
        return None
    return [int(d) for d in values]


def _ints(values: Any) -> list[int]:
    return [int(v) for v in values]


def _same(out_dtype: Any, dtype: str) -> bool:
    return out_dtype is None or str(out_dtype) in ("", dtype)


def _float(dtype: str) -> bool:
    return dtype in ("float32", "float64")


def _fitting(size: int, lanes: int) -> int:
    """Lanes of a block: all, or as many as the next power of two holds where fewer are needed."""
    while lanes > 1 and size <= lanes // 2:
        lanes //= 2
    return lanes


def _dividing(size: int, lanes: int) -> int:
    """The most lanes that divide `size`."""
    while size % lanes:
        lanes //= 2
    return lanes
