"""AdaTune (Li et al. 2020) measured: evaluators, the ablation of section 5.3, fixed epsilons, uncertainties, RF and GP.

    hatch run python studies/adatune/study.py [--recordings recordings] [--out adatune-bench] [--only replay]

In replay, on the template recordings of benchmarks/recordings.py: what each evaluator costs and what it finds, how
often racing stops the eventual best, and recipes with 15 seeds. Live, on a quiet machine: three operators
(`--only operators`) and two models (`--only models`). Stop it at any time; the same command goes on. The tables are
written to OUT/tables.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench import compare, stats
from tt_bench.atomic import read_json, write, write_json
from tt_bench.files import load
from tt_bench.launch import program, tuned
from tt_bench.recording import Recorded
from tt_bench.replay import Block, Replay
from tt_bench.variants import Variant, compare_variants
from tt_core.host import Host
from tt_measure import Adaptive, Fixed, Racing
from tt_spec import Bar, VirtualClock, labels
from tt_surrogate import ForestEI, GaussianProcess

N500 = ("evaluator=fixed", "evaluator.number=500", "evaluator.repeat=1", "evaluator.min_repeat_ms=0")
N500 = (*N500, "evaluator.slow_factor=0")
METASCHEDULE = ("evaluator=fixed", "evaluator.number=3", "evaluator.repeat=1", "evaluator.min_repeat_ms=100")
METASCHEDULE = (*METASCHEDULE, "evaluator.slow_factor=0")
SA = ("searcher=anneal", "searcher.unit=spread", "searcher.temperature=0.3")

RECIPES = {
    "autotvm": Variant("autotvm"),
    "adatune": Variant("adatune"),
    "XGB+SA+fixed": Variant("adatune", ("surrogate=xgb", *SA, *N500)),
    "RFEI+SA+fixed": Variant("adatune", (*SA, *N500)),
    "RFEI+CSA+fixed": Variant("adatune", N500),
    "RFEI+CSA+MetaSchedule's": Variant("adatune", METASCHEDULE),
    "RFEI+CSA+racing": Variant("adatune", ("evaluator=racing",)),
    **{f"epsilon={e}": Variant("adatune", (*SA, f"searcher.random_share={e}")) for e in (0.01, 0.05, 0.2, 0.5)},
    "trees, as they are": Variant("adatune", ("surrogate.uncertainty=trees", "surrogate.calibrate=false")),
    "forestci, as it is": Variant("adatune", ("surrogate.uncertainty=forestci", "surrogate.calibrate=false")),
    "forestci, calibrated": Variant("adatune", ("surrogate.uncertainty=forestci", "surrogate.calibrate=true")),
    "GP": Variant("adatune", ("surrogate=gp",)),
}
"""By the name that the tables use."""

ABLATION = ("autotvm", "XGB+SA+fixed", "RFEI+SA+fixed", "RFEI+CSA+fixed", "RFEI+CSA+MetaSchedule's", "adatune")
REPLAYED = (*ABLATION, *(r for r in RECIPES if r not in ABLATION))
LIVE = ("autotvm", "XGB+SA+fixed", "RFEI+CSA+fixed", "adatune")
NETWORKS = ("resnet18", "transformer-encoder")

TEMPLATES = "*-template.json.gz"
LIVE_OPERATORS = ("resnet18-64", "resnet18-256", "encoder-qkv")

EVALUATORS = {
    "fixed, n = 500": Fixed(500, 1, 0, 0),
    "fixed, MetaSchedule's": Fixed(3, 1, 100, 0),
    "fixed, tt's": Fixed(),
    "adaptive, up to 10 s": Adaptive(most_s=10),
    "adaptive": Adaptive(),
    "adaptive, trimmed": Adaptive(trim=True),
    "racing, then adaptive": Racing(),
}
ROWS = 200
LEARNED = 200

MODELS_WITH_DOUBT = {
    "trees, calibrated": ForestEI(),
    "trees, as they are": ForestEI(calibrate=False),
    "forestci, calibrated": ForestEI(uncertainty="forestci"),
    "forestci, as it is": ForestEI(uncertainty="forestci", calibrate=False),
    "GP": GaussianProcess(),
}
FIRST = 32
"""Rows of recipe adatune's first batch."""

NEVER = 1e3
"""A ratio beyond it is that of a run that did not arrive."""

SLACKS = (1.0, 1.25, 1.5, 2.0, 3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("adatune-bench"))
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--trials", type=int, default=160, help="of a replayed run")
    parser.add_argument("--live-seeds", type=int, default=2)
    parser.add_argument("--live-trials", type=int, default=96)
    parser.add_argument("--model-trials", type=int, default=320)
    o = parser.parse_args()
    o.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of processes started from here
    lines: list[str] = []
    for name, part in PARTS.items():
        kept = o.out / f"{name}.md"
        if o.only in (None, name):
            write(kept, "\n".join(part(o)) + "\n")
        if kept.is_file():
            lines += [kept.read_text()]
    write(o.out / "tables.md", "\n".join(lines))
    print("\n".join(lines))


