"""Forms of Resize and SpaceToDepth that TVM's importer reads as if they were the common one.

Source: ONNX operators Resize-19 (axes, keep_aspect_ratio_policy, antialias), SpaceToDepth-28 (mode).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tt_core.models.rewrites.graph import Graph
from tt_core.models.rewrites.node import Node, Only, Rewrite, RewriteError

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["operators"]

_CHANGED = ("axes", "keep_aspect_ratio_policy", "antialias")


def operators() -> dict[tuple[str, str], Rewrite]:
    """The rewritings of this family."""
    return {
        ("", "Resize"): Only(_has(*_CHANGED), _resize),
        ("", "SpaceToDepth"): Only(_has("mode"), _space_to_depth),
    }


def _has(*names: str) -> Callable[[NodeProto], bool]:
    return lambda node: any(a.name in names for a in node.attribute)


def _resize(n: Node, g: Graph) -> Sequence[str] | None:
    """Scales or sizes of all axes, in place of some of them; the aspect's policy becomes scales."""
    if all(n.get(name) is None for name in _CHANGED):
        return None
    shape = g.shape(n.input(0))
    axes = [int(a) % len(shape) for a in n.get("axes", range(len(shape)))]
    scales, sizes = np.ones(len(shape), np.float32), list(shape)
    if n.input(3):
        given = [int(s) for s in g.known(n.input(3), "sizes")]
        policy = n.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            ratio = choose(s / shape[a] for s, a in zip(given, axes, strict=True))
            given = [math.floor(ratio * shape[a] + 0.5) for a in axes]
        for axis, size in zip(axes, given, strict=True):
            sizes[axis], scales[axis] = size, size / shape[axis]
    else:
        scales[axes] = g.known(n.input(2), "scales")
    if n.get("antialias") and (scales < 1).any():
        raise RewriteError("TVM resizes without antialiasing, and there is no rewriting for it")
    kept = {k: v for k, v in n.attributes.items() if k not in _CHANGED}
    roi = ""
    if n.input(1) and g.shape(n.input(1)) != (0,):
        starts_ends = np.repeat(np.array([0.0, 1.0], g.dtype(n.input(1))), len(shape)).reshape(2, -1)
        starts_ends[:, axes] = g.known(n.input(1), "roi").reshape(2, -1)
        roi = g.const(starts_ends.ravel())
    if n.input(3):
        return [g.op("Resize", n.input(0), roi, "", np.array(sizes, np.int64), **kept)]
    return [g.op("Resize", n.input(0), roi, scales, **kept)]


def _space_to_depth(n: Node, g: Graph) -> Sequence[str] | None:
    """Columns, rows, depth: the channel is the slowest of the output's channels, not the fastest."""
    if n.get("mode", "DCR") == "DCR":
        return None
    (batch, channels, height, width), size = g.shape(n.input(0)), int(n.get("blocksize"))
    x = g.reshape(n.input(0), (batch, channels, height // size, size, width // size, size))
    return [
        g.reshape(g.transpose(x, (0, 1, 3, 5, 2, 4)), (batch, channels * size * size, height // size, width // size))
    ]
