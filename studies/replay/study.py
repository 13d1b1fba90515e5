"""Whether replay tells the truth: the same recipes live and replayed, on the same rows of recorded sub-spaces.

    hatch run python studies/replay/study.py --recordings recordings [--recipes autotvm,adatune] [--out truth]

Each recipe tunes each task with each seed twice, by `tt bench` and `tt bench --live`: about `trials` / 5 seconds a live
run, one after the other. Printed are the seconds to 95 % of the best known and of the whole run, medians over seeds;
the ratio of live to replayed; and how many times as long the first recipe takes as the second, live and replayed.
Nothing else should run on the machine. Stop it at any time; the same command goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tt_bench import compare
from tt_bench.launch import program, tt
from tt_bench.runs import Run
from tt_bench.stats import geometric_mean, time_to

TASKS = "resnet18-64-template,resnet18-128-template,resnet18-256-template"
"""Operators whose first random batch is not the end of the search."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--tasks", default=TASKS, help="names of recordings of enumerated sub-spaces")
    parser.add_argument("--recipes", default="autotvm,adatune", help="two of them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=160)
    parser.add_argument("--share", type=float, default=0.95, help="of the best known speed")
    parser.add_argument("--out", type=Path, default=Path("truth"))
    options = parser.parse_args()
    files = [options.recordings / f"{name}.json.gz" for name in options.tasks.split(",")]
    ways = {"replayed": [], "live": ["--live"]}
    for way, more in ways.items():
        command = ["bench", "--models", ",".join(map(str, files)), "--recipes", options.recipes]
        command += ["--seeds", str(options.seeds), "--trials", str(options.trials), "--out", str(options.out / way)]
        tt(*command, *more)
    report({way: compare.read(options.out / way) for way in ways}, options.share)


def report(done: dict[str, compare.Comparison], share: float) -> None:
    """Print the table; see the module."""
    recipes, units = done["live"].recipes, done["live"].units

    def median(way: str, recipe: str, unit: str, of: Callable[[Run], float]) -> float:
        return float(np.median([of(run) for run in done[way].of(recipe, unit)]))

    def reached(way: str, recipe: str, unit: str) -> float:
        return median(way, recipe, unit, lambda run: time_to(run, done[way].best[unit], share))

    def whole(way: str, recipe: str, unit: str) -> float:
        return median(way, recipe, unit, lambda run: run.t[-1])

    seeds, trials = done["live"].settings["seeds"], done["live"].settings["trials"]
    print(f"\nseconds to {share:.0%} of the best known, and of {trials} trials; medians over {seeds} seeds")
    print(f"{'':40}{'':9}" + f"{'live':>8}{'replayed':>10}{'ratio':>7}" * 2)
    ratios: list[list[float]] = [[], []]
    for u in units:
        for r in recipes:
            line = f"{u:40}{r:9}"
            for i, of in enumerate((reached, whole)):
                live, replayed = of("live", r, u), of("replayed", r, u)
                ratios[i].append(_ratio(live, replayed))
                line += f"{live:8.1f}{replayed:10.1f}{ratios[i][-1]:7.2f}"
            print(line)
    for what, found in zip((f"to {share:.0%}", f"of {trials} trials"), ratios, strict=True):
        print(
            f"live / replayed {what}: geometric mean {geometric_mean(found):.2f}, {min(found):.2f} to {max(found):.2f}"
        )
    a, b = recipes
    factors = {way: [_ratio(reached(way, a, u), reached(way, b, u)) for u in units] for way in done}
    for way, found in factors.items():
        shown = ", ".join(f"{f:.2f}" for f in found)
        print(f"{way + ':':10} {a} takes {geometric_mean(found):.2f} times as long as {b} ({shown})")
    agree = sum(np.sign(x - 1) == np.sign(y - 1) for x, y in zip(*factors.values(), strict=True))
    print(f"the order agrees on {agree} of {len(units)} tasks; live / replayed of that ratio:", end=" ")
    print(f"{_ratio(geometric_mean(factors['live']), geometric_mean(factors['replayed'])):.2f}")


def _ratio(x: float, y: float) -> float:
    """Of two times, of which both may be inf: neither arrived."""
    return 1.0 if x == y else x / y


if __name__ == "__main__":
    program(main)
