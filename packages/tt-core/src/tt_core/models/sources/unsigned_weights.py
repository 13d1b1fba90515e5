"""Signed 8-bit weights as unsigned ones, for a reference whose sums are right on every CPU.

Without VNNI, onnxruntime adds pairs of products of unsigned activations and signed weights in 16 bits, which saturate:
of 255 * 127 twice it keeps 32767 of 64770. What is 128 more, with a zero point that is 128 more, is the same weight,
and its products are added in 32 bits, as those of signed activations are. Its own option `session.x64quantprecision`
reaches only what it fuses, and fails on a QLinearMatMul of signed activations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from tt_core.models.subgraphs import subgraphs, with_subgraphs

__all__ = ["unsigned_weights"]

_WEIGHTS = {
    "MatMulInteger": ((1, 3, 2),),
    "MatMulIntegerToFloat": ((1, 5, 4),),
    "DynamicQuantizeMatMul": ((1, 3, None),),
    "QLinearMatMul": ((3, 5, 2),),
    "QLinearConv": ((3, 5, 2),),
    "QGemm": ((3, 5, 2),),
    "DynamicQuantizeLSTM": ((1, 9, None), (2, 11, None)),
    "DequantizeLinear": ((0, 2, None),),
}
"""By operator, where among its inputs the weights are, their zero points and those of the activations. ConvInteger's
sums do not saturate."""

_PRODUCTS = ("Conv", "MatMul", "Gemm")
"""What is computed in integers behind two DequantizeLinear."""


def unsigned_weights(model: ModelProto) -> ModelProto:
    """A copy of the model that computes the same; itself if it multiplies nothing unsigned by what is signed."""
    if not any(True for graph in with_subgraphs(model.graph) for _ in _signed(graph)):
        return model  # a float model may be large
    copy = type(model)()
    copy.CopyFrom(model)
    return copy if _in_graph(copy.graph, frozenset(), count()) else model


def _in_graph(graph: GraphProto, outer: frozenset[str], numbers: Iterator[int]) -> bool:
    """Whether anything in this graph, or in those inside its nodes, was signed; `numbers` keep their names apart."""
    signed, changed = outer | set(_signed(graph)), False
    dequantized = set(_dequantized(graph, signed))
    prefix = f"tt/unsigned/{next(numbers)}"
    made = {"": prefix}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            changed |= _in_graph(inner, signed, numbers)
        other = node.op_type == "DequantizeLinear" and node.output[0] not in dequantized
        for weights, zero, activations in () if other else _WEIGHTS.get(node.op_type, ()):
            if node.input[weights] in signed and not (activations and _given(node, activations) in signed):
                nodes += _shift(node, weights, zero, made)
        nodes.append(node)
    if len(made) > 1:
        tensor = helper.make_tensor("", TensorProto.UINT8, [], [128])
        nodes.insert(0, helper.make_node("Constant", [], [prefix], value=tensor))
        del graph.node[:]
        graph.node.extend(nodes)
    return changed or len(made) > 1


def _signed(graph: GraphProto) -> Iterator[str]:
    """The names of what this graph says to be signed bytes."""
    kind = TensorProto.INT8
    yield from (w.name for w in graph.initializer if w.data_type == kind)
    yield from (v.name for v in [*graph.input, *graph.value_info] if v.type.tensor_type.elem_type == kind)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].t.data_type == kind:
            yield node.output[0]


def _dequantized(graph: GraphProto, signed: frozenset[str] | set[str]) -> Iterator[str]:
    """The signed weights, as floats, that unsigned activations, as floats, are multiplied by."""
    makers: Mapping[str, NodeProto] = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    for node in graph.node:
        if node.op_type in _PRODUCTS and all(name in makers for name in node.input[:2]):
            x, w = (makers[name] for name in node.input[:2])
            if w.input[0] in signed and not {x.input[0], _given(x, 2)} & signed:
                yield w.output[0]


def _shift(node: NodeProto, weights: int, zero: int, made: dict[str, str]) -> Iterator[NodeProto]:
    """What makes 128 more of weights and zero point, which the node reads from then on; no zero point is 128."""
    node.input.extend([""] * (zero + 1 - len(node.input)))
    for at in (weights, zero):
        name = node.input[at]
        if name not in made:
            made[name] = f"{made['']}/{name}"
            yield from _more(name, made[name])
        node.input[at] = made[name]
    if node.input[zero] == made[""] and node.op_type == "DequantizeLinear":  # which wants as many as there are scales
        node.input[zero] = f"{made['']}/zeros of {node.output[0]}"
        yield helper.make_node("Shape", [node.input[1]], [f"{node.input[zero]}/shape"])
        yield helper.make_node("Expand", [made[""], f"{node.input[zero]}/shape"], [node.input[zero]])


def _more(x: str, y: str) -> Iterator[NodeProto]:
    number = helper.make_tensor("", TensorProto.INT32, [], [128])
    yield helper.make_node("Cast", [x], [f"{y}/whole"], to=TensorProto.INT32)
    yield helper.make_node("Constant", [], [f"{y}/more"], value=number)
    yield helper.make_node("Add", [f"{y}/whole", f"{y}/more"], [f"{y}/sum"])
    yield helper.make_node("Cast", [f"{y}/sum"], [y], to=TensorProto.UINT8)


def _given(node: NodeProto, at: int) -> str:
    return node.input[at] if at < len(node.input) else ""
