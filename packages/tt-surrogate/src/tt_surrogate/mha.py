"""Multi-head attention alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tt_surrogate.layers import Drop, attention, linear, relu, shape_of_attention, shape_of_linear
from tt_surrogate.network import Network, Parameters

__all__ = ["MultiHeadAttention"]


@dataclass(eq=False)
class MultiHeadAttention(Network):
    """Two linear layers with ReLU, one attention layer, a linear layer, summed: a baseline of ATFormer's.

    Source: Bai et al. (2023), ATFormer, EMNLP, Table 16; Vaswani et al. (2017), arXiv:1706.03762.

    Args:
        width: Units. (default: 512, as the paper)
        heads: (default: 4, as the paper)
        …: Those of `Network`.
    """

    name: ClassVar[str] = "mha"
    layer_options: ClassVar[tuple[str, ...]] = ("width", "heads")

    width: int = 512
    heads: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1 or self.heads < 1 or self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")

    @property
    def units(self) -> int:
        return self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        return shape_of_linear("embed.0", -1, d) | shape_of_linear("embed.1", d, d) | shape_of_attention("attention", d)

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        x = relu(linear(P, "embed.1", relu(linear(P, "embed.0", Z))))
        x = drop(attention(P, "attention", x, keep, self.heads, xp))
        return (x * keep[:, :, None]).sum(1), keep.sum(1)
