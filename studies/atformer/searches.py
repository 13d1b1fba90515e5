"""Searches, replayed and live: the first minute, gain per second, recipes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from cost_models import Options, slug
from tt_bench.atomic import read_json, write_json
from tt_bench.launch import tuned
from tt_bench.real import source
from tt_bench.stats import geometric_text, quality
from tt_bench.tables import show
from tt_bench.variants import Variant, compare_variants

FIRST: dict[str, tuple[str, ...]] = {
    "weights=none": ("draft.weights=none",),
    "shipped weights": (),
    "per-second": ("sampler=per-second",),
    "racing": ("evaluator=racing", "evaluator.inner=fixed"),
    "network": ("surrogate=atformer", "surrogate.weights=shipped"),
    "network and plain draft": ("surrogate=atformer", "surrogate.weights=shipped", "draft.weights=none"),
}
"""Recipe `tt` as it searches without what it learned beforehand, as it is, by gain per second, with timings that end
where a candidate is worse than the incumbent, and with the shipped network as its surrogate, beside the draft that
learned and beside one that did not."""

RECIPES = ("tt", "ansor", "atformer", "autotvm", "adatune", "chameleon", "dynatune", "adaptive-workflow", "random")
WHOLE: dict[str, dict[str, int]] = {
    "resnet18": {"64": 4, "128": 3, "128-stride": 1, "256": 3, "512": 3, "stem": 1},
    "mobilenet": {"1x1-24": 1, "1x1-96": 1, "dw-96": 1, "dw-192": 1},
    "encoder": {"qkv": 1, "scores": 1, "up": 1, "down": 1},
}
"""The recorded part of three models: how often each recorded operator occurs in it."""
LIVE = ("resnet18", "squeezenet1_1", "transformer-encoder", "detector")
"""Models that are held out of the weights; the detector is inside the package rapidocr-onnxruntime."""


def replay(
    recordings: Path, out: Path, seeds: int, trials: int, names: Sequence[str], pick: str, whole: bool = False
) -> None:
    """Variants on recorded templates, one by one or composed to models, by the first variant: speed by trials and by
    seconds, trials and seconds to 98 % of the best."""
    from tt_bench.compare import units
    from tt_core.host import Host

    found = composed(recordings, out, pick) if whole else sorted(recordings.glob("*-template.json.gz"))
    files = [p for p in found if fnmatch(p.name, pick)]
    variants = {n: _variant(n) for n in names}
    options: Options = {"seeds": seeds, "trials": trials, "say": print}
    done = compare_variants(Host(), units(files, [], whole=whole), variants, out, **options)
    what, rows, each = "models" if whole else "operators", [], []
    for name in names[1:]:
        ratios = {unit: _ratios(done, name, names[0], unit) for unit in done.units}
        means = [geometric_text([_mean(ratios[u][figure]) for u in done.units]) for figure in _course(1.0)]
        rows.append((name, *means))
        each += [(u, name, *map(geometric_text, ratios[u].values())) for u in done.units]
    print(f"\n{len(done.units)} {what}, {seeds} seeds, by {names[0]}; geometric means, 95 % over {what}")
    show(("variant", *_course(1.0)), rows, text=1)
    print("\nEach alone, 95 % over seeds")
    show(("replayed", "variant", *_course(1.0)), sorted(each), text=2)


def composed(recordings: Path, out: Path, pick: str) -> list[Path]:
    """Recordings of the models of `WHOLE`, with the operators as often as they occur there."""
    from tt_bench.files import load, write_t4

    out.mkdir(parents=True, exist_ok=True)
    made = []
    for model, operators in WHOLE.items():
        path = out / f"{model}-whole.json.gz"
        if fnmatch(path.name, pick):
            known = {n: load(recordings / f"{model}-{n}-template.json.gz") for n in operators}
            parts = [
                replace(p, whole=replace(p.whole, weight=float(operators[n]), name=f"{model}-{n}"))
                for n, recording in known.items()
                for p in recording.parts
                if len(p.rows) > 1  # not the layouts, which a file changes once
            ]
            write_t4(replace(next(iter(known.values())), model=model, parts=tuple(parts)), path)
            made.append(path)
    return made


def _ratios(done: Any, name: str, base: str, unit: str) -> dict[str, list[float]]:
    """By figure and seed; without seeds with which one of the two has none, as where a model lacks a program yet."""
    pairs = list(zip(done.of(name, unit), done.of(base, unit), strict=True))
    known = {figure: [(of(a), of(b)) for a, b in pairs] for figure, of in _course(done.best[unit]).items()}
    return {figure: [a / b for a, b in some if a * b > 0] for figure, some in known.items()}


def _course(best: float) -> dict[str, Any]:
    """Figures of a run: speeds, where more is better, 0 before there is a program for all, and trials and seconds until
    98 %, where less is."""

    def speed(rows: int) -> Any:
        return lambda run: float(quality(run, best)[min(rows, len(run.t)) - 1])

    def speed_at(seconds: float) -> Any:
        return lambda run: float([0.0, *quality(run, best)][int(np.searchsorted(run.t, seconds, side="right"))])

    def arrival(run: Any) -> int:
        there = np.flatnonzero(quality(run, best) >= 0.98 - 1e-12)
        return int(there[0]) if len(there) else len(run.t) - 1  # one that never arrives counts with all its trials

    return {
        "speed after 16": speed(16),
        "speed after 32": speed(32),
        "speed after 30 s": speed_at(30.0),
        "speed after 60 s": speed_at(60.0),
        "speed at the end": speed(1 << 30),
        "trials to 98 %": lambda run: arrival(run) + 1,
        "seconds to 98 %": lambda run: run.t[arrival(run)],
    }


def live(out: Path, seeds: int, models: Sequence[str], variants: Sequence[str], minutes: Sequence[str]) -> None:
    """Commands of so many minutes, variants in turns: latency of the file that each writes by the first variant's,
    both timed in turns, and what its operators add up to by that of the first."""
    from tt_core.host import Host

    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    out.mkdir(parents=True, exist_ok=True)
    for seed, model, long in product(range(seeds), models, minutes):
        kept = [_tuned(out, model, variant, long, seed) for variant in variants]
        race = out / f"{slug(model)}--{long}--{seed}.race.json"
        known: dict[str, float] = read_json(race) if race.exists() else {}
        if not set(variants) <= set(known):
            known = dict(zip(variants, Host().raced([k.with_suffix(".so") for k in kept]), strict=True))
            write_json(race, known)
        sums = [_sum_s(read_json(k)) for k in kept]
        for variant, sum_s in zip(variants[1:], sums[1:], strict=True):
            pair = known[variant] / known[variants[0]], sum_s / sums[0]
            found.setdefault((long, variant), []).append((models.index(model), *pair))
    rows = []
    for (long, variant), pairs in found.items():
        by_model = [[p[1:] for p in pairs if p[0] == i] for i in range(len(models))]
        means = [[_mean([q[k] for q in some]) for some in by_model] for k in (0, 1)]
        rows += [
            (model, long, variant, *(f"{m[i]:.3f}" if math.isfinite(m[i]) else "" for m in means))
            for i, model in enumerate(models)
        ]
        rows.append(("all", long, variant, *map(geometric_text, means)))
    print(f"\nby {variants[0]}, {seeds} seeds; geometric means, of all models with 95 % over models")
    show(("model", "minutes", "variant", "latency", "sum of operators"), rows, text=3)


def _tuned(out: Path, model: str, variant: str, minutes: str, seed: int) -> Path:
    """What the command said, beside the file that it wrote."""
    kept = out / f"{slug(model)}--{slug(variant)}--{minutes}--{seed}.json"
    if not kept.exists():
        chosen = _variant(variant)
        more = [w for text in chosen.sets for w in ("--set", text)]
        where = ["--history", str(kept.with_suffix(".db")), "--out", str(kept.with_suffix(".so"))]
        about = ["--recipe", chosen.recipe, "--minutes", minutes, "--seed", str(seed)]
        name, *shape = source(model)
        write_json(kept, tuned(name, *shape, *about, *more, *where))
        print(f"live: {kept.name}", flush=True)
    return kept


def _sum_s(result: Mapping[str, Any]) -> float:
    """Seconds of all operators alone; NaN while one has no program."""
    known = [(t["weight"], t["best_s"]) for t in result["tasks"]]
    return math.nan if any(s is None for _, s in known) else sum(w * s for w, s in known)


def _mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios) if len(ratios) and all(map(math.isfinite, ratios)) else math.nan


def _variant(name: str) -> Variant:
    """Recipe `tt` in one of its ways, or another recipe."""
    return Variant("tt", FIRST[name]) if name in FIRST else Variant(name)
