"""Rewritings of an ONNX graph into operators that TVM imports, before the import.

`graph` is the pass; a module for each family says which operators it replaces, by domain and name, and registers by
the hook `tt_rewrites`. A model without any of them is left as it is.
"""

from __future__ import annotations

from tt_core.models.rewrites.apply import apply, needed, nodes, registered
from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.loops import LOOP, WHOLE
from tt_core.models.rewrites.node import After, Node, Only, Rewrite, RewriteError

__all__ = [
    "LOOP",
    "WHOLE",
    "After",
    "Graph",
    "Node",
    "Only",
    "Rewrite",
    "RewriteError",
    "apply",
    "needed",
    "nodes",
    "registered",
]
