"""Small recordings whose truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
from tt_bench.recording import Pace, Recorded
from tt_core.host import Host
from tt_spec import Bar, Knob, Measurement, Realised, Space, Statements, Task, Trial


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
