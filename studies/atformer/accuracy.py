"""Accuracy and ablation: models rank what they never saw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from cost_models import Model, Options, Study, only, slug, splits, trained
from tt_bench import ranking
from tt_bench.atomic import read_json, write_json
from tt_bench.ceilings import twins
from tt_bench.dataset import algorithms
from tt_bench.lessons import Lesson
from tt_bench.ranking import Ranked
from tt_bench.tables import show
from tt_bench.train import rank
from tt_spec import Plugins

OWN = (16, 64)
HALF = 32
"""Rows that an algorithm has at least where it is judged alone."""


def accuracy(study: Study, models: Mapping[str, Model], protocols: Sequence[str]) -> None:
    """Train each model on each split, and print how it ranks what was left out, at once and after own rows."""
    for seed, protocol, (name, model) in product(range(study.seeds), protocols, models.items()):
        if model.operators is not None and protocol != "operators":
            continue
        for fold, school, judged in splits(study.known, protocol):
            where = f"{protocol}--{slug(fold)}--{seed}"
            kept = study.out / "accuracy" / f"{slug(name)}--{where}.json"
            if kept.exists():
                continue
            path = trained(study, name, model, school, where)
            made = (model.piece, model.fixed | {"weights": path})
            found = {"zero-shot": figures(ranked_by(Plugins().build("surrogate", made[0], **made[1]), judged))}
            for own in OWN if protocol != "rows" else ():
                found[f"{own} rows"] = figures(after(made, judged, own, seed))
            write_json(kept, found | {"cost": read_json(path.with_suffix(".cost.json"))})
            print(f"{protocol}: {name}, {fold}, seed {seed}", flush=True)
    for protocol in protocols:
        table(study, list(models), protocol)
    ceilings = [(part, three([_twin_ceiling(x, part) for x in study.known])) for part in PARTS]
    print()
    show(("rows", "pairs that equal features leave to a model"), ceilings, text=1)
    print("noise: tt dataset show FOLDER, for data that were timed twice; chance: 0.5 of pairs")


def after(model: tuple[str, Options], judged: Sequence[Lesson], own: int, seed: int) -> list[Ranked]:
    """Rows ranked after so many others of the operator, drawn at random, were learned."""
    found = []
    for x in judged:
        if len(x.seconds) < 2 * own:
            continue
        order = np.random.default_rng([seed, own]).permutation(len(x.seconds))
        piece = Plugins().build("surrogate", model[0], **model[1])
        piece.fit([only(x, order[:own]).group(piece.inputs)], np.random.default_rng(seed))
        found += ranked_by(piece, [only(x, order[own:])])
    return found


def ranked_by(piece: Any, some: Sequence[Lesson]) -> list[Ranked]:
    """All rows of operators, their sketches and their templates, each where there are enough."""
    found = []
    for x, r in zip(some, rank(piece, some), strict=True):
        for part, at in parts(x).items():
            found.append(Ranked(f"{part}: {x.name}", r.scores[at], r.seconds[at], r.weight))
    return found


def parts(x: Lesson) -> dict[str, np.ndarray]:
    """Which rows `(n,)` are judged together: all, and sketches and templates where there are `HALF` of them."""
    sketches = algorithms(x.task, x.codes) == "sketch"
    found = {"all": np.full(len(sketches), True), "sketches": sketches, "templates": ~sketches}
    return {part: at for part, at in found.items() if part == "all" or at.sum() >= HALF}


PARTS = ("all", "sketches", "templates")


def figures(some: Sequence[Ranked]) -> dict[str, dict[str, float]]:
    """By operator; top-k as the seconds that TenSet's score divides."""
    found = {}
    for r in some:
        if np.isfinite(r.seconds).sum() < 2:
            continue
        best = float(r.seconds.min())
        got = {
            "pairs": ranking.pair_accuracy(r.scores, r.seconds),
            "pairs 5 % apart": ranking.pair_accuracy(r.scores, r.seconds, 0.05),
            **{f"best of {k}": ranking.best_of(r.scores, r.seconds, k) for k in (1, 5, 16)},
            "best of 16 by chance": ranking.best_of_chance(r.seconds, 16),
            "weighted best_s": best * r.weight,
        }
        found[r.name] = {k: v for k, v in got.items() if not math.isnan(v)}
    return found


