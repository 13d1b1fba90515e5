"""float16 in ONNX models: the values stay, the arithmetic becomes float32.

CPUs without float16 units emulate each operation; float32 is faster there and never less exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from tt_core.models.subgraphs import with_subgraphs

__all__ = ["present", "to_float32"]

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype")


def present(model: ModelProto) -> bool:
    """Whether the model takes float16 inputs, holds float16 weights or casts to float16."""
    return any(_is_half(i) for i in model.graph.input) or any(
        any(t.data_type == HALF for t in _tensors(graph)) or any(_is_half_type(a) for a in _attributes(graph))
        for graph in _graphs(model)
    )


def to_float32(model: ModelProto) -> ModelProto:
    """The same model with every float16 tensor inside in float32.

    Inputs and outputs keep their type: a cast stands behind each float16 input and before each float16 output.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy):
        for tensor in _tensors(graph):
            if tensor.data_type == HALF:
                wide = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
        for attribute in _attributes(graph):
            if _is_half_type(attribute):
                attribute.i = FLOAT
        inner = [] if graph is copy.graph else [*graph.input, *graph.output]
        for value in [*graph.value_info, *inner]:
            if value.type.tensor_type.elem_type == HALF:
                value.type.tensor_type.elem_type = FLOAT
    graph = copy.graph
    weights = {w.name for w in graph.initializer}
    before = [_cast_input(graph, i.name) for i in graph.input if _is_half(i) and i.name not in weights]
    after = [_cast_output(graph, o.name) for o in graph.output if _is_half(o)]
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.input:  # a weight that is listed as an input too
        if value.name in weights and _is_half(value):
            value.type.tensor_type.elem_type = FLOAT
    return copy


def _cast_input(graph: GraphProto, name: str) -> NodeProto:
    wide = f"{name}_float32"
    for inner in with_subgraphs(graph):
        for node in inner.node:
            node.input[:] = [wide if n == name else n for n in node.input]
    return helper.make_node("Cast", [name], [wide], name=f"{name}_to_float32", to=FLOAT)


def _cast_output(graph: GraphProto, name: str) -> NodeProto:
    wide = f"{name}_float32"
    for inner in with_subgraphs(graph):
        for node in inner.node:
            node.input[:] = [wide if n == name else n for n in node.input]
            node.output[:] = [wide if n == name else n for n in node.output]
    return helper.make_node("Cast", [wide], [name], name=f"{name}_to_float16", to=HALF)


def _is_half(value: ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type == HALF


def _is_half_type(attribute: AttributeProto) -> bool:
    return attribute.name in _TYPE_ATTRIBUTES and attribute.type == AttributeProto.INT and attribute.i == HALF


def _graphs(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    """Everything that holds nodes: the graph, its subgraphs, local functions."""
    yield from with_subgraphs(model.graph)
    for function in model.functions:
        yield from with_subgraphs(function)


def _attributes(graph: GraphProto | FunctionProto) -> Iterator[AttributeProto]:
    for node in graph.node:
        yield from node.attribute


def _tensors(graph: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(graph, GraphProto):
        yield from graph.initializer
    for attribute in _attributes(graph):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
