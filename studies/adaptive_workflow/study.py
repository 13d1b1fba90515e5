"""The adaptive workflow measured: early stop, clusters, transfer; figures 6 to 8 of Chen et al. (2024).

    hatch run python studies/adaptive_workflow/study.py replay --recordings recordings --out workflow
    hatch run python studies/adaptive_workflow/study.py stops --out workflow                           # seconds
    hatch run python studies/adaptive_workflow/study.py transfer --recordings recordings --out workflow
    hatch run python studies/adaptive_workflow/study.py clusters --recordings recordings --out workflow # a picture
    hatch run python studies/adaptive_workflow/study.py tapes --out workflow                           # quiet machine
    hatch run python studies/adaptive_workflow/study.py live --out workflow --models resnet18          # quiet machine

Each goes on where it was stopped, an operator and seed at a time, and prints the tables of all that is there.
`replay` tunes every recorded operator alone, once per seed, with recipe autotvm's search over knobs and no stop;
`tapes` does it live. `stops` plays every stop rule over these tapes, for a stopper only cuts; over the short ones of
`replay` with every number of trials scaled down (`--scale`). The seven parameters are chosen on ResNet-18's operators
and shown on the others. `transfer` leaves the operator out and lends it the rows of the other recordings, or those of
other models' alone; or it adds a short earlier run of the operator itself; `--recipe tt` asks whether the default had
better do so. `clusters` draws the candidates of a batch and says how alike a cluster's latencies are. `live` tunes
whole models, with all parts of the recipe and without each, its numbers of trials scaled down as in `replay`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is loaded: thinking is counted on one core

import numpy as np
from sklearn.decomposition import PCA
from tt_bench.atomic import read_json, write_json
from tt_bench.errors import BenchError
from tt_bench.files import load
from tt_bench.launch import program, tuned
from tt_bench.operators import RESNET18
from tt_bench.pictures import COLOURS, grid
from tt_bench.recording import Recorded
from tt_bench.runs import Run, tune
from tt_bench.stats import geometric_interval, quality
from tt_bench.tables import show
from tt_bench.tapes import Tape
from tt_core.host import Host
from tt_sample.clusters import clusterings
from tt_sample.kmeans import KMeans
from tt_schedule.adaptive_stop import AdaptiveStop
from tt_schedule.patience import Patience
from tt_spec import Measurement, Pipeline, Plugins, TaskState, Trial, VirtualClock, token
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.types import Context, Proposal, Selection

SEARCH = ("surrogate=xgb", "surrogate.inputs=knobs", "surrogate.objective=rank", "draft=none", "stopper=none")
BASES = {"autotvm": SEARCH, "tt": ("stopper=none",)}
"""What is changed in a recipe whose search is replayed."""
BATCH = 16
SCALE = 0.25
VARIANTS = {
    "scratch": (),
    "transfer": ("transfer=history",),
    "other models": ("transfer=history",),
    "history": ("transfer=history",),
    "k-means": ("sampler=kmeans",),
    "k-means, 0.4": ("sampler=kmeans", "sampler.threshold=0.4"),
    "k-means, 0.6": ("sampler=kmeans", "sampler.threshold=0.6"),
}
TRANSFERS = ("scratch", "transfer", "history")
"""Variants of a recipe other than the paper's."""
EARLIER = 32
"""Trials of the operator's own earlier run, from scratch and with another seed, on which "history" goes on."""
TRIALS = 96
TAPE = 1500
"""Trials of a tape before it is scaled, the paper's larger maximum."""
GOALS = (0.9, 0.95, 0.98)
OPERATORS = {  # ResNet-18's convolutions by the names of the recordings, and Inception's kin that chose nothing
    **RESNET18,
    "inception-3a": "op:conv2d:1,64,28,96,3,1,1",
    "inception-3c": "op:conv2d:1,96,28,96,3,2,1",
    "inception-4a": "op:conv2d:1,576,14,224,1,1,0",
    "inception-4d": "op:conv2d:1,160,14,192,3,1,1",
    "inception-5a": "op:conv2d:1,192,7,320,3,1,1",
}
CHOSE = "resnet18"
DRAWN = ("resnet18-128", "encoder-up")
"""Operators whose clusters are drawn."""
DEFAULTS: dict[str, Any] = vars(AdaptiveStop())
COUNTS = ("im", "ub", "lb", "plan_size")
"""Parameters of adaptive-stop that are numbers of trials."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("replay", "stops", "transfer", "clusters", "tapes", "live"))
    parser.add_argument("--recordings", type=Path, default=Path("recordings"))
    parser.add_argument("--out", type=Path, default=Path("workflow"))
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--scale", type=float, default=SCALE, help="of trial counts, in replay and live")
    parser.add_argument("--recipe", choices=BASES, default="autotvm", help="whose search transfer starts from history")
    parser.add_argument("--models", default="resnet18,inception_v2", help="of live, with commas")
    parser.add_argument("--minutes", type=float, default=50.0, help="of each live run, at most")
    options = parser.parse_args()
    if options.part == "replay":
        _replay(_recorded(options.recordings), options.out, options.seeds, options.scale)
    elif options.part == "transfer":
        _transfer(_recorded(options.recordings), options.out, options.seeds, options.recipe)
    elif options.part == "clusters":
        _clusters(_recorded(options.recordings), options.out)
    elif options.part == "tapes":
        _live_tapes(options.out)
    elif options.part == "live":
        _live(options.models.split(","), options.out, options.minutes, options.scale)
    if options.part in ("replay", "stops"):
        _stops(options.out / "replay", options.scale)
    if options.part in ("tapes", "stops"):
        _stops(options.out / "tapes", 1.0)


def _recorded(folder: Path) -> dict[str, Recorded]:
    """The recorded template spaces by name."""
    found = {}
    for path in sorted(folder.glob("*-template.json.gz")):
        name = path.name.removesuffix("-template.json.gz")
        (found[name],) = (p for p in load(path).parts if np.isfinite(p.latency).sum() > 1)
    if not found:
        raise BenchError(f"{folder} has no *-template.json.gz: benchmarks/recordings.py makes them")
    return found


def _run(
    part: Recorded,
    sets: Sequence[str],
    seed: int,
    trials: int,
    lent: Sequence[Recorded] = (),
    store: MemoryStore | None = None,
    recipe: str = "autotvm",
) -> Run:
    changes = (*BASES[recipe], f"batch={BATCH}", *sets)
    return tune(Host(), [part], recipe, changes, seed, trials, lent=lent, store=store)


# -- tapes: every operator tuned alone, once -----------------------------------------------------------------------


def _replay(recorded: Mapping[str, Recorded], out: Path, seeds: int, scale: float) -> None:
    for seed, (name, part) in product(range(seeds), recorded.items()):
        kept = out / "replay" / f"{name}--{seed}.json"
        if not kept.exists():
            run = _run(part, (), seed, round(TAPE * scale))
            write_json(kept, {"seen_s": run.seen_s, "true_s": run.true_s, "t": run.t})
            print(f"replay: {kept.name}, {len(run.t)} trials", flush=True)


def _live_tapes(out: Path) -> None:
    for name, operator in OPERATORS.items():
        kept = out / "tapes" / f"{name}--0.json"
        if kept.exists():
            continue
        history = out / "tapes" / f"{name}.db"
        history.parent.mkdir(parents=True, exist_ok=True)
        most = str(TAPE)  # recipe autotvm's scheduler ends a task at 1,000 by itself
        sets = [w for text in ("stopper=none", f"scheduler.trials={most}") for w in ("--set", text)]
        tuned(operator, "--recipe", "autotvm", *sets, "--tasks", "conv2d", "--trials", most, "--history", str(history))
        rows = [m for e in Host().events("", history) if e["event"] == "batch_measured" for m in e["results"]]
        rows = [m for m in rows if m["error"] != "invalid"]
        seen = [float(np.median(m["seconds"])) if m["seconds"] else None for m in rows]
        best = np.minimum.accumulate([math.inf if s is None else s for s in seen])
        write_json(
            kept,
            {
                "seen_s": seen,
                "true_s": [float(s) if math.isfinite(s) else None for s in best],
                "t": [m["at"] - rows[0]["at"] for m in rows],
            },
        )
        print(f"tapes: {kept.name}, {len(rows)} trials", flush=True)


def _tapes(folder: Path) -> Iterator[tuple[str, Tape]]:
    for path in sorted(folder.glob("*.json")):
        kept = read_json(path)
        n = len(kept["t"])
        run = Run(kept["t"], [0] * n, kept["seen_s"], kept["true_s"], kept["true_s"], {}, 0.0, "")
        yield path.name.split("--")[0], Tape.of(synthetic_task(path.stem), run)


# -- stop rules over tapes -----------------------------------------------------------------------------------------


def _rules(scale: float) -> dict[str, Any]:
    """The baselines and the default, and what there is to choose from; trial counts scaled."""

    def autotvm(cap: int, quiet: int) -> Patience:
        return Patience(trials=round(quiet * scale) - 1, gain=0.0, cap=round(cap * scale))

    def adaptive(**options: float) -> AdaptiveStop:
        chosen: dict[str, Any] = DEFAULTS | options
        for name in COUNTS:
            chosen[name] = round(chosen[name] * scale)
        return AdaptiveStop(**chosen)

    rules: dict[str, Any] = {
        "(1500, 800)": autotvm(1500, 800),
        "(800, 400)": autotvm(800, 400),
        "adaptive-stop": adaptive(),
        **{f"adaptive-stop, im={im}": adaptive(im=im) for im in (384, 512)},
    }
    grid = product((192, 256, 384, 512), (2.0, 8.0), (0.5, 1.0, 2.0), (0.1, 0.3), (-32, -64))
    for im, ir, dr, fr, lb in grid:
        rules[f"im={im} ir={ir:g} dr={dr:g} fr={fr:g} lb={lb}"] = adaptive(im=im, ir=ir, dr=dr, fr=fr, lb=lb)
    return rules


def _stops(folder: Path, scale: float) -> None:
    tapes = list(_tapes(folder))
    if not tapes:
        return
    rules = _rules(scale)
    played = {rule: [_stopped(tape, stopper) for _, tape in tapes] for rule, stopper in rules.items()}
    choosing = np.array([name.startswith(CHOSE) for name, _ in tapes])
    chosen = _chosen(played, choosing)
    print(f"\n{folder}: {len(tapes)} tapes, trials scaled by {scale:g}; chosen on {choosing.sum()}: {chosen}\n")
    rows = []
    for where, which in (("chose", choosing), ("shown", ~choosing)):
        for rule in ("(1500, 800)", *(r for r in played if r.startswith("adaptive-stop")), chosen):
            if which.any():
                rows.append((where, rule, *_against(played[rule], played["(800, 400)"], which)))
    show(("tapes", "rule", "trials, by (800, 400)", "latency, by (800, 400)", "trials"), rows)
    print()
    names = sorted({name for name, _ in tapes})
    each = []
    for name in names:
        which = np.array([n == name for n, _ in tapes])
        each.append(
            (
                name,
                *(f"{np.mean(np.array(played[r])[which, 0]):.0f}" for r in list(rules)[:3]),
                *_against(played["adaptive-stop"], played["(800, 400)"], which)[:2],
            )
        )
    show(("operator", *list(rules)[:3], "adaptive-stop: trials", "latency, by (800, 400)"), each, text=1)


def _stopped(tape: Tape, stopper: Any) -> tuple[int, float]:
    """Trials until the rule ends the tape, and the latency that would ship then, seconds."""
    state, rows = TaskState(tape.task), [_measured(tape, i) for i in range(len(tape.seen_s))]
    while state.trials < len(rows) and stopper.stop(state, VirtualClock()) is None:
        left = min(BATCH, max(1, stopper.rows_left(state)))
        for m in rows[state.trials :][: int(left)]:  # as the loop does, without a pipeline's work
            state.record(m)
    return state.trials, float(tape.true_s[state.trials - 1])


def _measured(tape: Tape, i: int) -> Measurement:
    return Measurement.of(_trial((i,), float(tape.seen_s[i])), tape.task)


def _trial(row: Sequence[int], seconds: float) -> Trial:
    valid = math.isfinite(seconds)
    return Trial(tuple(row), (seconds,) if valid else (), error=None if valid else "run")


def _chosen(played: Mapping[str, Sequence[tuple[int, float]]], which: np.ndarray) -> str:
    """The rule with the fewest trials among those that lose at most 1 % of latency on the choosing tapes."""

    def cost(rule: str) -> float:
        a, b = (np.array(played[r])[which] for r in (rule, "(800, 400)"))
        return float(a[:, 0].sum()) if np.exp(np.log(a[:, 1] / b[:, 1]).mean()) <= 1.01 else math.inf

    return min([r for r in played if not r.startswith("(")], key=cost)


def _against(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]], which: np.ndarray) -> tuple[str, str, str]:
    x, y = np.array(a)[which], np.array(b)[which]
    return (_three(x[:, 0] / y[:, 0], 2), _three(x[:, 1] / y[:, 1], 4), f"{x[:, 0].mean():.0f}")


def _three(ratios: np.ndarray, digits: int) -> str:
    mid, low, high = geometric_interval(ratios.tolist(), np.random.default_rng(0))
    return f"{mid:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


# -- transfer and clusters, the task left out ----------------------------------------------------------------------


def _transfer(recorded: Mapping[str, Recorded], out: Path, seeds: int, recipe: str) -> None:
    folder = out / ("transfer" if recipe == "autotvm" else f"transfer-{recipe}")
    variants = [v for v in VARIANTS if recipe == "autotvm" or v in TRANSFERS]
    for seed, name, variant in product(range(seeds), recorded, variants):
        kept = folder / f"{name}--{variant}--{seed}.json"
        if kept.exists():
            continue
        part, lent, store = recorded[name], _lent(recorded, name, variant), MemoryStore()
        if variant == "history":
            _run(part, VARIANTS["scratch"], 1000 + seed, EARLIER, store=store, recipe=recipe)
        run = _run(part, VARIANTS[variant], seed, TRIALS, lent, store, recipe)
        write_json(kept, {"quality": quality(run, part.best_s).round(6).tolist(), "seconds": run.t[-1]})
        print(f"transfer: {kept.name}", flush=True)
    found = {tuple(path.stem.split("--")): read_json(path) for path in sorted(folder.glob("*--*--*.json"))}
    pairs = sorted({(name, seed) for name, _, seed in found if all((name, v, seed) in found for v in variants)})
    arrived = {key: [_arrival(run["quality"], goal) for goal in GOALS] for key, run in found.items()}
    print(
        f"\n{len(pairs)} pairs of operator and seed, {TRIALS} trials;"
        f" a run that did not arrive counts as {TRIALS + 1}\n"
    )
    rows = []
    for variant in variants:
        mine, base = ([arrived[n, v, s] for n, s in pairs] for v in (variant, "scratch"))
        ratios = [_three(np.divide([m[i] for m in mine], [b[i] for b in base]), 2) for i in range(len(GOALS))]
        ends = [found[n, variant, s]["quality"][-1] / found[n, "scratch", s]["quality"][-1] for n, s in pairs]
        firsts = [found[n, variant, s]["quality"][BATCH - 1] for n, s in pairs]
        rows.append((variant, *ratios, f"{np.median(firsts):.3f}", _three(np.array(ends), 4)))
    goals = [f"trials to {goal:.0%}, by scratch" for goal in GOALS]
    show(("variant", *goals, f"quality after {BATCH}", "final speed, by scratch"), rows, text=1)
    print()
    each = [
        (name, *(f"{np.mean([arrived[name, v, s][1] for n, s in pairs if n == name]):.0f}" for v in variants))
        for name in sorted({n for n, _ in pairs})
    ]
    show((f"operator: mean trials to {GOALS[1]:.0%}", *variants), each, text=1)


def _lent(recorded: Mapping[str, Recorded], name: str, variant: str) -> list[Recorded]:
    """The recordings that a variant may learn from: never the operator's own, for "other models" none of its model."""
    if "transfer=history" not in VARIANTS[variant]:
        return []
    model = name.split("-")[0] if variant == "other models" else name
    return [p for n, p in recorded.items() if n.split("-")[0] != model and n != name]


