"""Plain stacks of convolutions behind which large fully connected layers stand."""

from __future__ import annotations

from tt_core.models.zoo.graph import BEHIND_RELU, Graph, Value

__all__ = ["alexnet", "vgg16"]


def vgg16(g: Graph, batch: int) -> None:
    """VGG-16: Simonyan and Zisserman (2014), arXiv:1409.1556, table 1, column D, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    gain = 1.0
    for width, repeats in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]:
        for _ in range(repeats):
            x = g.relu(g.conv(x, width, 3, pad=1, bias=True, gain=gain))
            gain = BEHIND_RELU
        x = g.max_pool(x, 2, stride=2)
    _classify(g, g.flatten(x, 512 * 7 * 7), batch)


def alexnet(g: Graph, batch: int) -> None:
    """AlexNet: Krizhevsky (2014), arXiv:1404.5997, one column, as torchvision builds it.

    input (batch, 3, 224, 224), logits (batch, 1000).
    """
    x = g.input("input", (batch, 3, 224, 224))
    x = g.relu(g.conv(x, 64, 11, stride=4, pad=2, bias=True, gain=1))
    x = g.relu(g.conv(g.max_pool(x, 3, stride=2), 192, 5, pad=2, bias=True))
    x = g.max_pool(x, 3, stride=2)
    for width in (384, 256, 256):
        x = g.relu(g.conv(x, width, 3, pad=1, bias=True))
    _classify(g, g.flatten(g.max_pool(x, 3, stride=2), 256 * 6 * 6), batch)


def _classify(g: Graph, x: Value, batch: int) -> None:
    """The two hidden layers that hold most of the weights; dropout does nothing at inference."""
    for _ in range(2):
        x = g.relu(g.linear(x, 4096, gain=BEHIND_RELU))
    g.output("logits", g.linear(x, 1000), (batch, 1000))
