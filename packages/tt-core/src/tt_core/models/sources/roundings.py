"""How much a quantised model's outputs move when what it rounds moves by next to nothing.

Where a float is rounded to 8 bits, a difference in its last place may become a whole step, and the steps add up from
layer to layer. So two right programs differ by what the model makes of that. It is measured in the reference: the
model's own graph, in which every float that is about to be rounded is multiplied by 1 + a * sin(b * x + c) before. With
a = 0 it is the model itself; each c is another draw.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tt_core.models.subgraphs import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

__all__ = ["PHASE", "SIZE", "Nudged", "nudged"]

SIZE, PHASE = "tt/size", "tt/phase"
"""The inputs a and c of the nudged graph."""

_FREQUENCY = 12345.678
"""b: neighbouring values get unrelated signs."""

_ROUNDED = {
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"), 0),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), 6),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"), 3),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 3),
    **{"QLinearConcat": 0, "QLinearWhere": 7},
}
"""By operator, the input to nudge: the float that it rounds, or the scale where it computes that float itself. Sums of
integers that are scaled and rounded, as QLinearConv's, are the same in every program."""


class Nudged:
    """A model whose roundings can be nudged.

    Args:
        model: With the inputs `SIZE` and `PHASE`, float32 scalars.
        outputs: Positions of the outputs that depend on something rounded.
    """

    def __init__(self, model: ModelProto, outputs: frozenset[int]) -> None:
        self.model, self.outputs = model, outputs


def nudged(model: ModelProto) -> Nudged | None:
    """The model with nudges; None if it rounds nothing."""
    from onnx import TensorProto, helper

    copy = type(model)()
    copy.CopyFrom(model)
    marks: set[str] = set()
    _in_graph(copy.graph, set(), marks)
    if not marks:
        return None
    outputs = _downstream(copy.graph, marks)
    copy.graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, []) for n in (SIZE, PHASE))
    return Nudged(copy, frozenset(i for i, o in enumerate(copy.graph.output) if o.name in outputs))


def _in_graph(graph: GraphProto, constants: set[str], marks: set[str]) -> None:
    """Nudge what this graph and those inside its nodes round; `marks` gets the names of what was nudged."""
    known = constants | {w.name for w in graph.initializer}
    known |= {o for n in graph.node if n.op_type == "Constant" for o in n.output}
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            before = len(marks)
            _in_graph(inner, known, marks)
            if len(marks) > before:
                marks.update(node.output)
        at = _ROUNDED.get(node.op_type)
        if at is not None and (at or node.op_type == "QLinearConcat" or node.input[at] not in known):
            made = list(_nudge(node.input[at], len(marks)))
            nodes += made
            node.input[at] = made[-1].output[0]
            marks.add(node.input[at])
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _nudge(x: str, number: int) -> Iterator[NodeProto]:
    from onnx import helper, numpy_helper

    def name(what: str) -> str:
        return f"tt/{what}/{number}"

    for what, value in (("b", _FREQUENCY), ("one", 1.0)):
        constant = numpy_helper.from_array(np.array(value, np.float32))
        yield helper.make_node("Constant", [], [name(what)], value=constant)
    yield helper.make_node("Mul", [x, name("b")], [name("bx")])
    yield helper.make_node("Add", [name("bx"), PHASE], [name("angle")])
    yield helper.make_node("Sin", [name("angle")], [name("sine")])
    yield helper.make_node("Mul", [name("sine"), SIZE], [name("part")])
    yield helper.make_node("Add", [name("part"), name("one")], [name("factor")])
    yield helper.make_node("Mul", [x, name("factor")], [name("nudged")])


def _downstream(graph: GraphProto, marks: set[str]) -> set[str]:
    """The values that depend on what was nudged."""
    found = set(marks)
    for node in graph.node:
        if found & set(node.input):
            found.update(node.output)
    return found
