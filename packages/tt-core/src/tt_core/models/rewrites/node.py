"""A node as rewritings see it, and the forms that a rewriting may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto

    from tt_core.models.rewrites.graph import Graph

__all__ = ["After", "Node", "Only", "Rewrite", "RewriteError", "as_attribute", "attribute"]


class RewriteError(Exception):
    """A node that no rewriting can express; the message says why and the way out.

    Args:
        message: A sentence about the node, which "it" stands for.
    """

    node: NodeProto | None = None
    """The node of the file, as protobuf."""


@dataclass(frozen=True)
class Node:
    """A node with its inputs resolved.

    Args:
        inputs: Names of values; "" for one that is not given.
        outputs: As in the file; "" for one that nobody asks for.
        attributes: By name, as Python values: numbers, lists, text, numpy arrays, `onnx.GraphProto`.
        scope: Names of the enclosing graphs that a subgraph among the attributes refers to.
    """

    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    name: str = ""
    scope: Mapping[str, str] = field(default_factory=dict)

    def input(self, i: int) -> str:
        """Name of input i, "" if it is not given."""
        return self.inputs[i] if i < len(self.inputs) else ""

    def wants(self, i: int) -> bool:
        """Whether output i is used."""
        return i < len(self.outputs) and bool(self.outputs[i])

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, text decoded."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value


Rewrite = Callable[[Node, "Graph"], "Sequence[str] | None"]
"""Emits operators through the graph and returns one value for each output; None leaves the node as it is."""


@dataclass(frozen=True)
class After:
    """A rewriting that concerns a model only if another operator stands in it.

    Args:
        operator: Of the standard domain: "DequantizeLinear".
    """

    operator: str
    rewrite: Rewrite

    def __call__(self, node: Node, graph: Graph) -> Sequence[str] | None:
        return self.rewrite(node, graph)


@dataclass(frozen=True)
class Only:
    """A rewriting of some forms of an operator, the others of which the importer takes.

    Args:
        applies: Whether a node, as protobuf, has such a form.
    """

    applies: Callable[[NodeProto], bool]
    rewrite: Rewrite

    def __call__(self, node: Node, graph: Graph) -> Sequence[str] | None:
        return self.rewrite(node, graph)


def attribute(a: AttributeProto) -> Any:
    """Its value in Python; a tensor as an array."""
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(a)
    return numpy_helper.to_array(value) if a.HasField("t") else value


def as_attribute(name: str, value: Any) -> AttributeProto:
    """The reverse of `attribute`."""
    from onnx import helper, numpy_helper

    return helper.make_attribute(name, numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value)
