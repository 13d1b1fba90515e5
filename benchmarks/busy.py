"""How busy a run keeps the machine, beside a commit before: real models, cold, several seeds, the same minutes.

    git worktree add ../before COMMIT
    hatch run python benchmarks/busy.py --before ../before                     # six models, three seeds: 3.5 h
    hatch run python benchmarks/busy.py --before ../before --models resnet18 bert-tiny --minutes 2 --seeds 1

Each model is tuned by both in turns, from nothing, in processes of their own; then both files are timed in turns in one
process. Run nothing beside it. It goes on where it was stopped, with the same --keep; `--table` prints what is there.
Without --before only this commit is measured. `detector` and `recogniser` lie inside the package rapidocr-onnxruntime.

From the event logs: the share of the search in which nothing is built or timed, by what the measurements cost, on both
sides alike (in brackets as the workers were seen at work, where the log tells); trials a second of the search; when the
operators' sum was as low as that of the commit before at its end, as a share of the minutes (a run that never was
counts as having taken all of them, marked >=); how many seconds after its minutes the command ended. From the files:
latency, and the whole model over the sum of its operators alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench.atomic import read_json, write_json
from tt_bench.errors import BenchError
from tt_bench.launch import program
from tt_bench.real import source
from tt_core.host import Host
from tt_spec import Listener, child
from tt_spec.spent import Spent

MODELS = ("resnet18", "resnet50", "mobilenet_v2", "detector", "recogniser", "bert-tiny")
GRACE_S = 600.0
"""How long after its minutes a command may go on before it is given up."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, default=None, help="a checkout of the commit to compare with")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, default=Path("busy"), help="folder for results, logs and files")
    parser.add_argument("--table", action="store_true", help="print the table of what was measured, measure nothing")
    options = parser.parse_args()
    sides = {"now": Path(__file__).resolve().parent.parent}
    if options.before is not None:
        sides = {"before": checked(options.before), **sides}
    kept = options.keep / "busy.json"
    found: dict[str, Any] = read_json(kept) if kept.is_file() else {}
    names = [f"{m}/{s}/{options.minutes:g}" for m, s in product(options.models, range(options.seeds))]
    for name in [] if options.table else names:
        measured(name, sides, options.keep, found.setdefault(name, {}))
        write_json(kept, found)
        print(table({n: found[n] for n in names if n in found}), flush=True)
    if options.table:
        print(table({n: found[n] for n in names if n in found}))


def checked(folder: Path) -> Path:
    """A checkout of tt. Raises `BenchError` for another folder."""
    if not (folder / "packages" / "tt-core" / "src").is_dir():
        raise BenchError(f"--before {folder} is no checkout of tt: make one with git worktree add {folder} COMMIT")
    return folder.resolve()


def measured(name: str, sides: Mapping[str, Path], keep: Path, found: dict[str, Any]) -> None:
    """Fill in what is missing of one model and seed, side by side."""
    model, seed, minutes = name.rsplit("/", 2)
    folder = keep / name.replace("/", "-")
    order = list(sides) if int(seed) % 2 == 0 else list(sides)[::-1]
    for side in order:
        if side not in found:
            found[side] = tuned(model, int(seed), float(minutes), sides[side], folder / side)
            found.pop("latency_s", None)
    files = [folder / side / "model.so" for side in sides]
    if "latency_s" not in found and all(f.is_file() for f in files):
        found["latency_s"] = dict(zip(sides, Host().raced(files), strict=True))


