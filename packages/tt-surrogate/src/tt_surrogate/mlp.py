"""TenSet's multi-layer perceptron."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tt_surrogate.layers import Drop, linear, relu, shape_of_linear
from tt_surrogate.network import Network, Parameters

__all__ = ["MLP"]


@dataclass(eq=False)
class MLP(Network):
    """Linear layers with ReLU on each statement, summed over the program, then linear layers on the sum.

    Source: Zheng et al. (2021), TenSet, NeurIPS Datasets and Benchmarks, section 4.

    Args:
        width: Units. (default: 256, as TenSet)
        layers: After the sum, each added to its input. (default: 2, as TenSet)
        …: Those of `Network`.
    """

    name: ClassVar[str] = "mlp"
    layer_options: ClassVar[tuple[str, ...]] = ("width", "layers")

    width: int = 256
    layers: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1 or self.layers < 0:
            raise ValueError(f"width must be positive, layers not negative; got {self.width}, {self.layers}")

    @property
    def units(self) -> int:
        return self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        shapes = shape_of_linear("embed.0", -1, d) | shape_of_linear("embed.1", d, d)
        for i in range(self.layers):
            shapes |= shape_of_linear(f"after.{i}", d, d)
        return shapes

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        x = relu(linear(P, "embed.1", relu(linear(P, "embed.0", Z))))
        x = (x * keep[:, :, None]).sum(1)
        for i in range(self.layers):
            x = x + drop(relu(linear(P, f"after.{i}", x)))
        return x, 0 * keep.sum(1) + 1