FIGURES = ("pairs", "pairs 5 % apart", "best of 16", "best of 16 by chance")


def table(study: Study, names: Sequence[str], protocol: str) -> None:
    """Print what is kept of these models under a protocol."""
    print(f"\nleave-{protocol}-out, means over operators and seeds, 95 % over operators")
    rows = []
    for name, part, stage in product(names, PARTS, ("zero-shot", *(f"{k} rows" for k in OWN))):
        kept = sorted((study.out / "accuracy").glob(f"{slug(name)}--{protocol}--*.json"))
        every = of_part([read_json(p).get(stage, {}) for p in kept], part)
        if any(every):
            shown = [three(by_operator(every, figure)) for figure in FIGURES]
            many = str(len({n for e in every for n in e}))
            rows.append((name, part, stage, many, *shown, top(every, 1), top(every, 5)))
    show(("model", "rows", "after", "operators", *FIGURES, "top-1", "top-5"), rows, text=3)
    _costs(study, names, protocol)


def _costs(study: Study, names: Sequence[str], protocol: str) -> None:
    """What one training took, of one core: means."""
    rows = []
    for name in names:
        kept = sorted((study.out / "accuracy").glob(f"{slug(name)}--{protocol}--*.json"))
        costs = [read_json(p)["cost"] for p in kept]
        if costs:
            mean = {k: float(np.mean([c[k] for c in costs])) for k in costs[0]}
            rows.append((name, f"{mean['core seconds']:.0f}", f"{mean['rounds']:.0f}", f"{mean['bytes'] / 1e6:.2f}"))
    print()
    show(("model", "core seconds of a training", "rounds", "MB of weights"), rows, text=1)


def by_operator(every: Sequence[Mapping[str, Mapping[str, float]]], figure: str) -> list[float]:
    """A figure of each operator, the mean of its seeds and folds."""
    names = sorted({n for e in every for n in e})
    found = [[e[n][figure] for e in every if figure in e.get(n, {})] for n in names]
    return [float(np.mean(values)) for values in found if values]


def top(every: Sequence[Mapping[str, Mapping[str, float]]], k: int) -> str:
    """TenSet's top-k score: sum of weighted best seconds over that of the best among k. Operators whose k rows all fail
    would make it 0: they are left out and counted."""
    rows = [f for e in every for f in e.values()]
    valid = [f for f in rows if f[f"best of {k}"]]
    best = sum(f["weighted best_s"] for f in valid)
    found = sum(f["weighted best_s"] / f[f"best of {k}"] for f in valid)
    failed = f", {len(rows) - len(valid)} failed" if len(valid) < len(rows) else ""
    return f"{best / found:.3f}{failed}" if valid else ""


def _twin_ceiling(x: Lesson, part: str) -> float:
    at = parts(x).get(part)
    if at is None:
        return math.nan
    where = np.flatnonzero(at)
    names = [x.statements[i : i + 1].values.tobytes() for i in where]
    same, counted, _ = twins(names, x.seconds[where])
    return 1 - same / counted / 2 if counted else math.nan


def three(values: Sequence[float]) -> str:
    """Mean with its 95 % interval as text; empty where there is none."""
    mid, low, high = ranking.mean_interval(values)
    return "" if math.isnan(mid) else f"{mid:.3f} ({low:.3f} to {high:.3f})"


def of_part(every: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    """The figures of one of `PARTS` alone."""
    return [{n: f for n, f in e.items() if n.startswith(f"{part}: ")} for e in every]
