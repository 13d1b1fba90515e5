"""Fused operators of onnxruntime's domain as the operators that they were made of.

Source: onnxruntime's ContribOperators.md (1.17 to 1.24): FusedMatMul, FusedGemm, FusedConv, NhwcConv, NhwcFusedConv,
Gelu, BiasGelu, FastGelu, QuickGelu, BiasAdd, BiasSoftmax, LayerNormalization and its Skip and Simplified forms,
EmbedLayerNormalization, ExpandDims, GatherND, Inverse and Trilu of old opsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Rewrite, RewriteError

__all__ = ["operators"]


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    microsoft: dict[str, Rewrite] = {
        "FusedMatMul": _matmul,
        "TransposeMatMul": _matmul,
        "FusedGemm": lambda n, g: [_activated(g.op("Gemm", *n.inputs, **_only(n, _GEMM)), n, g)],
        "FusedConv": _conv,
        "NhwcConv": _nhwc,
        "NhwcFusedConv": _nhwc,
        "Gelu": lambda n, g: [gelu(n.input(0), g)],
        "BiasGelu": lambda n, g: [gelu(g.op("Add", n.input(0), n.input(1)), g)],
        "FastGelu": _fast_gelu,
        "QuickGelu": _quick_gelu,
        "BiasAdd": lambda n, g: [g.op("Add", g.op("Add", n.input(0), n.input(1)), n.input(2))],
        "BiasSoftmax": _bias_softmax,
        "SkipLayerNormalization": _skip_layer_norm,
        "SkipSimplifiedLayerNormalization": _skip_rms,
        "EmbedLayerNormalization": _embed,
        "ExpandDims": lambda n, g: [g.unsqueeze(n.input(0), int(g.known(n.input(1), "axis").reshape(-1)[0]))],
        "GatherND": lambda n, g: [g.op("GatherND", *n.inputs, **n.attributes)],
        "Trilu": lambda n, g: [g.op("Trilu", *n.inputs, **n.attributes)],
    }
    found: dict[tuple[str, str], Rewrite] = {("com.microsoft", name): rewrite for name, rewrite in microsoft.items()}
    found["", "SimplifiedLayerNormalization"] = lambda n, g: [rms_norm(n.input(0), n.input(1), _epsilon(n), g)]
    return found


_GEMM = ("alpha", "beta", "transA", "transB")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _only(n: Node, names: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in n.attributes.items() if k in names}


def _number(value: float, like: str, g: Graph) -> np.ndarray:
    return np.array(value, g.dtype(like))


def _epsilon(n: Node, default: float = 1e-5) -> float:
    return float(n.get("epsilon", default))


def _matmul(n: Node, g: Graph) -> Sequence[str]:
    sides = []
    for i, side in enumerate("AB"):
        x, rank = n.input(i), len(g.shape(n.input(i)))
        order = list(range(rank))
        if n.get(f"transBatch{side}", 0):  # the first dimension behind those of the batch
            order = [*order[1:-1], order[0], order[-1]]
        if n.get(f"trans{side}", 0) and rank > 1:
            order[-2:] = order[:-3:-1]
        sides.append(g.transpose(x, order))
    y, alpha = g.op("MatMul", *sides), float(n.get("alpha", 1.0))
    return [y if alpha == 1.0 else g.op("Mul", y, _number(alpha, y, g))]


def _activated(y: str, n: Node, g: Graph) -> str:
    kind = n.get("activation", "")
    given = list(n.get("activation_params", ())) or [n.get("activation_alpha"), n.get("activation_beta")]
    if kind == "Clip":
        return g.op("Clip", y, _number(given[0], y, g), _number(given[1], y, g))
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",)}.get(kind, ())
    attributes: dict[str, Any] = {k: float(v) for k, v in zip(names, given, strict=False) if v is not None}
    return g.op(kind, y, **attributes) if kind else y


def _conv(n: Node, g: Graph) -> Sequence[str]:
    y = g.op("Conv", *n.inputs[:3], **_only(n, _CONV))
    return [_activated(g.op("Add", y, n.input(3)) if n.input(3) else y, n, g)]


def _nhwc(n: Node, g: Graph) -> Sequence[str]:
    """Channels last but for the weights."""
    rank = len(g.shape(n.input(0)))
    first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    y = g.op("Conv", g.transpose(n.input(0), first), *n.inputs[1:3], **_only(n, _CONV))
    y = g.transpose(y, last)
    return [_activated(g.op("Add", y, n.input(3)) if n.input(3) else y, n, g)]


def gelu(x: str, g: Graph) -> str:
    """x / 2 (1 + erf(x / sqrt 2))."""
    erf = g.op("Erf", g.op("Div", x, _number(2**0.5, x, g)))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, _number(1, x, g))), _number(0.5, x, g))


def _fast_gelu(n: Node, g: Graph) -> Sequence[str]:
    x = g.op("Add", n.input(0), n.input(1)) if n.input(1) else n.input(0)
    cube = g.op("Mul", g.op("Mul", g.op("Mul", x, x), x), _number(0.044715, x, g))
    tanh = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), _number((2 / np.pi) ** 0.5, x, g)))
    return [g.op("Mul", g.op("Mul", x, g.op("Add", tanh, _number(1, x, g))), _number(0.5, x, g))]


def _quick_gelu(n: Node, g: Graph) -> Sequence[str]:
    x = n.input(0)
    return [g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, _number(float(n.get("alpha", 1.702)), x, g))))]


def _bias_softmax(n: Node, g: Graph) -> Sequence[str]:
    """A softmax over the axes from `axis` on, as one."""
    x, axis = g.op("Add", n.input(0), n.input(1)), int(n.get("axis", 1))
    shape = g.shape(x)
    axis %= len(shape)
    flat = g.reshape(x, (*shape[:axis], int(np.prod(shape[axis:]))))
    return [g.reshape(g.op("Softmax", flat, axis=axis), shape)]


def layer_norm(x: str, gamma: str, beta: str, epsilon: float, g: Graph) -> str:
    """Over the last axis."""
    if g.opset >= 17:
        return g.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
    last = [len(g.shape(x)) - 1]
    centred = g.op("Sub", x, g.reduce("ReduceMean", x, last))
    variance = g.reduce("ReduceMean", g.op("Mul", centred, centred), last)
    y = g.op("Div", centred, g.op("Sqrt", g.op("Add", variance, _number(epsilon, x, g))))
    y = g.op("Mul", y, gamma)
    return g.op("Add", y, beta) if beta else y


def rms_norm(x: str, gamma: str, epsilon: float, g: Graph) -> str:
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis."""
    square = g.reduce("ReduceMean", g.op("Mul", x, x), [len(g.shape(x)) - 1])
    return g.op("Mul", g.op("Div", x, g.op("Sqrt", g.op("Add", square, _number(epsilon, x, g)))), gamma)


