"""The rewriting step: whether a model needs it, and the model that TVM gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tt_spec import Plugins

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import After, Only, Rewrite
from tt_core.models.subgraphs import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

__all__ = ["apply", "needed", "nodes", "registered"]

LEAST_OPSET = 13
"""The forms that rewritings emit: axes of Squeeze, Unsqueeze and Split as inputs."""


def registered(plugins: Plugins | None = None) -> dict[tuple[str, str], Rewrite]:
    """Every rewriting of every plug-in, by domain and operator; of two for one operator the later name's."""
    plugins = plugins or Plugins()
    found: dict[tuple[str, str], Rewrite] = {}
    for name in plugins.names("rewrite"):
        found.update(plugins.build("rewrite", name))
    return found


def needed(model: ModelProto, rewrites: Mapping[tuple[str, str], Rewrite], known: frozenset[str]) -> bool:
    """Whether some node of the model has a rewriting, a body, or no importer."""
    if model.functions:
        return True
    kinds = {n.op_type for n in nodes(model.graph)}
    for node in nodes(model.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        rewrite = rewrites.get((domain, node.op_type))
        if isinstance(rewrite, After):
            rewrite = rewrite if rewrite.operator in kinds else None
        elif isinstance(rewrite, Only):
            rewrite = rewrite if rewrite.applies(node) else None
        if rewrite is not None or (domain == "" and node.op_type not in known):
            return True
    return False


def apply(
    model: ModelProto, rewrites: Mapping[tuple[str, str], Rewrite], known: frozenset[str], loops: bool = True
) -> tuple[ModelProto, Graph]:
    """The model rewritten, and the graph that did it, which knows what was used. Raises `RewriteError`.

    Without `loops` everything is unrolled.
    """
    graph = Graph(_modern(model), rewrites, known, loops)
    return graph.written(), graph


def _modern(model: ModelProto) -> ModelProto:
    """The model in opset 13 or newer where ONNX can convert it."""
    from onnx import version_converter

    if all(o.version >= LEAST_OPSET for o in model.opset_import if o.domain in ("", "ai.onnx")):
        return model
    try:
        return version_converter.convert_version(model, LEAST_OPSET)
    except Exception:  # onnx raises several types
        return model


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Nodes in the file's order, those of branches and loop bodies behind the node that holds them."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from nodes(inner)
