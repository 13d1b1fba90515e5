"""Chameleon's two halves measured: figures 6 and 7, tables 2 and 3 of Ahn et al. (2020), and synthetic spaces.

    hatch run python studies/chameleon/study.py --recordings recordings --out chameleon
    hatch run python studies/chameleon/study.py --recordings recordings --out chameleon --part live

Parts: `synthetic` (PPO beside annealing and random search where the optimum is known), `replay` (recipe autotvm and the
four ablations of recipe chameleon on recorded operators: measurements and time to autotvm's final quality), `clusters`
(steps until a search settles, clusters per batch, how much run times differ inside a cluster) and `live` (as replay, on
three layers measured now: keep the machine quiet). Without `--part` all but `live`. Stop it at any time: the same
command goes on, and prints the tables of all that is there. What `replay` needs: `benchmarks/recordings.py`.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy and torch are loaded: thinking is counted on one core

import numpy as np
from tt_bench.atomic import read_json, write_json
from tt_bench.compare import units
from tt_bench.files import load
from tt_bench.launch import program
from tt_bench.replay import Replay
from tt_bench.stats import final, interval, quality
from tt_bench.variants import Variant, compare_variants
from tt_core.host import Host
from tt_sample.adaptive import centroid
from tt_sample.clusters import clusterings
from tt_search import PPO, Anneal
from tt_spec import Bar, Context, Pipeline, Prediction, VirtualClock
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task

ANNEAL = ("searcher=anneal", "searcher.unit=spread", "searcher.temperature=0.3")
ABLATIONS = {
    "SA": Variant("chameleon", (*ANNEAL, "sampler=diverse")),
    "SA+AS": Variant("chameleon", ANNEAL),
    "RL": Variant("chameleon", ("sampler=diverse",)),
    "RL+AS": Variant("chameleon"),
}
LAYERS = ("resnet18-64-template", "resnet18-256-template", "encoder-qkv-template")
FIRST = 64
SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("chameleon"))
    parser.add_argument("--part", choices=("synthetic", "replay", "clusters", "live"))
    parser.add_argument("--only", default="", help="part of a recording's name")
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--trials", type=int, default=256)
    options = parser.parse_args()
    paths = [p for p in sorted(options.recordings.glob("*-template.json.gz")) if options.only in p.name]
    for part in [options.part] if options.part else ["synthetic", "clusters", "replay"]:
        began = time.perf_counter()
        if part == "synthetic":
            _synthetic(options.out, options.seeds)
        elif part == "clusters":
            _clusters(paths, options.out, min(options.seeds, 3))
        elif part == "replay":
            _compare(paths, options.out / "replay", options.seeds, options.trials, live=False)
        else:
            layers = [p for p in paths if p.name.removesuffix(".json.gz") in LAYERS]
            _compare(layers, options.out / "live", min(options.seeds, 3), min(options.trials, 192), live=True)
        print(f"\n{part}: {time.perf_counter() - began:.0f} s\n", flush=True)


# -- replay and live: measurements and time to autotvm's final quality ---------------------------------------------


def _compare(paths: Sequence[Path], out: Path, seeds: int, trials: int, live: bool) -> None:
    variants = {"autotvm": Variant("autotvm"), **ABLATIONS}
    options: dict[str, Any] = {"seeds": seeds, "trials": trials, "live": live}
    done = compare_variants(
        Host(), units(paths, []), variants, out, say=lambda text: print(text, flush=True), **options
    )
    runs, best, names = done.runs, done.best, list(variants)
    goal = {u: float(np.median([final(runs["autotvm", u, s], best[u]) for s in range(seeds)])) for u in best}
    trial, seconds = {}, {}
    for (name, unit, seed), run in runs.items():
        there = np.flatnonzero(quality(run, best[unit]) >= goal[unit] - 1e-9)
        trial[name, unit, seed] = int(there[0]) + 1 if len(there) else math.inf
        seconds[name, unit, seed] = run.t[there[0]] if len(there) else math.inf
    pairs = [(u, s) for u in best for s in range(seeds)]

    head = ("recipe", "arrived", "measurements", "seconds", "run, s", "thinking", "final quality", "trials")
    rows = []
    for name in names:
        mine = [runs[name, u, s] for u, s in pairs]
        think = [(r.spent["search"] + r.spent["model"]) / r.t[-1] for r in mine]
        rows.append(
            (
                name,
                f"{np.mean([math.isfinite(trial[name, u, s]) for u, s in pairs]):.0%}",
                _three([trial[name, u, s] for u, s in pairs], "{:.0f}"),
                _three([seconds[name, u, s] for u, s in pairs], "{:.1f}"),
                _three([r.t[-1] for r in mine], "{:.1f}"),
                f"{np.median(think):.0%}",
                _three([final(runs[name, u, s], best[u]) for u, s in pairs], "{:.3f}"),
                _three([len(r.t) for r in mine], "{:.0f}"),
            )
        )
    print(
        f"\n{len(best)} operators, {seeds} seeds, {trials} trials: to autotvm's median final quality of each operator\n"
    )
    _table(head, rows)
    ratios = []
    for a, b in (("SA", "SA+AS"), ("RL", "RL+AS"), ("SA", "RL"), *(("autotvm", n) for n in ABLATIONS)):
        searched = [(u, s) for u, s in pairs if max(trial[a, u, s], trial[b, u, s]) > FIRST]
        ratios.append(
            (
                f"{a} / {b}",
                len(searched),
                *(_ratio([(of[a, u, s], of[b, u, s]) for u, s in searched]) for of in (trial, seconds)),
                _ratio([(runs[a, u, s].t[-1], runs[b, u, s].t[-1]) for u, s in pairs]),
                _ratio([(final(runs[b, u, s], best[u]), final(runs[a, u, s], best[u])) for u, s in pairs], 4),
            )
        )
    print(
        "\nmedian ratios; the first two leave out the pairs that arrived in the first batch, which is random for all\n"
    )
    _table(("ratio", "pairs", "measurements", "seconds", "whole run, s", "speed at the end"), ratios)
    print()
    each = [
        (u, *(_number(np.median([trial[n, u, s] for s in range(seeds)])) for n in names), f"{goal[u]:.3f}")
        for u in best
    ]
    _table(("operator: measurements to arrive", *names, "goal"), each)


def _ratio(pairs: Sequence[tuple[float, float]], digits: int = 2) -> str:
    """Median of a / b with its 95 % interval; neither arrived is 1, a alone is 0, b alone never."""
    logs = [0.0 if a == b else float(np.log(a) - np.log(b)) for a, b in pairs]
    return _three(logs, f"{{:.{digits}f}}", math.exp)


def _three(values: Sequence[float], shape: str, of: Callable[[float], float] = lambda v: v) -> str:
    mid, low, high = (_number(v, shape, of) for v in interval(values, np.random.default_rng(0)))
    return f"{mid} ({low} to {high})"


def _number(v: Any, shape: str = "{:.0f}", of: Callable[[float], float] = lambda v: v) -> str:
    return "never" if v == math.inf else shape.format(of(v))


# -- steps to settle, clusters of each batch, run times inside clusters --------------------------------------------


class _Watched:
    """A sampler that keeps what it was offered and how long it took, in seconds of one core."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seen = inner, []

    def select(self, ctx: Context, proposal: Any, n: int) -> Any:
        began = time.process_time()
        out = self.inner.select(ctx, proposal, n)
        self.seen.append((np.unique(proposal.codes, axis=0), out.info["k"], time.process_time() - began))
        return out


