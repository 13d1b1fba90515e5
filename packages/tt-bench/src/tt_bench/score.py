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
from tt_spec import Bar, VirtualClock

from tt_bench.compare import Comparison
from tt_bench.errors import BenchError
from tt_bench.files import load
from tt_bench.recording import Recorded
from tt_bench.replay import Replay
from tt_bench.runs import Run

__all__ = ["Scores", "baseline", "scores"]

CUTOFF = 0.95
POINTS = 1000


@dataclass(frozen=True)
class Scores:
    """`(score, low, high)` by recipe, over units and, by bootstrap, seeds; and units that cannot be scored, and why."""

    by_recipe: dict[str, tuple[float, float, float]]
    left_out: dict[str, str]


def scores(done: Comparison, draws: int = 1000) -> Scores:
    """Of every recipe over all completely recorded single tasks. Raises `BenchError` without the package."""
    curves: dict[str, list[np.ndarray]] = {r: [] for r in done.recipes}
    left_out: dict[str, str] = {}
    for about in done.settings["units"]:
        unit = about["name"]
        parts = [load(about["path"]).parts[i] for i in about["parts"]]
        if len(parts) > 1 or not parts[0].complete:
            left_out[unit] = "several tasks" if len(parts) > 1 else "recorded in part"
            continue
        try:
            line, times = baseline(parts[0])
        except ValueError as e:
            left_out[unit] = str(e).split(",")[0].strip("('")
            continue
        for recipe in done.recipes:
            runs = done.of(recipe, unit)
            if runs:
                held = np.stack([_held(r, times) for r in runs])
                curves[recipe].append(_standardised(line, times, held))
    rng = np.random.default_rng(0)
    return Scores({r: _interval(c, rng, draws) for r, c in curves.items() if c}, left_out)


def baseline(part: Recorded) -> tuple[Any, np.ndarray]:
    """The calculated random search on a completely recorded task, and the seconds at which curves are compared.

    A row's cost is what replay charges for it, so that baseline and recipes live in the same time. Raises ValueError
    where the space cannot be scored.
    """
    try:
        from autotuning_methodology.baseline import RandomSearchCalculatedBaseline
        from autotuning_methodology.searchspace_statistics import SearchspaceStatistics
    except ModuleNotFoundError as e:
        raise BenchError(
            f"the standard score needs the package autotuning_methodology ({e}): pip install 'tt-bench[score]'"
        ) from e
    with tempfile.TemporaryDirectory(prefix="tt-bench-") as folder:
        path = Path(folder, "space.json")
        path.write_text(json.dumps(_space(part)))
        statistics = SearchspaceStatistics(
            part.task.name, "here", True, ["framework"], ["time"], path, full_validate=False
        )
    _, _, start, end = statistics.cutoff_point_fevals_time_start_end(0.01, CUTOFF)
    line, times = RandomSearchCalculatedBaseline(statistics), np.linspace(start, end, POINTS)
    left = line.get_curve(times, "time") / statistics.total_performance_absolute_optimum() - 1
    if left.min() < 1e-3:
        raise ValueError(f"its {statistics.size} rows are too few: random search is at the optimum before the cutoff")
    return line, times


def _space(part: Recorded) -> dict[str, Any]:
    """The task as T4 that the package reads: what each row does, and the seconds that one row alone costs."""
    from tt_spec import Plugins

    clock = VirtualClock()
    pieces = Plugins()
    replay = Replay([part], pieces.build("evaluator", "fixed"), clock)
    each = []
    valid = np.array([m.error != "invalid" for m in part.measured])
    many = part.pace.workers * part.pace.chunk
    rows = np.flatnonzero(valid)
    for start in range(0, len(rows), many):
        codes = part.rows[rows[start : start + many]]
        began = clock.now()
        list(replay.measure(part.task, codes, Bar(flops=part.task.flops)))
        each += [(clock.now() - began) / len(codes) + part.pace.realise_s] * len(codes)
    results = []
    for i, cost in zip(rows, each, strict=True):
        s = part.latency[i]
        results.append(
            {
                "configuration": {},
                "times": {"framework": cost, "runtimes": []},
                "invalidity": "correct" if math.isfinite(s) else "runtime",
                "correctness": 1.0,
                "objectives": ["time"],
                "measurements": [{"name": "time", "value": float(s) if math.isfinite(s) else "error", "unit": "s"}],
            }
        )
    return {"schema_version": "1.0.0", "metadata": {"timeunit": "seconds"}, "results": results}


def _held(run: Run, times: np.ndarray) -> np.ndarray:
    """What the run holds at each time `(n,)`, seconds; before its first program, that program."""
    s = np.array([math.nan if x is None else x for x in run.true_s])
    known = np.flatnonzero(np.isfinite(s))
    if not len(known):
        return np.full(len(times), math.nan)
    at = np.searchsorted(np.asarray(run.t), times, side="right") - 1
    return s[np.maximum(at, known[0])]


def _standardised(line: Any, times: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Of each seed `(seeds, n)`: linear in what is held, so their mean is the mean curve's."""
    return np.stack([line.get_standardised_curve(times, h, "time") for h in held])


def _interval(curves: Sequence[np.ndarray], rng: np.random.Generator, draws: int) -> tuple[float, float, float]:
    each = [np.nanmean(c, axis=1) for c in curves]  # one number per seed
    drawn = [np.mean([rng.choice(s, len(s)).mean() for s in each]) for _ in range(draws)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.mean([s.mean() for s in each])), float(low), float(high)
