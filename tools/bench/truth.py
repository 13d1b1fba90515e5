"""Whether replay tells the truth: the same recipes live and replayed, on the same rows of recorded sub-spaces.

    hatch run python tools/bench/truth.py --recordings recordings [--recipes random,tt] [--trials 128] [--out truth]

Each recipe tunes each task with each seed twice, by `tt bench` and `tt bench --live`: about `trials` / 5 seconds a live
run, one after the other. Printed are the seconds to 95 % of the best known, medians over seeds; the ratio of live to
replayed; and which recipe is first, with how many times the other one takes, live and replayed. Nothing else should run
on the machine. Stop it at any time; the same command goes on.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from tt_bench import compare
from tt_bench.stats import time_to

TASKS = "resnet18-128-stride-template,mobilenet-1x1-24-template,encoder-qkv-template"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--tasks", default=TASKS, help="names of three recordings of enumerated sub-spaces")
    parser.add_argument("--recipes", default="random,tt", help="two of them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.95, help="of the best known speed")
    parser.add_argument("--out", type=Path, default=Path("truth"))
    options = parser.parse_args()
    files = [options.recordings / f"{name}.json.gz" for name in options.tasks.split(",")]
    ways = {"replayed": [], "live": ["--live"]}
    for way, more in ways.items():
        command = ["bench", "--models", ",".join(map(str, files)), "--recipes", options.recipes]
        command += ["--seeds", str(options.seeds), "--trials", str(options.trials), "--out", str(options.out / way)]
        done = subprocess.run([sys.executable, "-m", "tt_core", *command, *more], check=False)
        if done.returncode:
            sys.exit(done.returncode)
    report({way: compare.read(options.out / way) for way in ways}, options.share)


def report(done: dict[str, compare.Comparison], share: float) -> None:
    """Print the table; see the module."""
    recipes, units = done["live"].recipes, done["live"].units
    seconds = {
        (way, r, u): float(np.median([time_to(run, c.best[u], share) for run in c.of(r, u)]))
        for way, c in done.items()
        for r in recipes
        for u in units
    }
    print(f"\nseconds to {share:.0%} of the best known, medians over {done['live'].settings['seeds']} seeds")
    print(f"{'':44}{'':10}{'live':>9}{'replayed':>10}{'ratio':>8}")
    ratios = []
    for u in units:
        for r in recipes:
            live, replayed = seconds["live", r, u], seconds["replayed", r, u]
            ratios.append(_ratio(live, replayed))
            print(f"{u:44}{r:10}{live:9.1f}{replayed:10.1f}{ratios[-1]:8.2f}")
    print(f"live / replayed: geometric mean {_mean(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}\n")
    a, b = recipes
    factors = {way: [_ratio(seconds[way, a, u], seconds[way, b, u]) for u in units] for way in done}
    for way, found in factors.items():
        shown = ", ".join(f"{f:.2f}" for f in found)
        first = b if _mean(found) > 1 else a
        print(f"{way + ':':10} {first} is first; {a} takes {_mean(found):.2f} times as long as {b} ({shown})")
    agree = sum((x > 1) == (y > 1) for x, y in zip(*factors.values(), strict=True))
    print(f"the order agrees on {agree} of {len(units)} tasks; live / replayed of that ratio:", end=" ")
    print(f"{_mean(factors['live']) / _mean(factors['replayed']):.2f}")


def _ratio(x: float, y: float) -> float:
    """Of two times, of which both may be inf: neither arrived."""
    return 1.0 if x == y else x / y


def _mean(ratios: list[float]) -> float:
    """Geometric; 0 or inf where one of two never arrived."""
    return math.exp(float(np.mean(np.log(ratios))))


if __name__ == "__main__":
    main()