def _clusters(paths: Sequence[Path], out: Path, seeds: int) -> None:
    found = []
    for path in paths:
        for name in ("SA+AS", "RL+AS"):
            for seed in range(seeds):
                kept = out / "clusters" / f"{path.name.removesuffix('.json.gz')}--{name}--{seed}.json"
                if not kept.exists():
                    write_json(kept, _watch(path, ABLATIONS[name].sets, seed))
                    print(f"clusters: {kept.name}", flush=True)
                found.append((name, read_json(kept)))
    rows = []
    for name in ("SA+AS", "RL+AS"):
        mine = [b for n, batches in found if n == name for b in batches]
        rows.append(
            (
                name,
                len(mine),
                _three([b["settled"] for b in mine], "{:.0f}"),
                _three([b["steps"] for b in mine], "{:.0f}"),
                _three([b["scored"] for b in mine if b["scored"]], "{:.0f}") if name == "RL+AS" else "",
                _three([b["k"] for b in mine], "{:.0f}"),
                f"{np.mean([b['k'] for b in mine]):.1f}",
                f"{np.mean([b['synthesised'] for b in mine]):.1f}",
                _three([b["search_s"] for b in mine], "{:.2f}"),
                _three([b["sample_s"] for b in mine], "{:.3f}"),
            )
        )
    print("\nper iteration, median with interval\n")
    head = ("recipe", "iterations", "steps to settle", "steps made", "rows scored", "clusters", "mean", "synthesised")
    _table((*head, "search, s of one core", "sampling, s"), rows)
    print("\nshare of candidates whose run time differs by at most this much from their cluster's representative's\n")
    rows = []
    for what in ("inside", "across"):
        gaps = np.concatenate([b[what] for _, batches in found for b in batches])
        rows.append((what, len(gaps), *(f"{np.mean(gaps <= s):.0%}" for s in SHARES), f"{np.median(gaps):.1%}"))
    _table(("", "pairs", *(f"{s:.0%}" for s in SHARES), "median"), rows)