# -- evaluators ---------------------------------------------------------------------------------------------------


def _evaluators(o: argparse.Namespace) -> Iterator[str]:
    paths = sorted(o.recordings.glob(TEMPLATES))
    kept = o.out / "evaluators.json"
    found = read_json(kept) if kept.is_file() else {}
    left = [p for p in paths if p.name not in found]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for path, lines in zip(left, pool.map(_evaluate, left, [o.seeds] * len(left)), strict=True):
            found[path.name] = lines
            write_json(kept, found)
            print(f"evaluators on {path.name}", flush=True)
    yield f"## Evaluators: {len(found)} recordings, {o.seeds} orders of {ROWS} random rows each\n"
    yield "| evaluator | ms a candidate | times fewer than n = 500 | than MetaSchedule's | found, of the best |"
    yield "|---|---|---|---|---|"
    first = _over(found, "fixed, n = 500", "run_s")
    second = _over(found, "fixed, MetaSchedule's", "run_s")
    for name in EVALUATORS:
        mine, held = _over(found, name, "run_s"), _over(found, name, "quality")
        yield (
            f"| {name} | {1e3 * mine.mean():.0f} | {_three(first / mine, 2)} | {_three(second / mine, 2)}"
            f" | {held.mean():.4f} |"
        )
    from scipy.stats import binomtest

    lost = int(_over(found, "racing, then adaptive", "lost").sum() * o.seeds)
    tried = len(found) * o.seeds
    low, high = binomtest(lost, tried).proportion_ci()
    rate = f"{lost / tried:.1%} ({low:.1%} to {high:.1%})"
    yield f"\nRacing stopped the eventual best in {lost} of {tried} orders: {rate}.\n"
    yield "| slack | a program as fast as the incumbent is stopped | ms a candidate |"
    yield "|---|---|---|"
    for slack in SLACKS:
        equal, run_s = _over(found, f"slack {slack}", "equal"), _over(found, f"slack {slack}", "run_s")
        rate = f"{equal.mean():.1%} (recordings: {equal.min():.1%} to {equal.max():.1%})"
        yield f"| {slack:g} | {rate} | {1e3 * run_s.mean():.0f} |"
    yield ""


def _evaluate(path: Path, seeds: int) -> dict[str, dict[str, float]]:
    """Of each evaluator, means over orders: seconds of a candidate, `best / held` at the end, share of lost bests; and
    of racing by its slack, how often it stops a program whose own median is the incumbent."""
    part = max(load(path).parts, key=lambda p: len(p.rows))
    out = {name: _orders(part, evaluator, seeds) for name, evaluator in EVALUATORS.items()}
    long = [np.asarray(m.seconds) for m in part.measured if len(m.seconds) >= 500]
    for slack in SLACKS:
        evaluator, rng = Racing(slack=slack), np.random.default_rng(0)
        timings = [
            evaluator.evaluate(Block(x, int(rng.integers(len(x)))).run, Bar(float(np.median(x))), rng)
            for x in long
            for _ in range(seeds)
        ]
        equal = float(np.mean([t.why.startswith("stopped") for t in timings]))
        out[f"slack {slack}"] = {**_orders(part, evaluator, 1), "equal": equal}
    return out


def _orders(part: Recorded, evaluator: Any, seeds: int) -> dict[str, float]:
    seconds, quality, lost = [], [], []
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(part.rows))[:ROWS]
        replay = Replay([part], evaluator, VirtualClock(), seed)
        done = list(replay.measure(part.task, part.rows[order], Bar(flops=part.task.flops)))
        truth = {tuple(map(int, part.rows[i])): part.latency[i] for i in order}
        best = min(truth, key=truth.__getitem__)
        held = sorted((m.latency_s, truth[m.config]) for m in done if m.seconds)[:4]
        seconds.append(replay.spent["run"] / len(order))
        quality.append(truth[best] / min(b for a, b in held if a <= 1.1 * held[0][0]))
        lost.append(next(m for m in done if m.config == best).why.startswith("stopped"))
    return {"run_s": float(np.mean(seconds)), "quality": float(np.mean(quality)), "lost": float(np.mean(lost))}


def _over(found: dict, name: str, figure: str) -> np.ndarray:
    return np.array([lines[name][figure] for lines in found.values()])


# -- deviations ---------------------------------------------------------------------------------------------------


