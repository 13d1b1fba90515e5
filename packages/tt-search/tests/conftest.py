from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tt_spec import Context, Prediction, Task, VirtualClock, draw, tokens
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task


class Oracle:
    """A context whose model is the truth; counts the rows that it was asked."""

    def __init__(self, task: Task, measured: int, seed: int, pending: int = 0, landscape: str = "separable") -> None:
        self.measurer = SyntheticMeasurer(landscape=landscape)  # type: ignore[arg-type]
        self.task, self.asked, self.batches = task, 0, 0
        rng = np.random.default_rng([seed, 7])
        known = draw(task.space, set(), measured + pending, rng)
        rows = known[:measured]
        self.ctx = Context(
            task=task,
            space=task.space,
            rows=rows,
            y=self.truth(rows),
            errors=[None] * len(rows),
            pending=known[measured:],
            best_s=1e-3,
            predict=lambda codes: Prediction(self.truth(codes), np.zeros(len(codes))),
            score=self.score,
            rng=np.random.default_rng(seed),
            clock=VirtualClock(),
            fitted=True,
            seen=frozenset(tokens(known)),
        )

    def truth(self, codes: np.ndarray) -> np.ndarray:
        return 1e-3 / self.measurer.seconds(self.task, codes)

    def score(self, codes: np.ndarray) -> np.ndarray:
        self.asked += len(codes)
        self.batches += 1
        return self.truth(codes)

    def random_best(self, calls: int, n: int) -> np.ndarray:
        """Scores of the best `n` of `calls` random rows, best first."""
        return -np.sort(-self.truth(self.task.space.sample(calls, np.random.default_rng(99))))[:n]


@pytest.fixture(scope="session")
def make_oracle() -> Callable[..., Oracle]:
    def make(
        knobs: int = 10,
        choices: int = 16,
        measured: int = 50,
        seed: int = 0,
        pending: int = 0,
        landscape: str = "separable",
        name: str = "peak",
    ) -> Oracle:
        return Oracle(synthetic_task(name, knobs, choices), measured, seed, pending, landscape)

    return make


@pytest.fixture
def oracle(make_oracle: Callable[..., Oracle]) -> Callable[..., Oracle]:
    return make_oracle
