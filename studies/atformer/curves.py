"""Curves, as in ATFormer's Figures 7 and 8: how soon each cost model finds a fast program, with weights and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from accuracy import parts, three
from cost_models import MODELS, Study, only, slug, splits, trained
from tt_bench.atomic import read_json, write_json
from tt_bench.lessons import Lesson
from tt_bench.pictures import COLOURS, grid
from tt_bench.stats import geometric_text
from tt_bench.tables import show
from tt_bench.train import rank
from tt_spec import Plugins

CURVES = ("xgb", "lightgbm", "lstm", "mha", "mlp", "atformer-1L", "atformer")
WAYS = ("from nothing", "with weights")
BATCH, TRIALS = 16, 128
AFTER = (16, 32, 64)
SHOWN = ("xgb", "mha", "atformer")
CHANCE = "random"

Courses = dict[str, list[list[float]]]
"""By operator: share of the best recorded speed that is there after each trial, a list a seed."""


def curves(study: Study, recorded: Sequence[Lesson], names: Sequence[str]) -> None:
    """Tune the recorded sketches of each model with weights that learned from the others' operators, and without."""
    found: dict[tuple[str, str], Courses] = {}
    for seed, name, (group, school, judged) in product(range(study.seeds), names, splits(study.known, "models")):
        apart = {x.operator for x in judged}
        exam = [only(x, np.flatnonzero(parts(x)["sketches"])) for x in recorded if _asked(x, apart)]
        for way in WAYS:
            kept = study.out / "curves" / f"{slug(name)}--{slug(way)}--{slug(group)}--{seed}.json"
            if not kept.exists():
                model = MODELS[name]
                options = dict(model.fixed)
                if way == "with weights":
                    options["weights"] = trained(study, name, model, school, f"models--{slug(group)}--{seed}")
                else:
                    options |= {k: v for k, v in model.options.items() if k != "rounds"}
                write_json(kept, {x.name: _course(model.piece, options, x, seed) for x in exam})
                print(f"curves: {name} {way}, {group}, seed {seed}", flush=True)
            for operator, course in read_json(kept).items():
                found.setdefault((name, way), {}).setdefault(operator, []).append(course)
        for x in exam:
            known = found.setdefault((CHANCE, ""), {}).setdefault(x.name, [])
            if len(known) <= seed:
                known.append(_best_so_far(x, _order(x, seed)[:TRIALS]))
    _tables(found, names)
    best_s = {x.name: float(x.seconds.min()) for x in recorded}
    _draw(study, found, [n for n in SHOWN if n in names], best_s)


def _asked(x: Lesson, operators: set[tuple[str, str]]) -> bool:
    return x.operator in operators and "sketches" in parts(x)


def _order(x: Lesson, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, len(x.seconds)]).permutation(len(x.seconds))


def _course(piece: str, options: Mapping[str, Any], x: Lesson, seed: int) -> list[float]:
    """Batches of recorded rows with the highest scores, the model fitted after each; the first batch is drawn where it
    has no weights."""
    model = Plugins().build("surrogate", piece, **options)
    left, taken = _order(x, seed), np.zeros(0, dtype=np.int64)
    while len(taken) < TRIALS and len(left):
        if len(taken) or "weights" in options:
            (ranked,) = rank(model, [only(x, left)])
            left = left[np.argsort(-ranked.scores, kind="stable")]
        taken, left = np.concatenate([taken, left[:BATCH]]), left[BATCH:]
        model.fit([only(x, taken).group(model.inputs)], np.random.default_rng(seed))
    return _best_so_far(x, taken)


def _best_so_far(x: Lesson, taken: np.ndarray) -> list[float]:
    return [float(s) for s in x.seconds.min() / np.minimum.accumulate(x.seconds[taken])]


def arrival(course: Sequence[float], share: float = 0.95) -> int:
    """Trials until a share of the best speed is there; one that never arrives counts with all its trials."""
    there = np.flatnonzero(np.asarray(course) >= share - 1e-12)
    return int(there[0]) + 1 if len(there) else len(course)


def _tables(found: Mapping[tuple[str, str], Courses], names: Sequence[str]) -> None:
    rows = []
    for name, way in [(CHANCE, ""), *product(names, WAYS)]:
        mine = found[name, way]
        shares = [[float(np.mean([c[k - 1] for c in cs])) for cs in mine.values()] for k in AFTER]
        less = ["", ""]
        if way == WAYS[1]:
            less[0] = _ratio(mine, found[name, WAYS[0]])
        if name != "xgb" and ("xgb", way) in found:
            less[1] = _ratio(mine, found["xgb", way])
        rows.append((name, way, *map(three, shares), *less))
    print("\nrecorded sketches: share of the best speed after so many trials; trials to 95 % of it by those of another")
    show(("model", "", *(f"after {k}" for k in AFTER), "by itself from nothing", "by xgb alike"), rows, text=2)


def _ratio(mine: Courses, other: Courses) -> str:
    """Trials to 95 % of the best by those of another, operator by operator."""
    logs = [
        float(np.mean([np.log(arrival(c)) for c in cs]) - np.mean([np.log(arrival(c)) for c in other[operator]]))
        for operator, cs in mine.items()
    ]
    return geometric_text(np.exp(logs).tolist())


def _draw(
    study: Study, found: Mapping[tuple[str, str], Courses], names: Sequence[str], best_s: Mapping[str, float]
) -> None:
    made, (left, right) = grid(2, width=5.2, height=3.6)
    drawn = [(CHANCE, ""), *product(names, WAYS)]
    hues = dict(zip((CHANCE, *names), COLOURS, strict=False))
    for name, way in drawn:
        style: dict[str, Any] = {"color": hues[name], "linestyle": "--" if way == WAYS[0] else "-", "where": "post"}
        mean = {o: np.mean(cs, axis=0) for o, cs in found[name, way].items()}
        x = np.arange(1, TRIALS + 1)
        resnet = [best_s[o] / np.maximum(share, 1e-9) for o, share in mean.items() if o.startswith("resnet18")]
        left.step(x, 1e3 * np.sum(resnet, axis=0), label=f"{name} {way}".strip(), **style)
        right.step(x, np.mean(list(mean.values()), axis=0), **style)
    for ax in (left, right):
        seen = np.concatenate([np.asarray(line.get_ydata())[BATCH // 2 :] for line in ax.lines])
        ax.set_ylim(0.95 * seen.min(), 1.05 * seen.max())
    left.set_title("ResNet-18, as in Figure 8", fontsize=9)
    left.set_ylabel("sum of the best sketches, ms", fontsize=8)
    right.set_title("all recorded sketches, as in Figure 7", fontsize=9)
    right.set_ylabel("share of the best speed, mean", fontsize=8)
    for ax in (left, right):
        ax.set_xlabel("trials of each operator", fontsize=8)
        ax.set_xlim(BATCH // 2, TRIALS)
    made.legend(loc="outside upper center", ncols=4, frameon=False, fontsize=8)
    made.savefig(study.out / "curves.png", dpi=110)
    print(f"\n{study.out / 'curves.png'}")