def _deviations(o: argparse.Namespace) -> Iterator[str]:
    """Predictions for rows that models were not told, beside the recorded ones."""
    parts = [max(load(p).parts, key=lambda p: len(p.rows)) for p in sorted(o.recordings.glob(TEMPLATES))]
    yield f"## Deviations: {len(parts)} recordings, {LEARNED} rows learned, the others predicted\n"
    yield "| model | RMS error | RMS deviation | errors within one | Spearman, error and deviation | deviations of 0 |"
    yield "|---|---|---|---|---|---|"
    for name, model in MODELS_WITH_DOUBT.items():
        found = np.array([_doubt(part, model, split) for part in parts for split in range(3)])
        error, deviation, within, rho, none = found.mean(axis=0)
        yield f"| {name} | {error:.3f} | {deviation:.3f} | {within:.0%} | {rho:.2f} | {none:.0%} |"
    yield ""


def _doubt(part: Recorded, model: Any, split: int) -> tuple[float, float, float, float, float]:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(split)
    order, X, y = rng.permutation(len(part.rows)), part.space.encode(part.rows), labels(part.latency)
    learned, others = order[:LEARNED], order[LEARNED:]
    model.fit([(part.task, X[learned], y[learned])], rng)
    p = model.predict(part.task, X[others])
    error = np.abs(y[others] - p.mean)
    rms = np.sqrt(np.mean(error**2)), np.sqrt(np.mean(p.std**2))
    return *rms, np.mean(error < p.std), spearmanr(error, p.std).statistic, np.mean(p.std == 0)


# -- recipes ------------------------------------------------------------------------------------------------------


def _replay(o: argparse.Namespace) -> Iterator[str]:
    done = _compare(o, sorted(o.recordings.glob(TEMPLATES)), REPLAYED, "replay", seeds=o.seeds, trials=o.trials)
    yield f"## Replay: {len(done.units)} operators, {o.seeds} seeds, {o.trials} trials\n"
    yield from _figures(done, ABLATION, "The ablation (Figures 10 and 11)", "adatune")
    yield from _breakdown(done, ABLATION)
    fixed = tuple(r for r in RECIPES if r.startswith("epsilon="))
    yield from _figures(done, (*fixed, "adatune"), "Epsilon (Figure 4)", "adatune")
    yield from _figures(done, ("GP", "adatune"), "Random forest and Gaussian process (Figure 12)", "adatune")
    doubts = tuple(r for r in RECIPES if r.startswith(("trees", "forestci")))
    yield from _figures(done, (*doubts, "adatune"), "Which deviation (adatune: trees, calibrated)", "adatune")
    yield from _figures(done, ("RFEI+CSA+racing", "adatune"), "Beyond the paper: racing", "adatune")


def _operators(o: argparse.Namespace) -> Iterator[str]:
    paths = [o.recordings / f"{name}-template.json.gz" for name in LIVE_OPERATORS]
    done = _compare(o, paths, LIVE, "live", seeds=o.live_seeds, trials=o.live_trials, live=True)
    yield f"## Live: {len(done.units)} operators, {o.live_seeds} seeds, {o.live_trials} trials\n"
    yield from _figures(done, LIVE, "Three operators on this machine", "adatune")
    yield from _breakdown(done, LIVE)


def _compare(
    o: argparse.Namespace, paths: Sequence[Path], recipes: Sequence[str], folder: str, **options: Any
) -> compare.Comparison:
    units = compare.units([p for p in paths if p.is_file()], [])
    kept = [u for u in units if all(len(load(Path(u.path)).parts[i].rows) > ROWS for i in u.parts)]
    variants = {name: RECIPES[name] for name in recipes}
    return compare_variants(Host(), kept, variants, o.out / folder, say=lambda t: print(t, flush=True), **options)