def _arrival(q: Sequence[float], goal: float) -> int:
    there = np.flatnonzero(np.asarray(q) >= goal)
    return int(there[0]) + 1 if len(there) else TRIALS + 1


# -- clusters drawn ------------------------------------------------------------------------------------------------


class _Seen(KMeans):
    """Keeps the candidates that it chose among, and what it chose."""

    codes: np.ndarray
    chosen: np.ndarray

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        self.codes, selection = proposal.codes[ctx.fresh(proposal.codes)], super().select(ctx, proposal, n)
        self.chosen = selection.codes
        return selection


def _clusters(recorded: Mapping[str, Recorded], out: Path) -> None:
    """Figure 3 of the paper: the candidates of one batch, their latencies, and the rows that k-means measures."""
    made, axes = grid(2 * len(DRAWN), columns=2, width=5.0, height=3.6)
    rows = []
    for name, part in recorded.items():
        seen, chosen = _fifth_batch(part)
        points = part.space.encode(seen)
        slower = np.array([_latency(part, row) for row in seen.tolist()]) / part.best_s
        found = list(clusterings(points, range(1, len(np.unique(points, axis=0)) + 1), np.random.default_rng(0)))
        labels = found[len(chosen) - 1].labels
        rows.append((name, str(len(seen)), str(len(chosen)), f"{_between(np.log2(slower), labels):.2f}"))
        if name not in DRAWN:
            continue
        scatter, curve = axes[2 * DRAWN.index(name) :][:2]
        flat = PCA(2).fit(points)
        shown = scatter.scatter(*flat.transform(points).T, c=slower, s=16, cmap="viridis_r")
        taken = flat.transform(part.space.encode(chosen)).T
        scatter.scatter(*taken, s=80, facecolors="none", edgecolors=COLOURS[1], label="measured")
        scatter.set(title=f"{name}: candidates of the fifth batch", xlabel="first principal component", ylabel="second")
        scatter.margins(y=0.25)  # room for the legend
        scatter.legend(fontsize=7)
        made.colorbar(shown, ax=scatter, label="latency, by the best")
        curve.plot([c.k for c in found], [c.distance / found[0].distance for c in found], color=COLOURS[0])
        curve.axhline(KMeans().threshold, color=COLOURS[1], linestyle="--", label="threshold")
        curve.set(title=name, xlabel="clusters", ylabel="total distance, by one cluster's")
        curve.legend(fontsize=7)
    out.mkdir(parents=True, exist_ok=True)
    made.savefig(out / "clusters.png", dpi=110)
    show(("operator", "candidates", "measured", "variance of log latency that clusters explain"), rows, text=1)


