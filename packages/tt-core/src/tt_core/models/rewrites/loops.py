"""The step of a loop that stays one, as a graph of its own, and the operator that repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tt_core.models.rewrites.facts import Facts
from tt_core.models.rewrites.node import RewriteError

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

__all__ = ["DOMAIN", "LOOP", "WHOLE", "Step", "alive", "mentioned", "step_of"]

LOOP, WHOLE, DOMAIN = "TtLoop", "TtWhole", "tt"
"""The operators that `Graph.loop` and `Graph.whole` emit, and their domain."""


@dataclass(frozen=True)
class Step:
    """What one trip computes.

    Args:
        graph: From states, slices of the series that are read, and free values, to the next states and other outputs.
        free: Values of the graph around it that it reads.
        after: Names of the next states.
        outputs: Names of what each trip gives, states among them.
        own: Those that are no states.
        read: Which series it reads, by place.
    """

    graph: GraphProto
    free: list[str]
    after: list[str]
    outputs: list[str]
    own: list[str]
    read: list[int]

    @property
    def followed(self) -> list[int]:
        """The states that are outputs too, by place."""
        return [i for i, a in enumerate(self.after) if a in self.outputs]

    @property
    def stacked(self) -> list[str]:
        """What is kept of each trip, in the operator's order."""
        return [*(self.after[i] for i in self.followed), *self.own]

    def node(self, trips: int, inputs: Sequence[str], outputs: Sequence[str], backwards: bool) -> NodeProto:
        """The operator that takes states, series and free values to the last states and all that is stacked."""
        from onnx import helper

        attributes = {
            "body": self.graph.SerializeToString(),  # hidden from tools that drop a body's weights
            "trips": trips,
            "states": len(self.after),
            "series": len(self.read),
            "backwards": int(backwards),
            **({"followed": self.followed} if self.followed else {}),
        }
        return helper.make_node(LOOP, inputs, outputs, name=outputs[0], domain=DOMAIN, **attributes)


def step_of(
    facts: Facts,
    nodes: Sequence[NodeProto],
    names: Sequence[str],
    states: Sequence[str],
    after: Sequence[str],
    outputs: Sequence[str],
) -> Step:
    """The nodes that a step has emitted, as a graph.

    Args:
        names: Of its states, then of its slices, inside.
        states: Values before the first trip.
        after: Values inside that are the next states.
        outputs: Values inside that each trip gives.

    Raises:
        RewriteError: TVM could not compile it as one function.
    """
    from onnx import helper, numpy_helper

    needed = alive(nodes, [*after, *outputs])
    inside = {o for n in needed for o in n.output}
    for value, first in zip(after, states, strict=True):
        if value not in inside or after.count(value) > 1:
            raise RewriteError("a state of it is not computed by its step")
        if (facts.shape(value), facts.dtype(value)) != (facts.shape(first), facts.dtype(first)):
            raise RewriteError("a state of it changes its shape or its element type")
    used = dict.fromkeys(i for n in needed for i in mentioned(n) if i not in inside)
    if any(name not in used for name in names[: len(states)]):  # TVM drops what a function does not read
        raise RewriteError("a state of it is not read by its step")
    read = [i for i, name in enumerate(names[len(states) :]) if name in used]
    names = [*names[: len(states)], *(names[len(states) + i] for i in read)]
    own = [o for o in dict.fromkeys(outputs) if o not in after]
    if any(o not in inside for o in own):
        raise RewriteError("an output of it is not computed by its step")
    weights = {u: array for u in used if (array := facts.value(u)) is not None}
    free = [u for u in used if u not in weights and u not in names]
    inputs = [helper.make_value_info(n, facts.type_of(n)) for n in (*names, *free)]
    results = [helper.make_value_info(n, facts.type_of(n)) for n in (*after, *own)]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(needed, "step", inputs, results, constants)
    return Step(graph, free, list(after), list(outputs), own, read)


def alive(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> list[NodeProto]:
    """The nodes that some output needs."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(mentioned(node))
    return kept[::-1]


def mentioned(node: NodeProto) -> list[str]:
    """The values that a node reads."""
    return [i for i in node.input if i]
