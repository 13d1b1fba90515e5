"""Networks of inverted residuals."""

from __future__ import annotations

from tt_core.models.zoo.graph import BEHIND_RELU, Graph, Value

__all__ = ["mobilenet_v2"]


def mobilenet_v2(g: Graph, batch: int) -> None:
    """MobileNetV2, width 1.0: Sandler et al. (2018), arXiv:1801.04381, table 2, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu6(g.bn(g.conv(x, 32, 3, stride=2, pad=1, gain=1)))
    for expansion, width, repeats, stride in [  # t, c, n, s of the table
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]:
        for i in range(repeats):
            x = _inverted_residual(g, x, width, stride if i == 0 else 1, expansion)
    x = g.relu6(g.bn(g.conv(x, 1280, 1, gain=1)))
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def _inverted_residual(g: Graph, x: Value, width: int, stride: int, expansion: int) -> Value:
    residual = stride == 1 and x.width == width
    y = x
    if expansion != 1:
        y = g.relu6(g.bn(g.conv(y, x.width * expansion, 1, gain=1)))
    y = g.relu6(g.bn(g.conv(y, y.width, 3, stride, pad=1, groups=y.width, gain=2)))
    y = g.bn(g.conv(y, width, 1, gain=1 if residual else BEHIND_RELU))
    return g.add(x, y) if residual else y
