"""ATFormer: self-attention between a program's statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tt_surrogate.layers import Drop, encoder, linear, relu, shape_of_encoder, shape_of_linear
from tt_surrogate.network import Network, Parameters

__all__ = ["ATFormer"]


@dataclass(eq=False)
class ATFormer(Network):
    """Two linear layers with ReLU, encoder layers over the program's statements, a linear layer, summed.

    Source: Bai et al. (2023), ATFormer, EMNLP, section 3.2; Tables 17 (`mask = false`) and 18 (ATFormer-M).

    Args:
        width: Units, D_out. (default: 512, as the paper)
        layers: Encoder layers; 1 is the paper's ATFormer-1L, 0 none at all. (default: 2, as the paper)
        heads: Of attention. (default: 4, as the paper)
        hidden: Units between an encoder layer's two linear layers; 0 means four times `width`. (default: 0, the paper
            gives none)
        …: Those of `Network`.
    """

    name: ClassVar[str] = "atformer"
    layer_options: ClassVar[tuple[str, ...]] = ("width", "layers", "heads", "hidden")

    width: int = 512
    layers: int = 2
    heads: int = 4
    hidden: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1 or self.heads < 1 or self.width % self.heads or self.layers < 0 or self.hidden < 0:
            raise ValueError(
                f"width must be a multiple of heads, layers and hidden not negative;"
                f" got {self.width}, {self.heads}, {self.layers}, {self.hidden}"
            )

    @property
    def units(self) -> int:
        return self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        shapes = shape_of_linear("embed.0", -1, d) | shape_of_linear("embed.1", d, d)
        for i in range(self.layers):
            shapes |= shape_of_encoder(f"encoder.{i}", d, self.hidden or 4 * d)
        return shapes

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        x = relu(linear(P, "embed.1", relu(linear(P, "embed.0", Z))))
        for i in range(self.layers):
            x = encoder(P, f"encoder.{i}", x, keep, self.heads, xp, drop)
        return (x * keep[:, :, None]).sum(1), keep.sum(1)
