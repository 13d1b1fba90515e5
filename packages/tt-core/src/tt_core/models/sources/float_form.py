"""A quantised ONNX model computed in float32: its weights as the floats they stand for, its activations not rounded.

`--precision float32`. A pair of QuantizeLinear and DequantizeLinear becomes a Clip to the range that the integers can
express, since quantisers drop a Relu whose bound that is; DynamicQuantizeLinear goes away, and what multiplies integers
multiplies floats. An operator that needs the integers themselves gets them. The result is ONNX again, so that
onnxruntime can say what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tt_core.models.subgraphs import subgraphs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["in_float32"]

_SAME_VALUES = ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather", "Slice", "MaxPool", "Identity")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_UNARY = {"QLinearSigmoid": "Sigmoid", "QLinearLeakyRelu": "LeakyRelu", "QLinearSoftmax": "Softmax"}
_POOLS = {"QLinearAveragePool": "AveragePool", "QLinearGlobalAveragePool": "GlobalAveragePool"}


@dataclass(frozen=True)
class _Floats:
    """An integer tensor as the floats that it stands for.

    Args:
        name: The float tensor.
        scale, zero: Names of what it is quantised with, should somebody want the integers.
    """

    name: str
    scale: str = ""
    zero: str = ""


def in_float32(model: ModelProto) -> ModelProto | None:
    """The model in float32; None if it has nothing quantised."""
    form = _Form(model)
    return form.written() if form.changed() else None


class _Form:
    """A model on its way to float32."""

    def __init__(self, model: ModelProto) -> None:
        from onnx import numpy_helper

        self.model = type(model)()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.consts = {w.name: numpy_helper.to_array(w) for w in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.consts[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.users: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in _read(node):
                self.users.setdefault(name, []).append(node)
        self.outputs = {o.name for o in self.graph.output}
        self.floats: dict[str, _Floats] = {}
        self.nodes: list[NodeProto] = []
        self.made: dict[str, np.ndarray] = {}
        self.integers: set[str] = set()
        self.merged: dict[str, str] = {}
        self.count, self.dropped = 0, 0

    def changed(self) -> bool:
        """Go through the nodes; whether anything was quantised."""
        for node in list(self.graph.node):
            self._visit(node)
        for name in [o for o in self.outputs if o in self.floats]:
            self._as_integers(name)
        return self.dropped > 0

    def written(self) -> ModelProto:
        """The model, without what nobody asks for any more."""
        from onnx import numpy_helper

        wanted, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                kept.append(node)
                wanted |= set(_read(node))
        del self.graph.node[:]
        self.graph.node.extend(kept[::-1])
        weights = [w for w in self.graph.initializer if w.name in wanted]
        weights += [numpy_helper.from_array(a, n) for n, a in self.made.items() if n in wanted]
        del self.graph.initializer[:]
        self.graph.initializer.extend(weights)
        names = {w.name for w in weights}
        lost = [i for i in self.graph.input if i.name in self.consts and i.name not in names]
        for value in lost:  # old files list weights among the inputs
            self.graph.input.remove(value)
        del self.graph.value_info[:]
        return self.model

    # -- node by node ---------------------------------------------------------------------------------------------

    def _visit(self, node: NodeProto) -> None:
        if node.op_type == "Mul" and node.output[0] in self.merged:
            self.alias(node, self.merged[node.output[0]])
            return
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None and node.domain in ("", "ai.onnx", "com.microsoft") and rewrite(self, node):
            self.dropped += 1
            return
        if node.op_type in _SAME_VALUES and node.input[0] in self.floats:
            of = self.floats[node.input[0]]
            self.floats[node.output[0]] = _Floats(self._fresh(node.output[0]), of.scale, of.zero)
            copy = self._copy(node)
            copy.input[0], copy.output[0] = of.name, self.floats[node.output[0]].name
            self.nodes.append(copy)
            return
        for name in _read(node):
            if name in self.floats:
                self._as_integers(name)
        self.nodes.append(node)

    def _as_integers(self, name: str) -> None:
        if name not in self.integers:
            of = self.floats[name]
            self.add("QuantizeLinear", [of.name, of.scale, *([of.zero] if of.zero else [])], [name])
            self.integers.add(name)

    def _copy(self, node: NodeProto) -> NodeProto:
        copy = type(node)()
        copy.CopyFrom(node)
        return copy

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(inputs), list(outputs), name=self._fresh(op), **attributes))
        return outputs[0]

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.add(op, inputs, [self._fresh(op)], **attributes)

    def const(self, value: Any) -> str:
        name = self._fresh("weight")
        self.made[name] = self.consts[name] = np.ascontiguousarray(value) if np.ndim(value) else np.asarray(value)
        return name

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"float32/{hint}/{self.count}"

    # -- what the rewritings ask ----------------------------------------------------------------------------------

    def known(self, name: str) -> np.ndarray | None:
        return self.consts.get(name) if name else None

    def alias(self, node: NodeProto, value: str, i: int = 0) -> None:
        """The node's output is this value."""
        self.add("Identity", [value], [node.output[i]])

    def view(self, node: NodeProto, i: int, axis: int = 1) -> str:
        """The floats of a node's inputs i to i + 2, integers with scale and zero point: known, computed now, or
        dequantised while the model runs."""
        name, scale, zero = (_input(node, at) for at in (i, i + 1, i + 2))
        if name in self.floats:
            return self.floats[name].name
        values, s, z = self.known(name), self.known(scale), self.known(zero)
        if values is not None and s is not None and (z is not None or not zero):
            return self.const(_dequantised(values, s, z, axis))
        return self.emit("DequantizeLinear", *[n for n in (name, scale, zero) if n], axis=axis)

    def quantised(self, node: NodeProto, value: str, scale: str, zero: str, unsigned: bool = True) -> bool:
        """The node's output stands for this value, within the range of its integers; False if that is not known."""
        s, z = self.known(scale), self.known(zero)
        if s is None or s.size != 1 or (zero and z is None) or s.dtype != np.float32:
            return False
        dtype = z.dtype if z is not None else np.dtype(np.uint8 if unsigned else np.int8)
        if dtype not in (np.uint8, np.int8, np.uint16, np.int16):
            return False
        ends, at = np.iinfo(dtype), 0 if z is None else int(z.reshape(()))
        low, high = (np.float32(float(s.reshape(())) * (end - at)) for end in (ends.min, ends.max))
        clipped = self.emit("Clip", value, self.const(low), self.const(high))
        self.floats[node.output[0]] = _Floats(clipped, scale, zero)
        return True


