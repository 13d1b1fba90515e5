"""Inception networks."""

from __future__ import annotations

from typing import NamedTuple

from tt_core.models.zoo.graph import Graph, Value

__all__ = ["inception_v2"]


class Widths(NamedTuple):
    """Channels of a module's branches.

    Args:
        one: 1x1 convolution; 0 in a module of stride 2.
        reduce, three: 1x1 before the 3x3 convolution, and the latter.
        reduce2, double: 1x1 before two 3x3 convolutions, and each of these.
        pool: 1x1 behind the pooling; 0 passes the pooled input on.
    """

    one: int
    reduce: int
    three: int
    reduce2: int
    double: int
    pool: int


MODULES = (
    Widths(64, 64, 64, 64, 96, 32),  # 3a
    Widths(64, 64, 96, 64, 96, 64),
    Widths(0, 128, 160, 64, 96, 0),  # 3c, stride 2
    Widths(224, 64, 96, 96, 128, 128),  # 4a
    Widths(192, 96, 128, 96, 128, 128),
    Widths(160, 128, 160, 128, 160, 128),
    Widths(96, 128, 192, 160, 192, 128),
    Widths(0, 128, 192, 192, 256, 0),  # 4e, stride 2
    Widths(352, 192, 320, 160, 224, 128),  # 5a
    Widths(352, 192, 320, 192, 224, 128),  # 5b, whose pooling is the only maximum of stride 1
)


def inception_v2(g: Graph, batch: int) -> None:
    """BN-Inception: Ioffe and Szegedy (2015), arXiv:1502.03167, figure 5.

    Convolutions have no bias, as batch normalisation follows each. input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.max_pool(_conv(g, x, 64, 7, 2), 3, stride=2, pad=1)
    x = _conv(g, _conv(g, x, 64, 1), 192, 3)
    x = g.max_pool(x, 3, stride=2, pad=1)
    for widths in MODULES:
        x = _module(g, x, widths, largest=widths is MODULES[-1])
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def _module(g: Graph, x: Value, w: Widths, largest: bool) -> Value:
    stride = 1 if w.one else 2
    three = _conv(g, _conv(g, x, w.reduce, 1), w.three, 3, stride)
    double = _conv(g, _conv(g, _conv(g, x, w.reduce2, 1), w.double, 3), w.double, 3, stride)
    if stride == 2:
        return g.concat(three, double, g.max_pool(x, 3, stride=2, pad=1))
    pooled = g.max_pool(x, 3, stride=1, pad=1) if largest else g.average_pool(x, 3, stride=1, pad=1)
    return g.concat(_conv(g, x, w.one, 1), three, double, _conv(g, pooled, w.pool, 1))


def _conv(g: Graph, x: Value, width: int, kernel: int, stride: int = 1) -> Value:
    return g.relu(g.bn(g.conv(x, width, kernel, stride, pad=kernel // 2)))
