"""Residual networks."""

from __future__ import annotations

from tt_core.models.zoo.graph import Graph, Value

__all__ = ["resnet18", "resnet50"]


def resnet18(g: Graph, batch: int) -> None:
    """ResNet-18: He et al. (2015), arXiv:1512.03385, table 1, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = _stem(g, batch)
    for width, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        x = _basic_block(g, x, width, stride)
        x = _basic_block(g, x, width, 1)
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def resnet50(g: Graph, batch: int) -> None:
    """ResNet-50, table 1 too; the stride is in the 3x3 convolution, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = _stem(g, batch)
    for width, repeats, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(repeats):
            x = _bottleneck(g, x, width, stride if i == 0 else 1)
    g.output("logits", g.linear(g.global_pool(x), 1000), (batch, 1000))


def _stem(g: Graph, batch: int) -> Value:
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu(g.bn(g.conv(x, 64, 7, stride=2, pad=3, gain=1)))
    return g.max_pool(x, 3, stride=2, pad=1)


def _basic_block(g: Graph, x: Value, width: int, stride: int) -> Value:
    y = g.relu(g.bn(g.conv(x, width, 3, stride, pad=1)))
    y = g.bn(g.conv(y, width, 3, pad=1, gain=1))
    if stride != 1 or x.width != width:
        x = g.bn(g.conv(x, width, 1, stride))
    return g.relu(g.add(y, x))


def _bottleneck(g: Graph, x: Value, width: int, stride: int) -> Value:
    y = g.relu(g.bn(g.conv(x, width, 1)))
    y = g.relu(g.bn(g.conv(y, width, 3, stride, pad=1)))
    y = g.bn(g.conv(y, 4 * width, 1, gain=1))
    if stride != 1 or x.width != y.width:
        x = g.bn(g.conv(x, 4 * width, 1, stride))
    return g.relu(g.add(y, x))