def _read(node: NodeProto) -> list[str]:
    """Names that a node and the graphs inside it read."""
    names = [i for i in node.input if i]
    for inner in subgraphs(node):
        names += [n for x in inner.node for n in _read(x)] + [o.name for o in inner.output]
    return names


def _dequantised(values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, axis: int) -> np.ndarray:
    if scale.size == 1:
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
    elif scale.ndim == 1:
        shape = [-1 if i == axis % values.ndim else 1 for i in range(values.ndim)]
        scale, zero = scale.reshape(shape), None if zero is None else zero.reshape(shape)
    wide = values.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))
    return (wide * scale).astype(np.float32)


def _input(node: NodeProto, i: int) -> str:
    return node.input[i] if i < len(node.input) else ""


def _attributes(node: NodeProto, only: Iterable[str] | None = None) -> dict[str, Any]:
    from onnx import helper

    return {a.name: helper.get_attribute_value(a) for a in node.attribute if only is None or a.name in only}


# -- operators -------------------------------------------------------------------------------------------------------


def _quantize(f: _Form, n: NodeProto) -> bool:
    blocks = _attributes(n, ("block_size", "output_dtype"))
    return not any(blocks.values()) and f.quantised(n, n.input[0], n.input[1], _input(n, 2))


def _dequantize(f: _Form, n: NodeProto) -> bool:
    of = _attributes(n)
    if n.input[0] in f.floats:
        f.alias(n, f.floats[n.input[0]].name)
        return True
    values, s, z = (f.known(_input(n, i)) for i in range(3))
    if values is None or s is None or s.dtype != np.float32 or of.get("block_size", 0) or (_input(n, 2) and z is None):
        return False
    f.alias(n, f.const(_dequantised(values, s, z, int(of.get("axis", 1)))))
    return True


