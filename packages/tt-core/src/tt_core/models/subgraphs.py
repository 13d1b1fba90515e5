"""Graphs inside the nodes of an ONNX model: branches and loop bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, NodeProto

__all__ = ["subgraphs", "with_subgraphs"]

G = TypeVar("G", "GraphProto", "FunctionProto")


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds itself."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def with_subgraphs(graph: G) -> Iterator[G | GraphProto]:
    """A graph, or a function, and all inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from with_subgraphs(inner)