def _figures(done: compare.Comparison, recipes: Sequence[str], title: str, other: str) -> Iterator[str]:
    """Means over operators of the medians over seeds, and paired ratios to the recipe `other`; p by Holm's correction
    for the table's comparisons of every two."""
    settings = {**done.settings, "recipes": {r: done.settings["recipes"][r] for r in recipes}}
    done = dataclasses.replace(done, settings=settings)
    found = {(s.recipe, s.unit): s for s in stats.summaries(done)}
    pairs = {(p.a, p.b, p.figure): p for p in stats.paired(done)}
    yield f"### {title}\n"
    yield (
        f"| recipe | at the end | area | seconds | time to 95 %, by {other} | p | of pairs that had to search"
        f" | area, by {other} | p |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for r in recipes:
        mine = [found[r, u] for u in done.units if (r, u) in found]
        end, area, seconds = (np.mean([getattr(s, f)[0] for s in mine]) for f in ("final", "area", "seconds"))
        time, areas = _ratio(pairs, r, other, "time to 95 %"), _ratio(pairs, r, other, "area")
        searched = "" if r == other else _searched(done, r, other)
        cells = [r, f"{end:.3f}", f"{area:.3f}", f"{seconds:.0f}", *_shown(time), searched, *_shown(areas)]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _ratio(pairs: dict, a: str, b: str, figure: str) -> tuple[float, float, float, float] | None:
    """`a / b` with its interval, and p."""
    if (a, b, figure) in pairs:
        return *pairs[a, b, figure].ratio, pairs[a, b, figure].p
    if (b, a, figure) in pairs:
        middle, low, high = pairs[b, a, figure].ratio
        return 1 / middle, 1 / high, 1 / low, pairs[b, a, figure].p
    return None


def _searched(done: compare.Comparison, a: str, b: str) -> str:
    """`a / b`, seconds to 95 % of the best known, over the pairs of which one had not arrived with its first `FIRST`
    rows: those are random, and the same for both."""
    ratios = []
    for unit in done.units:
        for pair in zip(done.of(a, unit), done.of(b, unit), strict=False):
            there = [stats.time_to(run, done.best[unit], 0.95) for run in pair]
            late = any(s > run.t[min(FIRST, len(run.t)) - 1] for s, run in zip(there, pair, strict=True))
            if late and min(there) < math.inf:
                ratios.append(there[0] / there[1])
    if not ratios:
        return ""
    middle, low, high = stats.interval(ratios, np.random.default_rng(0))
    return f"{_number(middle)} ({_number(low)} to {_number(high)}), {len(ratios)} pairs"


def _number(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < NEVER else "never"


def _shown(ratio: tuple[float, ...] | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    middle, low, high, p = ratio
    return f"{_number(middle)} ({_number(low)} to {_number(high)})", f"{p:.2g}"


def _breakdown(done: compare.Comparison, recipes: Sequence[str]) -> Iterator[str]:
    """Seconds by part: sums over operators of medians over seeds, and timing per candidate."""
    found = stats.summaries(done)
    kinds = [k for k in ("search", "model", "programs", "build", "run") if any(k in s.spent for s in found)]
    yield "### Where the time goes (Figure 9)\n"
    yield f"| recipe | {' | '.join(f'{k}, s' for k in kinds)} | timing, ms a candidate |"
    yield f"|---|{'---|' * (len(kinds) + 1)}"
    for r in recipes:
        mine = [s for s in found if s.recipe == r]
        runs = [run for u in done.units for run in done.of(r, u)]
        each = sum(run.spent["run"] for run in runs) / sum(len(run.t) for run in runs)
        sums = [sum(s.spent.get(k, 0.0) for s in mine) for k in kinds]
        yield f"| {r} | {' | '.join(f'{s:.1f}' for s in sums)} | {1e3 * each:.0f} |"
    yield ""


# -- models -------------------------------------------------------------------------------------------------------


def _models(o: argparse.Namespace) -> Iterator[str]:
    yield f"## Models: {o.model_trials} trials each (Tables 2 to 5)\n"
    yield "| model | AutoTVM, n = 500 | AdaTune | ratio | untuned | AutoTVM | AdaTune |"
    yield "|---|---|---|---|---|---|---|"
    for model in NETWORKS:
        theirs = _tuned(o, model, Variant("autotvm", N500))
        ours = _tuned(o, model, RECIPES["adatune"])
        took, least = theirs["seconds"], ours["seconds"]
        yield (
            f"| {model} | {took:.0f} s | {least:.0f} s | {took / least:.1f}"
            f" | {1e3 * ours['before_s']:.2f} ms | {1e3 * theirs['after_s']:.2f} ms | {1e3 * ours['after_s']:.2f} ms |"
        )
    yield ""


def _tuned(o: argparse.Namespace, model: str, variant: Variant) -> dict[str, Any]:
    """The result of `tt tune`; a finished one is read."""
    kept = o.out / "models" / f"{model}-{variant.recipe}.json"
    if not kept.is_file():
        print(f"tuning {model} by {variant.recipe}", flush=True)
        kept.parent.mkdir(exist_ok=True)
        options = ["--recipe", variant.recipe, "--minutes", "60", "--trials", str(o.model_trials)]
        options += ["--history", str(kept.with_suffix(".db")), "--out", str(kept.with_suffix(".so"))]
        write_json(kept, tuned(model, *options, *(word for s in variant.sets for word in ("--set", s))))
    return read_json(kept)


def _three(ratios: np.ndarray, digits: int) -> str:
    """Geometric mean over recordings, with its 95 % bootstrap interval."""
    middle, low, high = stats.geometric_interval(ratios.tolist(), np.random.default_rng(0), draws=2000)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


PARTS = {
    "evaluators": _evaluators,
    "deviations": _deviations,
    "replay": _replay,
    "operators": _operators,
    "models": _models,
}

if __name__ == "__main__":
    program(main)