def _dynamic(f: _Form, n: NodeProto) -> bool:
    """The integers are used in products only, whose results all meet the scale once: then the scale may be 1."""
    y, scale, zero = n.output
    if {y, scale, zero} & f.outputs:
        return False
    scales = {scale}
    for user in f.users.get(scale, []):
        if user.op_type == "Mul":
            scales.add(user.output[0])
        elif user.op_type != "MatMulIntegerToFloat":
            return False
    users = f.users.get(y, [])
    if any(not _meets(f, user, y, scales) for user in users) or any(u not in users for u in f.users.get(zero, [])):
        return False
    f.floats[y] = _Floats(n.input[0], scale, zero)
    f.consts[zero] = np.zeros((), np.uint8)
    f.alias(n, f.const(np.float32(1)), 1)
    return True


def _meets(f: _Form, user: NodeProto, y: str, scales: set[str]) -> bool:
    if user.input[0] != y or y in user.input[1:]:
        return False
    if user.op_type == "MatMulIntegerToFloat":
        return f.known(user.input[1]) is not None and user.input[2] in scales
    if user.op_type not in ("ConvInteger", "MatMulInteger") or f.known(user.input[1]) is None:
        return False
    if _input(user, 3) and f.known(user.input[3]) is None:
        return False
    casts = f.users.get(user.output[0], [])
    after = [m for c in casts for m in f.users.get(c.output[0], [])]
    if user.output[0] in f.outputs or not casts or any(c.op_type != "Cast" for c in casts):
        return False
    return bool(after) and all(m.op_type == "Mul" and scales & set(m.input) for m in after)


def _integer_product(op: str) -> Callable[[_Form, NodeProto], bool]:
    def rewrite(f: _Form, n: NodeProto) -> bool:
        of, w, z = f.floats.get(n.input[0]), f.known(n.input[1]), f.known(_input(n, 3))
        if of is None or w is None or (_input(n, 3) and z is None):
            return False
        axis = 0 if op == "Conv" else -1
        scale = np.ones(1 if z is None else z.shape, np.float32) * _merged(f, n)
        weights = _dequantised(w, scale, z, axis)
        f.add(op, [of.name, f.const(weights)], [n.output[0]], **_attributes(n))
        return True

    return rewrite


def _merged(f: _Form, n: NodeProto) -> np.float32:
    """The factor of the integers' sums, which their weights may have already; 1 where it is more than one number."""
    one = np.float32(1)
    (cast, *more) = f.users.get(n.output[0], [n])
    muls = f.users.get(cast.output[0], [])
    if more or cast.op_type != "Cast" or len(muls) != 1 or muls[0].op_type != "Mul":
        return one
    made = [m for m in f.graph.node if m.op_type == "Mul" and m.output[0] in muls[0].input]
    if len(made) != 1 or f.users[made[0].output[0]] != [muls[0]] or cast.output[0] in f.outputs:
        return one
    factors = [f.known(i) for i in made[0].input]
    found = [k for k in factors if k is not None]
    if len(found) != 1 or found[0].size != 1:
        return one
    f.merged[muls[0].output[0]] = cast.output[0]
    return np.float32(found[0].reshape(()))


def _qlinear_product(op: str) -> Callable[[_Form, NodeProto], bool]:
    def rewrite(f: _Form, n: NodeProto) -> bool:
        if _attributes(n).get("channels_last", 0):
            return False
        a = f.view(n, 0)
        b = f.view(n, 3, axis=0 if op == "Conv" else -1)
        bias = _input(n, 8) if op == "Conv" else ""
        more = []
        if bias:
            values, one, two = f.known(bias), f.known(n.input[1]), f.known(n.input[4])
            if values is None or one is None or two is None:
                return False
            more = [f.const((values * (one * two)).astype(np.float32))]
        y = f.emit(op, a, b, *more, **_attributes(n, _CONV))
        return f.quantised(n, y, n.input[6], _input(n, 7))

    return rewrite