def _watch(path: Path, sets: Sequence[str], seed: int, batches: int = 8) -> list[dict[str, Any]]:
    """Remarks of each searched batch, and the relative differences of recorded run times: of members from the member
    nearest to their centroid, and from that of another cluster drawn at random."""
    part, recipe = load(path).parts[0], Host().recipe("chameleon", sets)
    sampler, replay = _Watched(recipe.build("sampler")), Replay([part], recipe.build("evaluator"), VirtualClock(), seed)
    pieces = (recipe.build("surrogate"), recipe.build("searcher"), sampler)
    pipeline = Pipeline(part.task, *pieces, programs=replay, seed=seed, clock=replay.clock)
    out, rng = [], np.random.default_rng(seed)
    for number in range(batches):
        began = time.process_time()
        batch = pipeline.ask(recipe.batch)
        took = time.process_time() - began
        if not len(batch.codes):
            break
        pipeline.tell(batch.id, list(replay.measure(part.task, batch.codes, Bar(pipeline.best_s))))
        if number == 0 or "steps" not in batch.info:
            continue
        codes, k, sample_s = sampler.seen[-1]
        (clusters,) = clusterings(part.task.space.encode(codes), [k], rng)
        at = [part.index.get(row.tobytes(), -1) for row in codes]
        known = np.array([part.latency[i] if i >= 0 else np.inf for i in at])
        lead = np.array([_lead(part, codes[clusters.labels == c]) for c in range(k)])
        other = lead[(clusters.labels + rng.integers(1, max(k, 2), len(codes))) % k]
        inside, across = (np.abs(known - one) / one for one in (lead[clusters.labels], other))
        keep = np.isfinite(inside) & np.isfinite(across) & (known != lead[clusters.labels])
        info = {key: batch.info.get(key, 0) for key in ("settled", "steps", "scored", "k", "synthesised", "lacking")}
        spans = {"inside": inside[keep].round(4).tolist(), "across": across[keep].round(4).tolist()}
        out.append({**info, "search_s": took - sample_s, "sample_s": sample_s, **spans})
    return out


def _lead(part: Any, members: np.ndarray) -> float:
    """Recorded seconds of the member nearest to the centroid; inf if it failed or the cluster is empty."""
    if not len(members):
        return math.inf
    at = part.index.get(centroid(part.task.space, members, "member").tobytes(), -1)
    return float(part.latency[at]) if at >= 0 else math.inf


# -- synthetic spaces ----------------------------------------------------------------------------------------------


def _synthetic(out: Path, seeds: int, knobs: int = 10, choices: int = 16, calls: int = 3) -> None:
    """The best row, the mean of the best 32 and the rows scored of each call; optimum 1. Agent and chains go on."""
    kept = out / "synthetic.json"
    found = read_json(kept) if kept.exists() else {}
    searchers = {
        "PPO": lambda: PPO(patience=500),
        "annealing, T = 1": lambda: Anneal(patience=500),
        "annealing, T = 0.3 spreads": lambda: Anneal(unit="spread", temperature=0.3, patience=500),
    }
    for landscape in ("separable", "rotated", "deceptive"):
        for seed in range(seeds):
            key = f"{landscape}/{seed}"
            if key in found:
                continue
            task, truth = synthetic_task(key, knobs, choices), SyntheticMeasurer(landscape=landscape)
            found[key] = {name: _calls(make(), task, truth, seed, calls) for name, make in searchers.items()}
            random = -np.sort(-1e-3 / truth.seconds(task, task.space.sample(64_000, np.random.default_rng(seed))))
            found[key]["random"] = [[float(random[0]), float(random[:32].mean()), len(random)]] * calls
            write_json(kept, found)
    rows = []
    for landscape in ("separable", "rotated", "deceptive"):
        mine = [v for k, v in found.items() if k.split("/")[0] == landscape]
        for name in (*searchers, "random"):
            shown = [[v[name][call][1] for v in mine] for call in (0, calls - 1)]
            best = [v[name][calls - 1][0] for v in mine]
            scored = _three([call[2] for v in mine for call in v[name]], "{:,.0f}")
            rows.append((landscape, name, *(_three(v, "{:.3f}") for v in (*shown, best)), scored))
    print(f"\n{choices}^{knobs} rows, 128 times 500 steps a call, {seeds} seeds; 1 is the optimum\n")
    head = ("landscape", "searcher", "best 32, call 1", f"best 32, call {calls}", f"best, call {calls}")
    _table((*head, "rows scored a call"), rows)


def _calls(searcher: Any, task: Any, truth: Any, seed: int, calls: int) -> list[list[float]]:
    scored = 0

    def score(codes: np.ndarray) -> np.ndarray:
        nonlocal scored
        scored += len(codes)
        return 1e-3 / truth.seconds(task, codes)

    def predict(codes: np.ndarray) -> Prediction:
        return Prediction(score(codes), np.zeros(len(codes)))

    none, out = np.empty((0, len(task.space.knobs)), dtype=np.int64), []
    for call in range(calls):
        rng = np.random.default_rng([seed, call])
        ctx = Context(
            task, task.space, none, np.empty(0), [], none, math.inf, predict, score, rng, VirtualClock(), fitted=True
        )
        scored = 0
        scores = searcher.propose(ctx, 32).scores
        out.append([float(scores[0]), float(scores[:32].mean()), scored])
    return out


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    program(main)
