"""The figures of a comparison, with their doubt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tt_bench.compare import Comparison
from tt_bench.runs import Run

__all__ = [
    "Paired",
    "Summary",
    "area",
    "final",
    "geometric_interval",
    "geometric_mean",
    "geometric_text",
    "holm",
    "interval",
    "paired",
    "quality",
    "summaries",
    "time_to",
]

SHARES = (0.90, 0.95, 0.99)


def quality(run: Run, best_s: float) -> np.ndarray:
    """`best known / latency of what is held` after each trial, `(n,)` in [0, 1]; 0 before there is a program."""
    return np.array([0.0 if s is None else best_s / s for s in run.true_s])


def time_to(run: Run, best_s: float, share: float) -> float:
    """Seconds by the run's clock until it holds `share` of the best known speed; inf if it never did."""
    there = np.flatnonzero(quality(run, best_s) >= share - 1e-12)
    return run.t[there[0]] if len(there) else math.inf


def final(run: Run, best_s: float) -> float:
    """Quality of what the run ends with."""
    return float(quality(run, best_s)[-1]) if run.t else 0.0


def area(run: Run, best_s: float, trials: int) -> float:
    """Mean quality over `trials` trials; a run that ended earlier keeps what it had."""
    q = quality(run, best_s)[:trials]
    last = float(q[-1]) if len(q) else 0.0
    return float((q.sum() + last * (trials - len(q))) / trials)


