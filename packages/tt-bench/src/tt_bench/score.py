"""The field's standard score of a tuner, by the package that its authors keep.

Source: Willemsen, van Nieuwpoort, van Werkhoven (2024), A Methodology for Comparing Auto-Tuning Optimization
Algorithms, Future Generation Computer Systems 159. 0 is random search as calculated from the space, 1 the optimum at
once.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Bar, Plugins, VirtualClock

from tt_bench.compare import Comparison
from tt_bench.errors import BenchError
from tt_bench.files import load
from tt_bench.recording import Recorded
from tt_bench.replay import Replay
from tt_bench.runs import Run

__all__ = ["Baseline", "Scores", "scores"]

CUTOFF = 0.95
POINTS = 1000
BATCH = 32


@dataclass(frozen=True)
class Scores:
    """`(score, low, high)` by recipe, over units and, by bootstrap, seeds; and units that cannot be scored, and why."""

    by_recipe: dict[str, tuple[float, float, float]]
    left_out: dict[str, str]


def scores(done: Comparison, draws: int = 400) -> Scores:
    """Of every recipe over all completely recorded single tasks. Raises `BenchError` without the package."""
    lines: list[tuple[Baseline, dict[str, np.ndarray]]] = []
    left_out: dict[str, str] = {}
    for about in done.settings["units"]:
        unit = about["name"]
        parts = [load(about["path"]).parts[i] for i in about["parts"]]
        if len(parts) > 1 or not parts[0].complete:
            left_out[unit] = "several tasks" if len(parts) > 1 else "recorded in part"
            continue
        try:
            line = Baseline(parts[0])
        except ValueError as e:
            left_out[unit] = str(e.args[0])
            continue
        lines.append((line, {r: line.places(done.of(r, unit)) for r in done.recipes}))
    found = {}
    for recipe in done.recipes if lines else ():
        rng = np.random.default_rng(0)
        each = [(line, by[recipe]) for line, by in lines if len(by[recipe])]
        drawn = [np.mean([line.score(p[rng.integers(0, len(p), len(p))]) for line, p in each]) for _ in range(draws)]
        low, high = np.quantile(drawn, [0.025, 0.975])
        found[recipe] = (float(np.mean([line.score(p) for line, p in each])), float(low), float(high))
    return Scores(found, left_out)


class Baseline:
    """The calculated random search on one completely recorded task.

    Two things differ from the package's. It counts evaluations by their mean cost; here they are counted as replay
    counts them, where several candidates are built before any is timed, so that baseline and recipes live in the same
    time. And its expected rank of the best of M among N, M (N + 1) / (M + 1), which counts from 1, is used as an
    index that counts from 0: one rank too good; here it is the expectation. Raises ValueError where the task cannot be
    scored.
    """

    def __init__(self, part: Recorded) -> None:
        try:
            from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
            from autotuning_methodology.searchspace_statistics import SearchspaceStatistics
        except ModuleNotFoundError as e:
            raise BenchError(
                f"the standard score needs autotuning_methodology ({e}): pip install 'tt-bench[score]'"
            ) from e
        self.ranked = np.sort(part.latency[np.isfinite(part.latency)])
        self.done = _completions(part)
        with tempfile.TemporaryDirectory(prefix="tt-bench-") as folder:
            path = Path(folder, "space.json")
            path.write_text(json.dumps(_space(self.ranked, self.done[-1] / len(self.done))))
            statistics = SearchspaceStatistics(
                part.task.name, "here", True, ["framework"], ["time"], path, full_validate=False
            )
        first, last, _, _ = statistics.cutoff_point_fevals_time_start_end(0.01, CUTOFF)
        self.times = np.linspace(self.done[max(int(first), 1) - 1], self.done[int(last) - 1], POINTS)
        self._line = RandomSearchCalculatedBaseline(statistics)
        self._line.time_to_fevals = self.evaluations  # type: ignore[method-assign]
        self._line._redwhite_index = expected_index  # type: ignore[method-assign]
        left = self._line.get_curve(self.times, "time") / self.ranked[0] - 1
        if left.min() < 1e-3:
            raise ValueError(f"its {len(self.ranked)} rows are too few: random search reaches the optimum too soon")
        ends = [self._line.get_standardised_curve(self.times, np.full(POINTS, s), "time") for s in (0.0, 1.0)]
        self._offset, self._slope = ends[0], ends[1] - ends[0]  # a standardised curve is linear in the curve

    def evaluations(self, times: np.ndarray) -> np.ndarray:
        """The number of valid evaluations that random search has made at these times, at least one, `(n,)`."""
        return np.maximum(np.searchsorted(self.done, times, side="right"), 1)

    def places(self, runs: Sequence[Run]) -> np.ndarray:
        """Rank among all valid rows of the best that each run has measured, `(runs, n)`, at `times`."""
        out = []
        for run in runs:
            s = np.array([math.inf if x is None else x for x in run.found_s])
            at = np.searchsorted(np.asarray(run.t), self.times, side="right") - 1
            first = int(np.isfinite(s).argmax()) if np.isfinite(s).any() else len(s) - 1
            out.append(np.minimum(np.searchsorted(self.ranked, s[np.maximum(at, first)]), len(self.ranked) - 1))
        return np.array(out).reshape(-1, len(self.times))

    def score(self, places: np.ndarray) -> float:
        """Mean of the standardised curve; runs are averaged by rank, as the paper does, since latencies are skewed."""
        curve = self.ranked[np.round(places.mean(axis=0)).astype(int)]
        return float(np.mean(self._offset + self._slope * curve))


def expected_index(m: int, n: int) -> int:
    """Index, from 0, of the best of `m` different ones among `n` that are sorted from the worst on, as expected."""
    return min(n, max(1, round(m * (n + 1) / (m + 1)))) - 1


def _completions(part: Recorded, orders: int = 8) -> np.ndarray:
    """When random search has its first, second, ... valid result, in replay, mean over random orders, `(n,)`."""
    rows = part.rows[[m.error != "invalid" for m in part.measured]]
    times = []
    for seed in range(orders):
        clock = VirtualClock()
        replay = Replay([part], Plugins().build("evaluator", "fixed"), clock, seed)
        order = np.random.default_rng(seed).permutation(len(rows))
        done, best = [], math.inf
        for start in range(0, len(rows), BATCH):
            codes = replay.realise(part.task, rows[order[start : start + BATCH]]).codes
            for m in replay.measure(part.task, codes, Bar(best, part.task.flops)):
                if m.seconds:
                    done.append(clock.now())
                    best = min(best, m.latency_s)
        times.append(done)
    return np.mean(times, axis=0)


def _space(seconds: np.ndarray, cost: float) -> dict[str, Any]:
    """The task as the package reads it: T4 with what each row does, and what it costs."""
    results = [
        {
            "configuration": {},
            "times": {"framework": cost, "runtimes": []},
            "invalidity": "correct",
            "correctness": 1.0,
            "objectives": ["time"],
            "measurements": [{"name": "time", "value": float(s), "unit": "s"}],
        }
        for s in seconds
    ]
    return {"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": results}
