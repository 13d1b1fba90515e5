"""Products and convolutions of quantised tensors, with the exact sums of int32.

Source: ONNX operators ConvInteger-10, MatMulInteger-10, QLinearConv-10, QLinearMatMul-21, QuantizeLinear-21. With zero
points z and scales s, a product of q_a and q_b stands for s_a * s_b * sum((q_a - z_a) * (q_b - z_b)); how the sum is
computed is `whole`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tt_core.models.rewrites import whole
from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import After, Node, Rewrite, RewriteError
from tt_core.models.rewrites.whole import Whole

__all__ = ["Quantized", "convolved", "multiplied", "operators", "quantized"]


@dataclass(frozen=True)
class Quantized:
    """A tensor of integers and what they stand for: scale * (values - zero).

    Args:
        values: Of any integer type.
        scale: A scalar, or one for each entry of an axis.
        zero: Of the type of the values; "" for 0.
    """

    values: str
    scale: str
    zero: str


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("", "ConvInteger"): _conv_integer,
        ("", "MatMulInteger"): _matmul_integer,
        ("", "QLinearConv"): _qlinear_conv,
        ("com.microsoft", "QLinearConv"): _qlinear_conv,
        ("", "QLinearMatMul"): _qlinear_matmul,
        ("com.microsoft", "QLinearMatMul"): _qlinear_matmul,
        ("", "Conv"): After("DequantizeLinear", _conv),
        ("", "MatMul"): After("DequantizeLinear", _matmul),
        ("", "Gemm"): After("DequantizeLinear", _gemm),
    }


def quantized(x: str, scale: str, zero: str, g: Graph, dtype: Any = np.uint8) -> str:
    """QuantizeLinear: round to even, saturate; `dtype` where no zero point says it."""
    return g.op("QuantizeLinear", x, _scalar(scale, g), _scalar(zero, g) if zero else np.array(0, np.dtype(dtype)))


def convolved(x: Quantized, w: Quantized, node: Node, g: Graph) -> str:
    """The int32 sums of a convolution; padding stands for zero."""
    kept = {k: v for k, v in node.attributes.items() if k in _CONVOLUTION}
    rank = len(g.shape(x.values))
    return whole.convolved(_whole(x, g), _whole(w, g, (-1, *(1,) * (rank - 1))), g, **kept)


def multiplied(a: Quantized, b: Quantized, g: Graph) -> str:
    """The int32 sums of a matrix product; a's zero points may be one a row, b's one a column."""
    rows = (-1, 1) if g.shape(a.zero or a.values) and a.zero and len(g.shape(a.zero)) == 1 else None
    return whole.multiplied(_whole(a, g, rows), _whole(b, g), g)


_CONVOLUTION = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _conv_integer(node: Node, g: Graph) -> Sequence[str]:
    x, w = Quantized(node.input(0), "", node.input(2)), Quantized(node.input(1), "", node.input(3))
    return [convolved(x, w, node, g)]


def _matmul_integer(node: Node, g: Graph) -> Sequence[str]:
    a, b = Quantized(node.input(0), "", node.input(2)), Quantized(node.input(1), "", node.input(3))
    return [multiplied(a, b, g)]


def _qlinear_conv(node: Node, g: Graph) -> Sequence[str]:
    if node.get("channels_last", 0):
        raise RewriteError("it has channels_last, which is not rewritten: export the model with channels first")
    x, w = Quantized(*node.inputs[:3]), Quantized(*node.inputs[3:6])
    total = convolved(x, w, node, g)
    rank = len(g.shape(total))
    per_channel = (-1, *(1,) * (rank - 2))
    if node.input(8):
        total = g.op("Add", total, _shaped(node.input(8), per_channel, g))
    return [_requantized(total, x.scale, _shaped(w.scale, per_channel, g), node.input(6), node.input(7), g)]


def _qlinear_matmul(node: Node, g: Graph) -> Sequence[str]:
    a, b = Quantized(*node.inputs[:3]), Quantized(*node.inputs[3:6])
    total = multiplied(a, b, g)
    rows = _shaped(a.scale, (-1, 1), g) if len(g.shape(a.scale)) == 1 else a.scale
    return [_requantized(total, rows, b.scale, node.input(6), node.input(7), g)]


def _requantized(total: str, one: str, two: str, scale: str, zero: str, g: Graph) -> str:
    """Sums times s_a * s_b / s_y, rounded to even: one factor in float32, as onnxruntime has it."""
    factor = g.op("Div", g.op("Mul", g.cast(one, np.float32), g.cast(two, np.float32)), g.cast(scale, np.float32))
    scaled = g.op("Mul", g.cast(total, np.float32), factor)
    return g.op("QuantizeLinear", scaled, np.float32(1), _scalar(zero, g))


# -- DequantizeLinear before a convolution or a product ---------------------------------------------------------------


def _conv(node: Node, g: Graph) -> Sequence[str] | None:
    x, w = _dequantized(node.input(0), g, ()), _dequantized(node.input(1), g, (0,))
    if x is None or w is None:
        return None
    total = convolved(x, w, node, g)
    per_channel = (-1, *(1,) * (len(g.shape(total)) - 2))
    y = _scaled(total, x.scale, _shaped(w.scale, per_channel, g), g)
    return [g.op("Add", y, _shaped(node.input(2), per_channel, g)) if node.input(2) else y]


def _matmul(node: Node, g: Graph) -> Sequence[str] | None:
    columns = len(g.shape(node.input(1))) - 1 if g.has_type(node.input(1)) else 1
    a, b = _dequantized(node.input(0), g, ()), _dequantized(node.input(1), g, (columns,))
    if a is None or b is None:
        return None
    return [_scaled(multiplied(a, b, g), a.scale, b.scale, g)]


def _gemm(node: Node, g: Graph) -> Sequence[str] | None:
    turned = bool(node.get("transB", 0))
    a, b = _dequantized(node.input(0), g, ()), _dequantized(node.input(1), g, (0 if turned else 1,))
    if a is None or b is None or node.get("transA", 0) or node.get("alpha", 1.0) != 1 or node.get("beta", 1.0) != 1:
        return None
    right = Quantized(_centred(b, g, (-1, 1)) if turned else _centred(b, g), b.scale, "")
    right = Quantized(g.transpose(right.values, (1, 0)), b.scale, "") if turned else right
    y = _scaled(multiplied(a, right, g), a.scale, b.scale, g)
    return [g.op("Add", y, node.input(2)) if node.input(2) else y]


def _dequantized(name: str, g: Graph, axes: tuple[int, ...]) -> Quantized | None:
    """The operand of a DequantizeLinear: 8-bit integers with one scale, or one for each entry of these axes."""
    of = g.maker(name)
    if of is None or (of.op, of.domain) not in (("DequantizeLinear", ""), ("DequantizeLinear", "com.microsoft")):
        return None
    if not g.has_type(of.input(0)) or g.dtype(of.input(0)) not in (np.int8, np.uint8):
        return None
    if not g.has_type(of.input(1)) or of.get("block_size", 0) or g.dtype(of.input(1)) != np.float32:
        return None
    count, rank = int(np.prod(g.shape(of.input(1)), dtype=np.int64)), len(g.shape(of.input(0)))
    if count != 1 and (not axes or int(of.get("axis", 1)) % rank != axes[0]):
        return None
    scale = _scalar(of.input(1), g) if count == 1 else of.input(1)
    zero = of.input(2) and (_scalar(of.input(2), g) if count == 1 else of.input(2))
    if zero and (value := g.value(zero)) is not None and not value.any():
        zero = ""
    return Quantized(of.input(0), scale, zero)


def _scaled(total: str, one: str, two: str, g: Graph) -> str:
    return g.op("Mul", g.cast(total, np.float32), g.op("Mul", one, two))


def _whole(q: Quantized, g: Graph, axis: tuple[int, ...] | None = None) -> Whole:
    """values - zero, int32, and how far they reach."""
    name = _centred(q, g, axis)
    if (known := g.value(name)) is not None and known.size:
        low, high = min(0, int(known.min())), max(0, int(known.max()))
        return Whole(name, max(-low, high), high - low)
    if (dtype := g.dtype(q.values)) not in (np.int8, np.uint8):
        return Whole(name, None)
    ends, zero = np.iinfo(dtype), g.value(q.zero) if q.zero else np.zeros(1, np.int64)
    spread = int(ends.max) - int(ends.min)
    most = spread if zero is None else max(int(ends.max) - int(zero.min()), int(zero.max()) - int(ends.min))
    return Whole(name, most, spread)


def _centred(q: Quantized, g: Graph, axis: tuple[int, ...] | None = None) -> str:
    """values - zero, int32."""
    wide = g.cast(q.values, np.int32)
    if not q.zero:
        return wide
    zero = g.cast(q.zero, np.int32)
    if axis is not None and g.shape(zero):
        zero = _shaped(zero, axis, g)
    value = g.value(zero)
    return wide if value is not None and not value.any() else g.op("Sub", wide, zero)


def _shaped(x: str, shape: tuple[int, ...], g: Graph) -> str:
    """A vector along one axis; a scalar as it is."""
    dims = g.shape(x)
    if int(np.prod(dims, dtype=np.int64)) == 1:
        return _scalar(x, g)
    return g.reshape(x, tuple(int(np.prod(dims)) if d == -1 else d for d in shape))


def _scalar(x: str, g: Graph) -> str:
    return g.reshape(x, ()) if g.shape(x) == (1,) else x