def tuned(model: str, seed: int, minutes: float, checkout: Path, folder: Path) -> dict[str, Any]:
    """One run of `tt tune` of a checkout, cold; see `told`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("tt.db*"), *folder.glob("tt.runs/*.jsonl")]:
        old.unlink()
    sources = os.pathsep.join(map(str, sorted(checkout.glob("packages/*/src"))))
    command = [*child.command("tt_core"), "tune", *source(model), "--seed", str(seed), "--minutes", str(minutes)]
    command += ["--history", str(folder / "tt.db"), "--out", str(folder / "model.so"), "--json"]
    print(f"{model}, seed {seed}, {minutes:g} minutes of {checkout}", file=sys.stderr, flush=True)
    began = time.time()
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * minutes + GRACE_S,
    )
    took_s = time.time() - began
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()[-2000:]}")
    (log,) = folder.glob("tt.runs/*.jsonl")
    sidecar = json.loads((folder / "model.so.json").read_text())
    alone = sum(t["weight"] * t["latency_s"] for t in sidecar["tasks"] if t["latency_s"])
    return {**told(log, began), "took_s": took_s, "minutes": minutes, "alone_s": alone}


# -- what the log says -------------------------------------------------------------------------------------------------


class Watched(Listener):
    """The wall clock of a search, by what measurements cost and, where the log tells, by what workers did."""

    def __init__(self, workers: int) -> None:
        self.costs, self.seen, self.trials = Spent(workers), Spent(workers), 0

    def tt_batch_measured(self, run: Any, state: Any, batch: Any, results: Any) -> None:
        self.seen.add(state, batch, results)
        batch.info.pop("work", None)
        self.costs.add(state, batch, results)
        self.trials += sum(m.error != "invalid" for m in results)


def told(log: Path, began: float) -> dict[str, Any]:
    """What the event log of a run says.

    Args:
        began: When the command was typed, seconds since the epoch.

    Returns:
        `idle` and `idle_seen` (None where nothing was traced), `trials`, `search_s`, `parts` (seconds), `stages`
        (seconds) and `curve`: `(seconds since it was typed, seconds of the operators' sum)` as it fell.
    """
    from tt_core.compiler.target import cores
    from tt_core.events import retell

    watched = Watched(cores())
    events = retell.read(log)
    for spent in (watched.costs, watched.seen):
        spent.start(next(e["at"] for e in events if e["event"] == "run_started"))
    run = retell.retell(events, [watched])
    curve: list[tuple[float, float]] = []
    for at, seconds in run.curve:
        if math.isfinite(seconds) and (not curve or seconds < curve[-1][1]):
            curve.append((round(at - began, 3), seconds))
    traced = bool(watched.seen.work)
    return {
        "idle": watched.costs.idle,
        "idle_seen": watched.seen.idle if traced else None,
        "hidden_s": watched.seen.hidden_s,
        "parts": (watched.seen if traced else watched.costs).parts,
        "trials": watched.trials,
        "search_s": watched.costs.total_s,
        "stages": {s["name"]: s["seconds"] for s in run.stages},
        "curve": curve,
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per model, seed and side, and one of ratios, now over before, with their geometric means at the end."""
    head = "| model | seed | | idle | trials/s | quality of before | ms | whole / sum | late s |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    ratios: list[tuple[float, float, float]] = []
    for name, both in found.items():
        model, seed, _ = name.rsplit("/", 2)
        for side in ("before", "now"):
            if side in both:
                lines.append(f"| {model} | {seed} | {side} | {' | '.join(cells(both, side))} |")
        if "before" in both and "now" in both and "latency_s" in both:
            ratios.append(ratio(both))
            trials, quality, latency = ratios[-1]
            lines.append(f"| {model} | {seed} | now / before | | {trials:.2f} | {quality:.2f} | {latency:.3f} | | |")
    if ratios:
        trials, quality, latency = np.exp(np.mean(np.log(ratios), axis=0))
        lines.append(f"| geometric mean | {len(ratios)} runs | now / before | | {trials:.2f} |")
        lines[-1] += f" {quality:.2f} | {latency:.3f} | | |"
    return "\n".join(lines)


def cells(both: Mapping[str, Any], side: str) -> list[str]:
    """One side's figures."""
    one = both[side]
    seen = one["idle_seen"]
    idle = f"{one['idle']:.0%}" + ("" if seen is None else f" ({seen:.0%})")
    reached = "" if "before" not in both else quality_text(both, side)
    latency = both.get("latency_s", {}).get(side)
    whole = ["", ""] if latency is None else [f"{1e3 * latency:.3g}", f"{latency / one['alone_s']:.2f}"]
    late = one["took_s"] - 60 * one["minutes"]
    return [idle, f"{one['trials'] / one['search_s']:.2f}", reached, *whole, f"{late:+.0f}"]


def reached_s(curve: Sequence[Sequence[float]], goal_s: float) -> float:
    """Seconds until the operators' sum was as low as that; inf if it never was."""
    return next((t for t, seconds in curve if seconds <= goal_s), math.inf)


def quality(both: Mapping[str, Any], side: str) -> float:
    """Share of the minutes that a side took to where the commit before ended; inf if it never was there."""
    curve = both["before"]["curve"]
    return reached_s(both[side]["curve"], curve[-1][1]) / (60 * both[side]["minutes"]) if curve else math.inf


def quality_text(both: Mapping[str, Any], side: str) -> str:
    share = quality(both, side)
    return f"{share:.2f}" if math.isfinite(share) else ">= 1"


def ratio(both: Mapping[str, Any]) -> tuple[float, float, float]:
    """Now over before: trials a second, minutes to the quality that the commit before ended with over its minutes, and
    latency."""
    rates = [both[side]["trials"] / both[side]["search_s"] for side in ("now", "before")]
    latency = both["latency_s"]
    return rates[0] / rates[1], min(quality(both, "now"), 1.0), latency["now"] / latency["before"]


if __name__ == "__main__":
    program(main)
