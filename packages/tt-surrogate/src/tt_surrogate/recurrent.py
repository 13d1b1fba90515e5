"""A recurrent network over statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tt_surrogate.layers import Drop, linear, lstm, relu, shape_of_linear, shape_of_lstm
from tt_surrogate.network import Network, Parameters

__all__ = ["LSTM"]


@dataclass(eq=False)
class LSTM(Network):
    """Two linear layers with ReLU, a long short-term memory over the program's statements, a linear layer on its last
    state: a baseline of ATFormer's.

    Source: Bai et al. (2023), ATFormer, EMNLP, Table 15; Hochreiter and Schmidhuber (1997), Neural Computation 9(8).

    Args:
        width: Units of the state. (default: 1024, as the paper)
        …: Those of `Network`.
    """

    name: ClassVar[str] = "lstm"
    layer_options: ClassVar[tuple[str, ...]] = ("width",)

    width: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise ValueError(f"width must be positive, got {self.width}")

    @property
    def units(self) -> int:
        return self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        return shape_of_linear("embed.0", -1, d) | shape_of_linear("embed.1", d, d) | shape_of_lstm("lstm", d)

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        x = relu(linear(P, "embed.1", relu(linear(P, "embed.0", Z))))
        return drop(lstm(P, "lstm", x, keep, xp)), 0 * keep.sum(1) + 1
