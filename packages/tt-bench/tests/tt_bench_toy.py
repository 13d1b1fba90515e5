"""Small recordings whose truth is known."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
from tt_bench.lessons import Lesson
from tt_bench.recording import Pace, Recorded
from tt_core.host import Host
from tt_spec import Bar, Group, Knob, Measurement, Prediction, Realised, Space, Statements, Task, Trial
from tt_spec.roles import Progress


def space(tiles: int = 6, version: str = "1") -> Space:
    """A knob that matters much, one that matters little, one that exists only for some rows, one without effect."""
    return Space(
        (
            Knob("tile", "tile", tuple((2**i, 2 ** (tiles - i)) for i in range(tiles))),
            Knob("order", "choice", ("rows", "columns")),
            Knob("unroll", "choice", (0, 16, 64), active_if=(1, (1,))),
            Knob("idle", "choice", (0, 1, 2)),
        ),
        version=version,
        name="template",
    )


def truth(s: Space, codes: np.ndarray) -> np.ndarray:
    """Seconds of each row `(n,)`: all different, the best in the middle of the tiles."""
    codes = s.canonical(codes)
    base = 1.0 + 0.5 * np.abs(codes[:, 0] - 2.3) + 0.1 * codes[:, 1] + 0.03 * codes[:, 2]
    return 1e-4 * (base + 1e-4 * codes[:, 3])


def task(name: str = "layer", tiles: int = 6, weight: float = 1.0) -> Task:
    return Task(f"key-{name}-{tiles}", name, "conv2d", "llvm", (space(tiles),), 1e6, weight, b"payload", "1x1")


def measured(t: Task, row: np.ndarray, noise: float, runs: int = 20) -> Measurement:
    """As `tt record` keeps it. The first tile's second order cannot be built."""
    config = tuple(int(c) for c in row)
    knobs = t.space.decode(row)
    cost = {"apply": 0.001, "build": 0.1 + 0.001 * config[0], "run": 0.0}
    if config[:2] == (0, 1):
        return Measurement(t.key, t.space.key, config, knobs, error="build", why="no registers left", cost=cost)
    rng = np.random.default_rng([7, *config])
    series = truth(t.space, row[None])[0] * np.maximum(1 + noise * rng.standard_normal(runs), 0.2)
    seconds = tuple(round(float(s), 9) for s in series)
    return Measurement(t.key, t.space.key, config, knobs, seconds, runs + 1, cost={**cost, "run": sum(seconds)})


def recorded(t: Task, noise: float = 0.01, rows: np.ndarray | None = None) -> Recorded:
    """Every row of the space, or a sample."""
    keep = None if rows is not None else tuple(tuple(range(n)) for n in t.space.shape)
    codes = np.stack(list(t.space.enumerate())) if rows is None else rows
    found = [measured(t, row, noise) for row in codes]
    statements = {m.config: np.full((2, 164), float(i), np.float32) for i, m in enumerate(found) if m.seconds}
    return Recorded.of(t, keep, found, statements, Pace(2, 4, 0.002, 0.001, 0.003))


class SyntheticPool:
    """Measures by `truth`, as the pool of a machine would.

    Args:
        runs: Of a series.
        calls: Rows that were measured, in order.
    """

    def __init__(self, runs: int, calls: list[tuple[int, ...]]) -> None:
        self.runs, self.calls = runs, calls

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        for row in codes:
            self.calls.append(tuple(int(c) for c in row))
            m = measured(task, row, 0.01, self.runs)
            yield Trial(m.config, m.seconds, m.runs, m.error, m.why, m.cost)

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        return Realised(np.array(codes), tuple("too wide" if r[0] == 1 and r[3] == 2 else None for r in codes))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        n = len(codes)
        return Statements(np.ones((n, 164)), np.arange(n + 1), np.zeros((n, 10))), np.ones(n, bool)

    def close(self) -> None:
        pass


class SyntheticHost(Host):
    """A machine without a compiler, and so without its types."""

    def __init__(self, tiles: int = 6) -> None:
        self.tiles = tiles
        self.calls: list[tuple[int, ...]] = []

    def prepare(self, model, *, target="native", tasks="*", space="template"):
        return SimpleNamespace(target="toy", tasks=[task("layer", self.tiles)])

    def measurer(self, evaluator=None, threads=None):
        return SyntheticPool(evaluator.runs if evaluator else 1, self.calls)

    def device(self, target):
        return "toy/2 cores"

    def versions(self):
        return {"tvm": "0"}

    def cores(self):
        return 2


class Schooled:
    """A linear model of a program's mean statement that learns from many tasks, by gradient descent.

    Args:
        worse_after: Rounds after which it unlearns.
    """

    inputs: Literal["statements"] = "statements"
    shared = True

    def __init__(self, weights: str | Path | None = None, rounds: int = 30, worse_after: int = 1000) -> None:
        self.weights, self.rounds, self.worse_after = weights, rounds, worse_after
        self.learned_ = np.zeros(164)

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        pass

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        seed, done = int(rng.integers(2**31)), 0
        self.learned_ = np.zeros(164)
        if start is not None:
            self.learned_, done = start["w"].copy(), int(start["done"])
        while True:
            if done and not report(Progress(done, self.rounds, float(np.square(self.learned_).sum()), self._at(done))):
                return
            if done == self.rounds:
                return
            done += 1
            for i in np.random.default_rng([seed, done]).permutation(len(groups)):
                X, y = self._means(groups[i][1]), groups[i][2]
                slope = (X - X.mean(axis=0)).T @ (y - y.mean()) / len(y)
                self.learned_ = self.learned_ + (0.1 if done <= self.worse_after else -1.0) * slope

    def _at(self, done: int) -> Callable[[], dict[str, np.ndarray]]:
        w = self.learned_.copy()
        return lambda: {"w": w, "done": np.array(done)}

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        path.write_text(json.dumps({"w": list(self.learned_), "card": dict(card)}))

    def predict(self, task: Task, X: Any) -> Prediction:
        return Prediction(self._means(X) @ self.learned_, np.zeros(len(X)))

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def _means(self, X: Statements) -> np.ndarray:
        return np.stack([X.values[a:b].mean(axis=0) for a, b in pairwise(X.offsets)])


def school(operators: int = 10, rows: int = 60) -> list[Lesson]:
    """Operators whose programs are the faster the larger one column of their statements, whatever the operator."""
    found = []
    for i in range(operators):
        rng = np.random.default_rng([3, i])
        t = dataclasses.replace(task(f"operator-{i}", 8), shapes=f"{i + 1}x1")
        codes = np.stack(list(t.space.enumerate()))[:rows]
        values = np.pad(rng.random((2 * rows, 6)), ((0, 0), (0, 158)))
        X = Statements(values, 2 * np.arange(rows + 1), np.zeros((rows, 10)))
        level = values[:, 3].reshape(rows, 2).sum(axis=1)
        seconds = 1e-4 * (i + 1) / (0.2 + level) * np.exp(0.02 * rng.standard_normal(rows))
        found.append(Lesson(f"operator-{i}", t, codes, X, seconds, "toy/2 cores"))
    return found