def _qgemm(f: _Form, n: NodeProto) -> bool:
    of = _attributes(n)
    turned, alpha = int(of.get("transB", 0)), float(of.get("alpha", 1.0))
    a, b = f.view(n, 0), f.view(n, 3, axis=0 if turned else 1)
    more = []
    if _input(n, 6):
        values, one, two = f.known(n.input[6]), f.known(n.input[1]), f.known(n.input[4])
        if values is None or one is None or two is None:
            return False
        more = [f.const((values * (one * two * alpha)).astype(np.float32))]
    y = f.emit("Gemm", a, b, *more, alpha=alpha, transA=int(of.get("transA", 0)), transB=turned)
    if _input(n, 7):
        return f.quantised(n, y, n.input[7], _input(n, 8))
    f.alias(n, y)
    return True


def _qbinary(op: str) -> Callable[[_Form, NodeProto], bool]:
    return lambda f, n: f.quantised(n, f.emit(op, f.view(n, 0), f.view(n, 3)), n.input[6], _input(n, 7))


def _qunary(op: str, *dropped: str) -> Callable[[_Form, NodeProto], bool]:
    def rewrite(f: _Form, n: NodeProto) -> bool:
        of = _attributes(n)
        if of.pop("channels_last", 0):
            return False
        kept = {k: v for k, v in of.items() if k not in dropped}
        return f.quantised(n, f.emit(op, f.view(n, 0), **kept), n.input[3], _input(n, 4))

    return rewrite


def _qconcat(f: _Form, n: NodeProto) -> bool:
    parts = [f.view(n, i) for i in range(2, len(n.input), 3)]
    return f.quantised(n, f.emit("Concat", *parts, **_attributes(n)), n.input[0], n.input[1])


def _to_float(f: _Form, n: NodeProto) -> bool:
    b = [f.known(_input(n, i)) for i in (1, 3, 5)]
    if n.input[0] not in f.floats or b[0] is None or b[1] is None:
        return False
    return _plus(f, n, f.emit("MatMul", f.floats[n.input[0]].name, f.const(_dequantised(b[0], b[1], b[2], -1))), 6)


def _dynamic_matmul(f: _Form, n: NodeProto) -> bool:
    b = [f.known(_input(n, i)) for i in (1, 2, 3)]
    if b[0] is None or b[1] is None or (_input(n, 3) and b[2] is None):
        return False
    return _plus(f, n, f.emit("MatMul", n.input[0], f.const(_dequantised(b[0], b[1], b[2], -1))), 4)


def _plus(f: _Form, n: NodeProto, y: str, bias: int) -> bool:
    f.alias(n, f.emit("Add", y, n.input[bias]) if _input(n, bias) else y)
    return True


def _dynamic_lstm(f: _Form, n: NodeProto) -> bool:
    """W is (D, I, 4H) here, and (D, 4H, I) of LSTM; scales are (D,) or (D, 4H)."""
    weights = []
    for i in (1, 2):
        w, s, z = (f.known(_input(n, at)) for at in (i, 6 + 2 * i, 7 + 2 * i))
        if w is None or s is None or z is None:
            return False
        shape = (s.shape[0], 1, -1)
        dense = (w.astype(np.float32) - z.astype(np.float32).reshape(shape)) * s.reshape(shape)
        weights.append(f.const(dense.transpose(0, 2, 1).astype(np.float32)))
    inputs = [n.input[0], *weights, *(_input(n, i) for i in range(3, 8))]
    f.add("LSTM", inputs, list(n.output), **_attributes(n))
    return True


_REWRITES: dict[str, Callable[[_Form, Any], bool]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic,
    "ConvInteger": _integer_product("Conv"),
    "MatMulInteger": _integer_product("MatMul"),
    "QLinearConv": _qlinear_product("Conv"),
    "QLinearMatMul": _qlinear_product("MatMul"),
    "QGemm": _qgemm,
    "QLinearAdd": _qbinary("Add"),
    "QLinearMul": _qbinary("Mul"),
    **{name: _qunary(op, "opset") for name, op in (_UNARY | _POOLS).items()},
    "QLinearConcat": _qconcat,
    "MatMulIntegerToFloat": _to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "DynamicQuantizeLSTM": _dynamic_lstm,
}
"""Each emits the operator in floats and says so, or leaves the node as it is."""
