"""TabNet: attention over the features of a statement."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tt_surrogate.layers import Drop, drawn, shape_of_linear
from tt_surrogate.network import Network, Parameters

__all__ = ["TabNet"]

PREFIX = "embed."
"""Of the parameters of pytorch-tabnet's module."""

MOVED = ("running_mean", "running_var")
"""Parameters that batch normalisation moves, and no gradient."""


@dataclass(eq=False)
class TabNet(Network):
    """TabNet on each statement, summed over the program, a linear layer: a baseline of ATFormer's.

    Source: Arik and Pfister (2021), TabNet, AAAI, arXiv:1908.07442, as pytorch-tabnet has it; Bai et al. (2023),
    ATFormer, EMNLP, Table 14. Its loss for sparse masks is left out: programs are learned by their ranks alone.

    It normalises by batches while it learns, by what it saw of them afterwards, so that no score depends on its
    neighbours. Unlike the other networks it needs PyTorch to predict, too (extra `[tabnet]`). `freeze = "embedding"`
    leaves alone all but the last layer.

    Args:
        width: Units that a statement becomes. (default: 256, as the paper)
        decisions, attention: Width of the decision and of the attention; n_d and n_a. (default: 1 and 8, as the paper)
        steps: Of decision. (default: 3, as the paper)
        gamma: How freely a feature is used in several steps. (default: 1.3, as the paper)
        ghost: Statements that are normalised together. (default: 128, as pytorch-tabnet)
        …: Those of `Network`.
    """

    name: ClassVar[str] = "tabnet"
    layer_options: ClassVar[tuple[str, ...]] = ("width", "decisions", "attention", "steps", "gamma")

    width: int = 256
    decisions: int = 1
    attention: int = 8
    steps: int = 3
    gamma: float = 1.3
    ghost: int = 128
    module_: Any = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.width, self.decisions, self.attention, self.steps, self.ghost) < 1 or not self.gamma >= 1:
            raise ValueError("width, decisions, attention, steps and ghost must be positive, gamma at least 1")
        for module in ("torch", "pytorch_tabnet"):  # here, not after the first measured batch
            if importlib.util.find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    @property
    def units(self) -> int:
        return self.width

    def moved(self, name: str) -> bool:
        return name.endswith(MOVED)

    def begun(self, width: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**31)))
            self.module_ = None
            state = self._state(width)
        own = {PREFIX + name: value.numpy().astype(np.float32) for name, value in state.items()}
        return own | drawn(shape_of_linear("out", self.units, 1), rng)

    def all_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        own = {PREFIX + name: tuple(value.shape) for name, value in self._state(width).items()}
        return own | shape_of_linear("out", self.units, 1)

    def summary(self, P: Parameters, Z: Any, keep: Any, xp: Any, drop: Drop) -> tuple[Any, Any]:
        import torch

        learning = xp is torch
        at = torch.as_tensor(keep)
        X = torch.as_tensor(Z)[at]
        with torch.set_grad_enabled(learning):
            summed = self._summed(P, X, at, learning and len(X) > 1, drop)
        return (summed if learning else summed.numpy()), keep.sum(1) * 0 + 1

    def _summed(self, P: Parameters, X: Any, at: Any, learning: bool, drop: Drop) -> Any:
        """`(n, width)` of statements `(m, columns)` that stand at `at` `(n, L)` bool."""
        import torch

        self._module(X.shape[1]).train(learning)
        own = {k.removeprefix(PREFIX): torch.as_tensor(v) for k, v in P.items() if k.startswith(PREFIX)}
        each, _ = torch.func.functional_call(self.module_, own, (X,))
        where = torch.nonzero(at)[:, 0]
        return torch.zeros(len(at), self.width).index_add(0, where, drop(each))

    def _state(self, width: int) -> dict[str, Any]:
        """The module's parameters and averages by name, each once, where steps share some."""
        module = self._module(width)
        moved = {k: v for k, v in module.named_buffers() if k.endswith(MOVED)}
        return {k: v.detach() for k, v in module.named_parameters()} | moved

    def _module(self, width: int) -> Any:
        """pytorch-tabnet's module for so many columns, made once; its parameters are never used but to begin with."""
        made = (width, self.width, self.decisions, self.attention, self.steps, self.gamma, self.ghost)
        if self.module_ is None or self.module_.made != made:
            import torch
            from pytorch_tabnet.tab_network import TabNet as Module  # type: ignore[import-not-found]

            options = {"n_d": self.decisions, "n_a": self.attention, "n_steps": self.steps, "gamma": self.gamma}
            groups = torch.eye(width)
            self.module_ = Module(
                width, self.width, **options, virtual_batch_size=self.ghost, group_attention_matrix=groups
            )
            self.module_.made = made
        return self.module_
