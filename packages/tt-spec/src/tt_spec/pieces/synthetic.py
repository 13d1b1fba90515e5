"""A task whose run times are a formula: for tests, examples and comparisons that need no compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from tt_spec.roles import Realised
from tt_spec.space import Knob, Space
from tt_spec.types import Bar, Statements, Task, Trial

__all__ = ["SyntheticMeasurer", "synthetic_task"]


def synthetic_task(name: str = "bowl", knobs: int = 4, choices: int = 8) -> Task:
    """A task of `choices ** knobs` rows for `SyntheticMeasurer`."""
    space = Space(tuple(Knob(f"k{i}", "choice", tuple(range(choices))) for i in range(knobs)), name="synthetic")
    return Task(f"synthetic-{name}-{knobs}-{choices}", name, "synthetic", "none", (space,), flops=1e6)


class SyntheticMeasurer:
    """Simulated: 1 ms times one plus what a row lacks of an optimum hidden by the task's name.

    With z the difference of codes from the optimum, each knob's over its number of choices less one, a row lacks

    - "separable": |z|^2, each knob on its own;
    - "rotated": the sum of w_i (Q z)_i^2 with a random rotation Q and weights w from 0.1 to 3: a narrow valley that
      crosses the knobs;
    - "deceptive": 25 |z|^2 around the optimum, but a wide bowl about its mirror image, which is a quarter slower,
      everywhere else.

    Args:
        landscape: What a row lacks. (default: "separable")
        noise: Relative standard deviation of each timing. (default: 0.01)
        fail: Share of rows that fail to build, fixed per row. (default: 0)
        seed: Of the noise.
    """

    def __init__(
        self,
        noise: float = 0.01,
        fail: float = 0.0,
        seed: int = 0,
        landscape: Literal["separable", "rotated", "deceptive"] = "separable",
    ) -> None:
        self.noise, self.fail, self.seed, self.landscape = noise, fail, seed, landscape

    def optimum(self, task: Task) -> np.ndarray:
        """The fastest row, `(d,)`."""
        return _hash_rng(task.key).integers(0, task.space.shape)

    def seconds(self, task: Task, codes: np.ndarray) -> np.ndarray:
        """Noise-free seconds of each row, `(n,)`."""
        last, best = np.asarray(task.space.shape) - 1, self.optimum(task)
        scale = np.maximum(last, 1)
        z = (codes - best) / scale
        if self.landscape == "rotated":
            rotation = np.linalg.qr(_hash_rng(task.key + "rotated").standard_normal((len(best), len(best))))[0]
            return 1e-3 * (1.0 + (z @ rotation.T) ** 2 @ np.geomspace(0.1, 3.0, len(best)))
        lack = (z**2).sum(axis=1)
        if self.landscape == "deceptive":
            bowl = 1.25 * (1.0 + (((codes - (last - best)) / scale) ** 2).sum(axis=1))
            return 1e-3 * np.minimum(1.0 + 25.0 * lack, bowl)
        return 1e-3 * (1.0 + lack)

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        for row, truth in zip(np.asarray(codes), self.seconds(task, np.asarray(codes)), strict=True):
            rng = np.random.default_rng([self.seed, *map(int, row)])
            config = tuple(int(c) for c in row)
            if not task.space.in_range(row[None])[0]:
                yield Trial(config, error="build", why="outside the space")
                continue
            if rng.random() < self.fail:
                yield Trial(config, error="build", why="simulated failure")
                continue
            runs = truth * np.maximum(1.0 + self.noise * rng.standard_normal(3), 0.01)
            yield Trial(config, seconds=tuple(runs.tolist()), runs=3)

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        codes = task.space.canonical(codes)
        allowed = task.space.allowed(codes)
        return Realised(codes, tuple(None if ok else "a limit of the space forbids it" for ok in allowed))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        """One statement per row whose first columns are the encoded knobs."""
        X = task.space.encode(np.asarray(codes))
        values = np.zeros((len(X), 164))
        values[:, : X.shape[1]] = X[:, :164]
        return Statements(values, np.arange(len(X) + 1), np.zeros((len(X), 10))), np.ones(len(X), dtype=bool)

    def close(self) -> None:
        pass


def _hash_rng(text: str) -> np.random.Generator:
    return np.random.default_rng(np.frombuffer(text.encode(), dtype=np.uint8))
