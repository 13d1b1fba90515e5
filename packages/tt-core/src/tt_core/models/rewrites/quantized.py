"""Quantised operators of onnxruntime's domain.

Source: onnxruntime's ContribOperators.md (1.17 to 1.24): QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu,
QLinearSoftmax, QLinearAveragePool, QLinearGlobalAveragePool, QLinearReduceMean, QLinearConcat, QLinearWhere, QGemm,
MatMulIntegerToFloat, DynamicQuantizeMatMul, DynamicQuantizeLSTM, MatMulNBits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tt_core.models.rewrites import integer, recurrent
from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.integer import Quantized
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError

__all__ = ["operators"]


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    found: dict[str, Rewrite] = {
        "QuantizeLinear": lambda n, g: [g.op("QuantizeLinear", *n.inputs, **n.attributes)],
        "DequantizeLinear": lambda n, g: [g.op("DequantizeLinear", *n.inputs, **n.attributes)],
        "QLinearAdd": _binary("Add"),
        "QLinearMul": _binary("Mul"),
        "QLinearSigmoid": _unary("Sigmoid"),
        "QLinearLeakyRelu": _unary("LeakyRelu", "alpha"),
        "QLinearSoftmax": _unary("Softmax", "axis"),
        "QLinearAveragePool": _pool("AveragePool"),
        "QLinearGlobalAveragePool": _pool("GlobalAveragePool"),
        "QLinearReduceMean": _reduce_mean,
        "QLinearConcat": _concat,
        "QLinearWhere": _where,
        "QGemm": _qgemm,
        "MatMulIntegerToFloat": _to_float,
        "DynamicQuantizeMatMul": _dynamic_matmul,
        "DynamicQuantizeLSTM": _dynamic_lstm,
        "MatMulNBits": _n_bits,
    }
    return {("com.microsoft", name): rewrite for name, rewrite in found.items()}


def _float(n: Node, i: int, g: Graph) -> str:
    """scale * (x - zero) of the three inputs from i on."""
    x, scale, zero = n.input(i), n.input(i + 1), n.input(i + 2)
    return g.op("DequantizeLinear", x, _scalar(scale, g), _scalar(zero, g) if zero else "")


def _scalar(x: str, g: Graph) -> str:
    return g.reshape(x, ()) if g.shape(x) == (1,) else x


def _binary(op: str) -> Rewrite:
    def rewrite(n: Node, g: Graph) -> Sequence[str]:
        y = g.op(op, _float(n, 0, g), _float(n, 3, g))
        return [integer.quantized(y, n.input(6), n.input(7), g, g.dtype(n.input(0)))]

    return rewrite


def _unary(op: str, *kept: str) -> Rewrite:
    def rewrite(n: Node, g: Graph) -> Sequence[str]:
        y = g.op(op, _float(n, 0, g), **{k: v for k, v in n.attributes.items() if k in kept})
        return [integer.quantized(y, n.input(3), n.input(4), g, g.dtype(n.input(0)))]

    return rewrite


def _pool(op: str) -> Rewrite:
    def rewrite(n: Node, g: Graph) -> Sequence[str]:
        x, last = _float(n, 0, g), bool(n.get("channels_last", 0))
        rank = len(g.shape(x))
        x = g.transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x
        y = g.op(op, x, **{k: v for k, v in n.attributes.items() if k != "channels_last"})
        y = g.transpose(y, (0, *range(2, rank), 1)) if last else y
        return [integer.quantized(y, n.input(3), n.input(4), g, g.dtype(n.input(0)))]

    return rewrite


def _reduce_mean(n: Node, g: Graph) -> Sequence[str]:
    y = g.reduce("ReduceMean", _float(n, 0, g), n.get("axes"), bool(n.get("keepdims", 1)))
    return [integer.quantized(y, n.input(3), n.input(4), g, g.dtype(n.input(0)))]


def _concat(n: Node, g: Graph) -> Sequence[str]:
    parts = [_float(n, i, g) for i in range(2, len(n.inputs), 3)]
    return [integer.quantized(g.concat(parts, n.get("axis")), n.input(0), n.input(1), g)]


def _where(n: Node, g: Graph) -> Sequence[str]:
    y = g.op("Where", n.input(0), _float(n, 1, g), _float(n, 4, g))
    return [integer.quantized(y, n.input(7), n.input(8), g)]


def _qgemm(n: Node, g: Graph) -> Sequence[str]:
    a, b, alpha = Quantized(*n.inputs[:3]), Quantized(*n.inputs[3:6]), float(n.get("alpha", 1.0))
    if n.get("transA", 0):
        a = Quantized(g.transpose(a.values, (1, 0)), a.scale, a.zero)
    if n.get("transB", 0):
        b = Quantized(g.transpose(b.values, (1, 0)), b.scale, b.zero)
    total = integer.multiplied(a, b, g)
    if n.input(6):  # int32, of scale alpha * s_a * s_b
        total = g.op("Add", total, n.input(6))
    scale = g.op("Mul", g.op("Mul", _scalar(a.scale, g), _scalar(b.scale, g)), np.float32(alpha))
    if not n.input(7):
        return [g.op("Mul", g.cast(total, np.float32), scale)]
    factor = g.op("Div", scale, _scalar(n.input(7), g))
    return [integer.quantized(g.op("Mul", g.cast(total, np.float32), factor), g.const(1, np.float32), n.input(8), g)]


def _to_float(n: Node, g: Graph) -> Sequence[str]:
    a, b = Quantized(n.input(0), n.input(2), n.input(4)), Quantized(n.input(1), n.input(3), n.input(5))
    return [_plus(_product(a, b, g), n.input(6), g)]


def _dynamic_matmul(n: Node, g: Graph) -> Sequence[str]:
    b = Quantized(n.input(1), n.input(2), n.input(3))
    return [_plus(_product(_dynamic(n.input(0), g), b, g), n.input(4), g)]


def _dynamic(x: str, g: Graph) -> Quantized:
    return Quantized(*g.ops("DynamicQuantizeLinear", x, outputs=3))


def _product(a: Quantized, b: Quantized, g: Graph) -> str:
    scale = g.op("Mul", _scalar(a.scale, g), _scalar(b.scale, g))
    return g.op("Mul", g.cast(integer.multiplied(a, b, g), np.float32), scale)


def _plus(x: str, bias: str, g: Graph) -> str:
    return g.op("Add", x, bias) if bias else x


def _dynamic_lstm(n: Node, g: Graph) -> Sequence[str]:
    """An LSTM whose input, once, and state, at each step, are quantised as they come; W is (D, I, 4H)."""

    def product(i: int, d: int) -> Callable[[str], str]:
        def of(name: str) -> str:
            part = g.squeeze(g.slice(name, 0, d, d + 1), 0) if g.shape(name) else name
            return _scalar(part, g)

        weights = Quantized(of(n.input(i)), of(n.input(6 + 2 * i)), of(n.input(7 + 2 * i)))
        return lambda x: _product(_dynamic(x, g), weights, g)

    return recurrent.lstm(n, g, product)


def _n_bits(n: Node, g: Graph) -> Sequence[str]:
    """MatMulNBits: B (N, blocks, block_size * bits / 8) uint8, a scale and a zero point for each block of K."""
    bits, block, k, columns = (int(n.get(a)) for a in ("bits", "block_size", "K", "N"))
    if n.input(4):
        raise RewriteError(
            "it has a group index (g_idx), which is not rewritten: quantise the model without reordering"
        )
    packed, scales = g.known(n.input(1), "B"), g.known(n.input(2), "scales")
    blocks = (k + block - 1) // block
    values = _unpacked(packed.reshape(columns, blocks, -1), bits)[:, :, :block].astype(np.float32)
    zeros = np.full((columns, blocks), 1 << (bits - 1), np.float32)
    if n.input(3):
        given = g.known(n.input(3), "zero_points")
        if given.dtype == np.uint8:
            given = _unpacked(given.reshape(columns, -1), bits)[:, :blocks]
        zeros = given.reshape(columns, blocks).astype(np.float32)
    dense = (values - zeros[:, :, None]) * scales.reshape(columns, blocks, 1).astype(np.float32)
    weights = dense.reshape(columns, -1)[:, :k].T
    y = g.op("MatMul", g.cast(n.input(0), np.float32), np.ascontiguousarray(weights))
    y = _plus(y, g.cast(n.input(5), np.float32) if n.input(5) else "", g)
    return [g.cast(y, g.dtype(n.input(0)))]


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of `bits` bits along the last axis, the lowest bits first."""
    each, mask = 8 // bits, (1 << bits) - 1
    parts = [(packed >> (bits * i)) & mask for i in range(each)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)