def _fifth_batch(part: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """The candidates that k-means chose among after four batches of 64, and what it chose."""
    plugins, sampler = Plugins(), _Seen()
    surrogate = plugins.build("surrogate", "xgb", inputs="knobs", objective="rank")
    pipeline = Pipeline(part.task, surrogate, plugins.build("searcher", "anneal"), sampler)
    for _ in range(5):
        asked = pipeline.ask(64)
        told = [_trial(row, _latency(part, row)) for row in asked.codes.tolist()]
        pipeline.tell(asked.id, told)
    return sampler.codes, sampler.chosen


def _latency(part: Recorded, row: Sequence[int]) -> float:
    return float(part.latency[part.index[token(row)]])


def _between(y: np.ndarray, labels: np.ndarray) -> float:
    """The share of y's variance that lies between clusters; failures are left out."""
    valid = np.isfinite(y)
    y, labels = y[valid], labels[valid]
    within = sum(((y[labels == c] - y[labels == c].mean()) ** 2).sum() for c in np.unique(labels))
    return float(1 - within / ((y - y.mean()) ** 2).sum())


# -- live ----------------------------------------------------------------------------------------------------------


def _parts_off(scale: float) -> dict[str, tuple[str, ...]]:
    """Changes to recipe adaptive-workflow by variant, numbers of trials scaled."""
    adaptive = tuple(f"stopper.{name}={round(DEFAULTS[name] * scale)}" for name in COUNTS)
    cap, quiet = round(800 * scale), round(400 * scale)
    autotvm = ("stopper=patience", f"stopper.cap={cap}", f"stopper.trials={quiet - 1}", "stopper.gain=0")
    return {
        "whole": adaptive,
        "no transfer": ("transfer=none", *adaptive),
        "no k-means": ("sampler=diverse", *adaptive),
        "(800, 400)": autotvm,
        "autotvm": ("transfer=none", "sampler=diverse", *autotvm),
    }


def _live(models: Sequence[str], out: Path, minutes: float, scale: float) -> None:
    rows = []
    for model, (variant, changes) in product(models, _parts_off(scale).items()):
        slug = "".join(c if c.isalnum() else "-" for c in variant)
        kept = out / f"live-{scale:g}" / f"{model}--{slug}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            sets = [w for text in (*changes, f"batch={round(64 * scale)}") for w in ("--set", text)]
            where = ["--history", str(kept.with_suffix(".db")), "--out", str(kept.with_suffix(".so"))]
            write_json(kept, tuned(model, "--recipe", "adaptive-workflow", *sets, "--minutes", str(minutes), *where))
        got = read_json(kept)
        after = got.get("after_s")
        rows.append(
            (model, variant, str(got["trials"]), f"{got['seconds']:.0f}", f"{1e3 * after:.3g}" if after else "")
        )
    show(("model", "variant", "measured", "seconds", "ms"), rows)


if __name__ == "__main__":
    program(main)