def _skipped(n: Node, bias: str, g: Graph) -> str:
    total = g.op("Add", n.input(0), n.input(1))
    return g.op("Add", total, bias) if bias else total


def _skip_layer_norm(n: Node, g: Graph) -> Sequence[str]:
    total = _skipped(n, n.input(4), g)
    return _with_sum(layer_norm(total, n.input(2), n.input(3), _epsilon(n, 1e-12), g), total, n)


def _skip_rms(n: Node, g: Graph) -> Sequence[str]:
    total = _skipped(n, n.input(3), g)
    return _with_sum(rms_norm(total, n.input(2), _epsilon(n, 1e-12), g), total, n)


def _with_sum(y: str, total: str, n: Node) -> Sequence[str]:
    if n.wants(1) or n.wants(2):
        raise RewriteError("its mean and variance are used, which is not rewritten: export the model unfused")
    return [y, "", "", total][: len(n.outputs)]


def _embed(n: Node, g: Graph) -> Sequence[str]:
    """EmbedLayerNormalization: words, positions and segments looked up, added and normalised."""
    ids, segments, words, positions, segment, gamma, beta, mask = (n.input(i) for i in range(8))
    batch, length = g.shape(ids)
    where = n.input(8) or g.const(np.arange(length, dtype=np.int64)[None])
    total = g.op("Add", g.op("Gather", words, ids), g.op("Gather", positions, where))
    if segments and segment:
        total = g.op("Add", total, g.op("Gather", segment, segments))
    count = g.const(np.zeros(batch, np.int32))
    if mask:
        count = g.reduce("ReduceSum", g.cast(mask, np.int32), [1], keep=False)
    return [layer_norm(total, gamma, beta, _epsilon(n, 1e-12), g), count, total][: len(n.outputs)]
