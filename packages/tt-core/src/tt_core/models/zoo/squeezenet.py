"""Networks of fire modules."""

from __future__ import annotations

from tt_core.models.zoo.graph import Graph, Value

__all__ = ["squeezenet1_1"]


def squeezenet1_1(g: Graph, batch: int) -> None:
    """SqueezeNet 1.1: Iandola et al. (2016), arXiv:1602.07360, in the revision that torchvision builds.

    input (batch, 3, 224, 224), logits (batch, 1000), not negative: the last layer is a ReLU.
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu(g.conv(x, 64, 3, stride=2, bias=True, gain=1))
    for stage in [[(16, 64)] * 2, [(32, 128)] * 2, [(48, 192)] * 2 + [(64, 256)] * 2]:
        x = g.max_pool(x, 3, stride=2)  # torchvision's ceil_mode changes nothing at 111, 55 and 27
        for squeeze, expand in stage:
            x = _fire(g, x, squeeze, expand)
    x = g.relu(g.conv(x, 1000, 1, bias=True))
    g.output("logits", g.global_pool(x), (batch, 1000))


def _fire(g: Graph, x: Value, squeeze: int, expand: int) -> Value:
    x = g.relu(g.conv(x, squeeze, 1, bias=True))
    small = g.relu(g.conv(x, expand, 1, bias=True))
    large = g.relu(g.conv(x, expand, 3, pad=1, bias=True))
    return g.concat(small, large)
