"""Draw the README's picture: a model's latency over a tuning run, and the operators' shares in it.

    hatch run tt tune squeezenet1_1 --minutes 2 --out squeezenet.so
    hatch run python tools/readme_picture.py tt.runs/ID.jsonl --out docs/run.png

Reads a run's event log (docs/eventlog.md) and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAMED = 6
"""Operators that have a colour of their own."""

COLOURS = ("#1f4e79", "#2f7fb8", "#6fb1d6", "#e08e2b", "#f0bd6b", "#8a6fb0", "#c9ced6")


@dataclass(frozen=True)
class Course:
    """A run from the moment on when each operator has a program.

    Args:
        names: `(k,)` operators, the largest share at the beginning first; the last is the sum of all others.
        at: `(n,)` seconds since the run began.
        shares: `(k, n)` milliseconds of the model's latency.
        end: Seconds since the run began when it stopped.
        about: The log's last line, the result.
    """

    names: tuple[str, ...]
    at: np.ndarray
    shares: np.ndarray
    end: float
    about: dict[str, Any]


def course(events: list[dict[str, Any]]) -> Course:
    """The course that a log tells. Raises `ValueError` where some operator never got a program."""
    began = next(e for e in events if e["event"] == "run_started")
    weight = {t["name"]: t["weight"] for t in began["tasks"]}
    best = dict.fromkeys(weight, math.inf)
    at, columns = [], []
    for e in events:
        if e["event"] == "batch_measured":
            best[e["task"]] = math.inf if e["best_s"] is None else e["best_s"]
            if all(map(math.isfinite, best.values())):
                at.append(e["at"] - began["at"])
                columns.append([1e3 * weight[name] * s for name, s in best.items()])
    if not at:
        raise ValueError(f"no program was found for {', '.join(n for n, s in best.items() if math.isinf(s))}")
    shares, names = np.array(columns).T, np.array(list(best))
    order = np.argsort(-shares[:, 0], kind="stable")
    rest = shares[order[NAMED:]].sum(axis=0)
    stopped = max(e["at"] for e in events if e["event"] in ("batch_measured", "run_stopped")) - began["at"]
    told = {e["event"]: e for e in events}
    named = tuple(map(str, names[order[:NAMED]]))
    return Course(
        (*named, f"{len(order) - NAMED} others"),
        np.array(at),
        np.vstack([shares[order[:NAMED]], rest]),
        stopped,
        told.get("result", {}),
    )


def draw(run: Course, out: Path) -> None:
    """Stacked shares over time, the largest at the bottom, named at their right ends."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.2), dpi=160)
    at = np.append(run.at, run.end)
    shares = np.column_stack([run.shares, run.shares[:, -1]])
    colours = COLOURS[: len(run.names) - 1] + COLOURS[-1:]
    axes.stackplot(at, shares, step="post", colors=colours, linewidth=0)
    total = shares.sum(axis=0)
    axes.step(at, total, where="post", color="#222222", linewidth=1.4)
    axes.axvspan(0, at[0], color="#f3f4f6")
    axes.text(
        at[0] / 2, total.max() * 0.5, "a first program\nof each operator", ha="center", color="#666666", fontsize=9
    )
    _name(axes, run, shares[:, -1])
    axes.annotate(f"{total[0]:.1f} ms", (at[0], total[0]), xytext=(2, 4), textcoords="offset points", fontsize=9)
    axes.annotate(
        f"{total[-1]:.1f} ms", (at[-1], total[-1]), xytext=(-3, 4), textcoords="offset points", ha="right", fontsize=9
    )
    axes.set(xlim=(0, run.end), ylim=(0, total.max() * 1.12), xlabel="seconds", ylabel="latency of the model, ms")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_title(run), loc="left", fontsize=10.5)
    figure.subplots_adjust(left=0.07, right=0.765, bottom=0.12, top=0.9)
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)


def _name(axes: Any, run: Course, last: np.ndarray) -> None:
    """Write each operator beside its end; names keep a line's distance."""
    top = float(axes.get_ylim()[1])
    middles, apart = np.cumsum(last) - last / 2, top / 18
    heights = middles.copy()
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + apart)
    for name, ms, middle, height, colour in zip(run.names, last, middles, heights, COLOURS, strict=False):
        axes.plot(
            [run.end, run.end * 1.015],
            [middle, height],
            color=colour,
            linewidth=1,
            clip_on=False,
            solid_capstyle="butt",
        )
        axes.text(run.end * 1.02, height, f"{name}  {ms:.2f} ms", va="center", fontsize=8.5, color="#222222")


def _title(run: Course) -> str:
    about = run.about
    if about.get("before_s") is None or about.get("after_s") is None:
        return "Latency of the model by operator, while it is tuned"
    before, after = 1e3 * about["before_s"], 1e3 * about["after_s"]
    return f"{about['model']}: {before:.0f} ms untuned; the file written in the end, timed as a whole: {after:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/run.png"))
    asked = parser.parse_args()
    events = [json.loads(line) for line in asked.log.read_text(encoding="utf-8").splitlines()]
    draw(course(events), asked.out)
    print(f"written to {asked.out}")


if __name__ == "__main__":
    main()
