"""The pictures of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tt_bench.compare import Comparison
from tt_bench.pictures import PARTS, colours, figure, grid, log_axis
from tt_bench.runs import Run
from tt_bench.stats import Summary, quality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["convergence", "scores", "split"]


def convergence(done: Comparison, over: str) -> Figure:
    """Quality over "seconds" or "trials", one panel per unit: median and middle half of the seeds."""
    made, axes = grid(len(done.units))
    for ax, unit in zip(axes, done.units, strict=True):
        low = 1.0
        for colour, recipe in zip(colours(len(done.recipes)), done.recipes, strict=True):
            runs = [r for r in done.of(recipe, unit) if r.t]
            if not runs:
                continue
            x, q = _bands(runs, done.best[unit], over)
            mid, lower, upper = np.quantile(q, [0.5, 0.25, 0.75], axis=0)
            (line,) = ax.step(x, mid, where="post", color=colour, linewidth=1.8, label=recipe)
            line.set_gid(f"curve-{over}-{recipe}-{unit}".replace(" ", "_"))
            ax.fill_between(x, lower, upper, step="post", color=colour, alpha=0.18, linewidth=0)
            low = min([low, *(float(v[v > 0].min()) for v in (mid, lower) if (v > 0).any())])
        ax.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")
        ax.set_ylim(max(0.0, low - 0.05), 1.0 + 0.03 * (1.05 - max(0.0, low - 0.05)))
        if over == "seconds":
            log_axis(ax)
        ax.set_title(unit, fontsize=9)
        ax.set_xlabel("seconds, virtual" if over == "seconds" and not done.settings["live"] else over, fontsize=8)
        ax.set_ylabel("share of the best known speed", fontsize=8)
        ax.tick_params(labelsize=8)
    if axes:
        handles, labels = axes[0].get_legend_handles_labels()
        made.legend(handles, labels, loc="outside upper center", ncols=min(6, max(1, len(labels))), frameon=False)
    return made


def _bands(runs: Sequence[Run], best_s: float, over: str) -> tuple[np.ndarray, np.ndarray]:
    """A common axis and each seed's quality on it, `(seeds, n)`; a run that ended keeps what it had."""
    if over == "trials":
        x = np.arange(1, max(len(r.t) for r in runs) + 1)
    else:
        first, last = min(r.t[0] for r in runs), max(r.t[-1] for r in runs)
        x = np.geomspace(max(first, 1e-3), max(last, first * 1.01, 2e-3), 200)
    out: list[np.ndarray] = []
    for r in runs:
        q = quality(r, best_s)
        at = (x if over == "trials" else np.searchsorted(np.asarray(r.t), x, side="right")) - 1
        at = np.asarray(at, dtype=np.int64)
        out.append(np.where(at >= 0, q[np.clip(at, 0, len(q) - 1)], 0.0))
    return x, np.stack(out)


def split(found: Sequence[Summary], recipes: Sequence[str]) -> Figure:
    """Where each recipe's time goes, mean over units of the seeds' medians."""
    made = figure(7.5, 0.9 + 0.45 * len(recipes))
    ax = made.subplots()
    for y, recipe in enumerate(recipes):
        mine = [s for s in found if s.recipe == recipe]
        left = 0.0
        for part, colour in PARTS.items():
            width = float(np.mean([s.spent.get(part, 0.0) for s in mine])) if mine else 0.0
            ax.barh(y, width, left=left, color=colour, label=part if y == 0 else None, height=0.6)
            left += width
        ax.text(left, y, f" {left:.1f} s", va="center", fontsize=8)
    ax.set_yticks(range(len(recipes)), recipes)
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel("seconds of one run", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    made.legend(loc="outside upper center", ncols=len(PARTS), frameon=False, fontsize=8)
    return made


def scores(by_recipe: dict[str, tuple[float, float, float]], recipes: Sequence[str]) -> Figure:
    """The standard score with its interval; 0 is random search, 1 the optimum at once."""
    shown = [r for r in recipes if r in by_recipe]
    made = figure(7.5, 0.9 + 0.4 * len(shown))
    ax = made.subplots()
    colour_of = dict(zip(recipes, colours(len(recipes)), strict=True))
    for y, recipe in enumerate(shown):
        score, low, high = by_recipe[recipe]
        ax.plot([low, high], [y, y], color=colour_of[recipe], linewidth=2.5)
        ax.plot([score], [y], "o", color=colour_of[recipe], markersize=7)
        ax.annotate(f"{score:.2f}", (score, y), (0, 8), textcoords="offset points", ha="center", fontsize=8)
    ax.axvline(0, color="#888888", linewidth=0.8)
    ax.axvline(1, color="#888888", linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(shown)), shown)
    ax.set_ylim(len(shown) - 0.4, -0.7)
    ax.set_xlabel("score: 0 is random search, 1 the optimum at once", fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    return made