def interval(
    values: Sequence[float], rng: np.random.Generator, level: float = 0.95, draws: int = 4000
) -> tuple[float, float, float]:
    """Median with its percentile bootstrap interval; infinities are values like others.

    Source: Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13.
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    if not len(x):
        return math.nan, math.nan, math.nan
    medians = _median(np.sort(x[rng.integers(0, len(x), (draws, len(x)))], axis=1))
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2], method="inverted_cdf")
    return float(_median(x[None])[0]), float(low), float(high)


def _median(rows: np.ndarray) -> np.ndarray:
    """Of sorted rows; halfway between a number and infinity is infinity."""
    n = rows.shape[1]
    low, high = rows[:, (n - 1) // 2], rows[:, n // 2]
    return np.where(np.isfinite(high), (low + np.where(np.isfinite(high), high, 0.0)) / 2, high)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of positive ratios; 0 or inf where one of them is, NaN of none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else math.nan


def geometric_interval(
    ratios: Sequence[float], rng: np.random.Generator, level: float = 0.95, draws: int = 4000
) -> tuple[float, float, float]:
    """Geometric mean of finite positive ratios with its percentile bootstrap interval; see `interval`."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    if not len(logs):
        return math.nan, math.nan, math.nan
    means = logs[rng.integers(0, len(logs), (draws, len(logs)))].mean(axis=1)
    low, high = np.exp(np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return geometric_mean(ratios), float(low), float(high)


def geometric_text(ratios: Sequence[float]) -> str:
    """`geometric_interval` as tables show it, 95 % in brackets; NaN are left out, and of nothing it is a dash."""
    known = [r for r in ratios if math.isfinite(r)]
    if not known:
        return "-"
    mid, low, high = geometric_interval(known, np.random.default_rng(0))
    return f"{mid:.3f} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True)
class Summary:
    """One recipe on one unit; each figure is `(median, low, high)` over seeds, 95 %.

    Args:
        final: Quality at the end.
        area: Mean quality over the trials.
        to: Seconds to a share of the best known, by share.
        seconds: Length of the run by its clock.
        thinking_s: Real seconds of thinking, median.
        lacking: Largest share of rows that the recording lacked.
    """

    recipe: str
    unit: str
    seeds: int
    final: tuple[float, float, float]
    area: tuple[float, float, float]
    to: dict[float, tuple[float, float, float]]
    seconds: tuple[float, float, float]
    spent: dict[str, float]
    thinking_s: float
    lacking: float


def summaries(done: Comparison) -> list[Summary]:
    """The summary of every recipe on every unit."""
    out = []
    for unit in done.units:
        best = done.best[unit]
        for recipe in done.recipes:
            runs = done.of(recipe, unit)
            if not runs:
                continue
            rng = np.random.default_rng(0)
            kinds = sorted({k for r in runs for k in r.spent})
            out.append(
                Summary(
                    recipe,
                    unit,
                    len(runs),
                    interval([final(r, best) for r in runs], rng),
                    interval([area(r, best, done.settings["trials"]) for r in runs], rng),
                    {s: interval([time_to(r, best, s) for r in runs], rng) for s in SHARES},
                    interval([r.t[-1] if r.t else 0.0 for r in runs], rng),
                    {k: float(np.median([r.spent.get(k, 0.0) for r in runs])) for k in kinds},
                    float(np.median([done.thinking[k] for k in done.thinking if k[:2] == (recipe, unit)])),
                    max(r.lacking for r in runs),
                )
            )
    return out


@dataclass(frozen=True)
class Paired:
    """Whether recipe `a` differs from `b` in a figure, over pairs of one unit and seed.

    Args:
        pairs: How many.
        ratio: Median of `a / b` with its interval; pairs in which neither arrived count as 1.
        wins: Share of pairs in which `a` is better, ties counting half.
        p: Wilcoxon's signed rank, two-sided, by Holm's correction for the comparisons of this figure.
    """

    a: str
    b: str
    figure: str
    pairs: int
    ratio: tuple[float, float, float]
    wins: float
    p: float


FIGURES: dict[str, tuple[bool, Callable[[Run, float, int], float]]] = {
    "time to 95 %": (False, lambda r, best, trials: time_to(r, best, 0.95)),
    "area": (True, area),
    "final": (True, lambda r, best, trials: final(r, best)),
}
"""Whether more is better, and the figure of a run, by name."""


def paired(done: Comparison) -> list[Paired]:
    """Every two recipes in every figure. The same seed draws the same random rows for both, so they are pairs.

    Source: Wilcoxon (1945), Individual comparisons by ranking methods; Holm (1979), A simple sequentially rejective
    multiple test procedure.
    """
    from scipy.stats import wilcoxon

    out: list[Paired] = []
    for figure, (more, of) in FIGURES.items():
        found: list[Paired] = []
        for a, b in combinations(done.recipes, 2):
            logs = _differences(done, a, b, lambda r, u, of=of: of(r, done.best[u], done.settings["trials"]))
            if not len(logs):
                continue
            p = 1.0 if not logs.any() else float(wilcoxon(logs, zero_method="zsplit").pvalue)
            better = (logs > 0) == more
            wins = float(np.where(logs == 0, 0.5, better).mean())
            mid = interval(logs.tolist(), np.random.default_rng(0))
            found.append(Paired(a, b, figure, len(logs), tuple(math.exp(v) for v in mid), wins, p))  # type: ignore[arg-type]
        adjusted = holm([f.p for f in found])
        out += [Paired(**{**vars(f), "p": p}) for f, p in zip(found, adjusted, strict=True)]
    return out


def _differences(done: Comparison, a: str, b: str, figure: Callable[[Run, str], float]) -> np.ndarray:
    """Log of `a / b` of each pair; one that alone never arrived counts as a factor of e to the 20."""
    logs = []
    for r, unit, seed in done.runs:
        if r == a and (b, unit, seed) in done.runs:
            x, y = figure(done.runs[a, unit, seed], unit), figure(done.runs[b, unit, seed], unit)
            logs.append(0.0 if x == y else float(np.clip(np.log(max(x, 1e-12)) - np.log(max(y, 1e-12)), -20, 20)))
    return np.array(logs)


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values, in the same order."""
    order = np.argsort(p)
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p[i] * (len(p) - rank)))
        adjusted[i] = largest
    return adjusted


def rows(summary: Summary) -> dict[str, Any]:
    """A flat row for CSV; what was never reached is empty."""
    flat: dict[str, Any] = {"recipe": summary.recipe, "unit": summary.unit, "seeds": summary.seeds}
    figures = {"final": summary.final, "area": summary.area, "seconds": summary.seconds}
    figures |= {f"to_{round(100 * s)}_s": v for s, v in summary.to.items()}
    for name, three in figures.items():
        for end, v in zip(("", "_low", "_high"), three, strict=True):
            flat[name + end] = v if math.isfinite(v) else None
    flat |= {f"{k}_s": v for k, v in summary.spent.items()}
    return {**flat, "thinking_real_s": summary.thinking_s, "lacking": summary.lacking}
