"""ATFormer's claims on this machine: accuracy, ablation, transfer, replay, live.

    hatch run python studies/atformer/study.py --part accuracy --data datasets/zen5 recordings [--out atformer]
    hatch run python studies/atformer/study.py --part ablation --data datasets/zen5 recordings [--out atformer]
    hatch run python studies/atformer/study.py --part transfer --data datasets/zen5 recordings --devices datasets/*
    hatch run python studies/atformer/study.py --part replay --recordings recordings [--out atformer]
    hatch run python studies/atformer/study.py --part live [--out atformer]

Stop any of it at any time; the same command goes on. `--seeds`, `--epochs`, `--rows`, `--pick` and `--models` make it
smaller.
Training is `tt train`'s, and ends early on operators of the training folds alone; what is judged was never seen.
`live` wants a machine on which nothing else runs. `--variants tt,ansor,autotvm` compares recipes there and in `replay`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from tt_bench import lessons, ranking
from tt_bench.atomic import read_json, write_json
from tt_bench.ceilings import twins
from tt_bench.dataset import algorithms
from tt_bench.errors import BenchError
from tt_bench.launch import program, tuned
from tt_bench.lessons import Lesson
from tt_bench.ranking import Ranked
from tt_bench.real import source
from tt_bench.stats import geometric_interval, quality
from tt_bench.tables import show
from tt_bench.train import Training, rank, train
from tt_bench.variants import Variant, compare_variants
from tt_spec import Plugins

FOLDS = 5
OWN = (16, 64)
HALF = 32
"""Rows that an algorithm has at least where it is judged alone."""

SCHOOLS = (15, 30, 60)
Options = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """A model to train.

    Args:
        piece: Its name among surrogates.
        options: Of the training.
        fixed: Options that the piece also needs when it ranks.
        shuffled: Whether it learns from shuffled labels.
        operators: How many operators it learns from, drawn; None for all.
    """

    piece: str
    options: Options = field(default_factory=dict)
    fixed: Options = field(default_factory=dict)
    shuffled: bool = False
    operators: int | None = None


def _small(**options: Any) -> Model:
    """ATFormer, narrower than the paper's, which takes hours on two cores."""
    return Model("atformer", {"width": 96} | options)


OVER_STATEMENTS = {"inputs": "statements", "objective": "rank"}
TABLE_12: Options = {"max_depth": 6, "gamma": 0.003, "min_child_weight": 2.0, "eta": 0.2}
TREES = Model("xgb", {"rounds": 300} | TABLE_12, OVER_STATEMENTS)

MODELS: dict[str, Model] = {
    "xgb": TREES,
    "lightgbm": Model("lightgbm"),
    "tabnet": Model("tabnet"),
    "lstm": Model("lstm", {"width": 128}),
    "mha": Model("mha", {"width": 96}),
    "mlp": Model("mlp", {"width": 128}),
    "atformer-1L": _small(layers=1),
    "atformer": _small(),
    "atformer shuffled": replace(_small(), shuffled=True),
    **{f"xgb of {n}": replace(TREES, operators=n) for n in SCHOOLS},
    **{f"atformer of {n}": replace(_small(), operators=n) for n in SCHOOLS},
}

ABLATION: dict[str, Model] = {
    "atformer": MODELS["atformer"],
    **{f"loss {x}": _small(loss=x) for x in ("squared", "lambda")},
    "no mask": _small(mask=False),
    **{f"{n} heads": _small(heads=n) for n in (1, 2, 8)},
    **{f"width {n}": _small(width=n) for n in (48, 208)},
    "atformer-1L": MODELS["atformer-1L"],
    **{f"{n} layers": _small(layers=n) for n in (0, 3)},
    "no features of the operator": _small(operator=False),
}

FREEZE = ("body", "embedding", "none")
FIRST: dict[str, tuple[str, ...]] = {
    "weights=none": ("draft.weights=none",),
    "shipped weights": (),
    "per-second": ("sampler=per-second",),
}
"""Recipe `tt` as it searches without what it learned beforehand, as it is, and by gain per second."""

RECIPES = ("tt", "ansor", "autotvm", "adatune", "chameleon", "dynatune", "adaptive-workflow", "random")
LIVE = ("resnet18", "squeezenet1_1", "transformer-encoder", "detector")
"""Models that are held out of the weights; the detector is inside the package rapidocr-onnxruntime."""


@dataclass(frozen=True)
class Study:
    """What is asked for.

    Args:
        known: All operators' rows.
        epochs: Of networks; None leaves the model's own.
    """

    known: list[Lesson]
    out: Path
    seeds: int
    epochs: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("accuracy", "ablation", "transfer", "replay", "live"), required=True)
    parser.add_argument("--data", nargs="+", type=Path, default=[Path("recordings")], help="folders, as of tt train")
    parser.add_argument("--devices", nargs="+", type=Path, help="folders of leave-device-out, over knobs; else --data")
    parser.add_argument("--recordings", type=Path, default=Path("recordings"), help="of replay")
    parser.add_argument("--out", type=Path, default=Path("atformer"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--rows", type=int, default=400, help="of an operator, at most, drawn by its name")
    parser.add_argument("--pick", default="*", help="names of operators, a pattern as in a shell")
    parser.add_argument("--models", default="", help="those of the part, with commas; else all")
    parser.add_argument(
        "--variants", default="", help="of replay and live: ways of recipe tt, or recipes; by the first"
    )
    parser.add_argument("--minutes", default="0.5,1", help="of live, with commas")
    parser.add_argument("--trials", type=int, default=160, help="of a replayed run")
    o = parser.parse_args()
    if o.part == "replay":
        _replay(o.recordings, o.out / "replay", o.seeds, o.trials, _named(o.variants, (*FIRST, *RECIPES)), o.pick)
        return
    if o.part == "live":
        models = o.models.split(",") if o.models else LIVE
        _live(o.out / "live", o.seeds, models, _named(o.variants, (*FIRST, *RECIPES), 2), o.minutes.split(","))
        return
    study = Study(_few(lessons.read(o.data), o.pick, o.rows), o.out, o.seeds, o.epochs)
    _begin(study)
    if o.part == "transfer":
        _transfer(study, o.devices or o.data)
        return
    table = MODELS if o.part == "accuracy" else ABLATION
    names = _named(o.models, tuple(table))
    _accuracy(
        study,
        {name: table[name] for name in names},
        ("operators", "models", "rows") if o.part == "accuracy" else ("operators",),
    )


def _begin(study: Study) -> None:
    """Keep what the figures depend on; a folder with figures of other data or epochs is refused."""
    asked = {"data": lessons.data_hash(study.known), "epochs": study.epochs}
    path = study.out / "study.json"
    if path.exists() and read_json(path) != asked:
        raise BenchError(f"{study.out} holds figures of other data, rows or epochs: choose another --out")
    write_json(path, asked)


def _named(text: str, known: Sequence[str], first: int | None = None) -> list[str]:
    """The names in a text with commas; without one, all known or the first of them."""
    names = [n.strip() for n in text.split(",") if n.strip()] or list(known[:first])
    wrong = [n for n in names if n not in known]
    if wrong:
        raise BenchError(f"{wrong[0]} is not known here (known: {', '.join(known)})")
    return names


def _few(known: list[Lesson], pick: str, rows: int) -> list[Lesson]:
    """At most so many rows of each chosen operator, the same in every run."""
    found = []
    for x in known:
        if fnmatch(x.name, pick):
            at = np.sort(np.random.default_rng(len(x.seconds)).permutation(len(x.seconds))[:rows])
            found.append(_only(x, at))
    if len({x.operator for x in found}) < 3:
        raise BenchError(f"{len(found)} operators match {pick!r}: three are needed to leave some out")
    return found


def _only(x: Lesson, at: np.ndarray) -> Lesson:
    return replace(x, codes=x.codes[at], seconds=x.seconds[at], statements=x.statements[at])


# -- accuracy and ablation: models that never saw what they rank -------------------------------------------------------


def _splits(known: Sequence[Lesson], protocol: str) -> Iterator[tuple[str, list[Lesson], list[Lesson]]]:
    """Name, what is learned and what is judged. "operators": five folds of whole operators, in all their spaces and
    on all devices; "models": each recorded model left out, whatever else has the same operators too; "rows": a fifth of
    every operator's rows, as TenSet's public default does."""
    if protocol == "rows":
        orders = [np.random.default_rng([1, len(x.seconds)]).permutation(len(x.seconds)) for x in known]
        cuts = [len(order) // FOLDS for order in orders]
        judged = [_only(x, order[:n]) for x, order, n in zip(known, orders, cuts, strict=True)]
        yield "a fifth", [_only(x, order[n:]) for x, order, n in zip(known, orders, cuts, strict=True)], judged
        return
    if protocol == "operators":
        groups = {f"fold {i}": apart for i, apart in enumerate(_groups(known))}
    else:
        recorded = [x for x in known if "/" in x.name and "-" in x.name.split("/")[0] and "cores" not in x.name]
        names = sorted({x.name.split("-")[0] for x in recorded})
        groups = {n: {x.operator for x in recorded if x.name.startswith(f"{n}-")} for n in names}
    for name, apart in groups.items():
        school = [x for x in known if x.operator not in apart]
        judged = [x for x in known if x.operator in apart]
        if judged and len({x.operator for x in school}) > 1:
            yield name, school, judged


def _groups(known: Sequence[Lesson]) -> list[set[tuple[str, str]]]:
    """The operators in five folds."""
    operators = sorted({x.operator for x in known})
    order = np.random.default_rng(0).permutation(len(operators))
    return [{operators[j] for j in order[i::FOLDS]} for i in range(FOLDS)]


def _taught(model: Model, school: list[Lesson], seed: int) -> list[Lesson]:
    """What a model learns from of all that it may: a few operators, or shuffled labels."""
    rng = np.random.default_rng(seed)
    if model.operators is not None:
        operators = sorted({x.operator for x in school})
        drawn = {operators[i] for i in rng.permutation(len(operators))[: model.operators]}
        school = [x for x in school if x.operator in drawn]
    return [replace(x, seconds=rng.permutation(x.seconds)) for x in school] if model.shuffled else school


def _trained(study: Study, name: str, model: Model, school: list[Lesson], where: str) -> Path:
    """The file of weights of a model, trained as `tt train` does; what was stopped goes on."""
    path = study.out / "weights" / f"{_slug(name)}--{where}.weights"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = int(where.rsplit("--", 1)[1])
        options = model.options | model.fixed
        if study.epochs is not None and model.piece not in ("xgb", "lightgbm"):
            options |= {"epochs": study.epochs}
        began = time.process_time()
        training = Training((), model.piece, path, options, seed, with_held_out=True)
        card = train(training, data=_taught(model, school, seed)).card
        cost = {
            "core seconds": time.process_time() - began,
            "rounds": card["training"]["rounds"],
            "bytes": path.stat().st_size,
        }
        write_json(path.with_suffix(".cost.json"), cost)
    return path


def _accuracy(study: Study, models: Mapping[str, Model], protocols: Sequence[str]) -> None:
    for seed, protocol, (name, model) in product(range(study.seeds), protocols, models.items()):
        if model.operators is not None and protocol != "operators":
            continue
        for fold, school, judged in _splits(study.known, protocol):
            where = f"{protocol}--{_slug(fold)}--{seed}"
            kept = study.out / "accuracy" / f"{_slug(name)}--{where}.json"
            if kept.exists():
                continue
            path = _trained(study, name, model, school, where)
            made = (model.piece, model.fixed | {"weights": path})
            found = {"zero-shot": _figures(_ranked(Plugins().build("surrogate", made[0], **made[1]), judged))}
            for own in OWN if protocol != "rows" else ():
                found[f"{own} rows"] = _figures(_after(made, judged, own, seed))
            write_json(kept, found | {"cost": read_json(path.with_suffix(".cost.json"))})
            print(f"{protocol}: {name}, {fold}, seed {seed}", flush=True)
    for protocol in protocols:
        _table(study, list(models), protocol)
    ceilings = [(part, _three([_twin_ceiling(x, part) for x in study.known])) for part in PARTS]
    print()
    show(("rows", "pairs that equal features leave to a model"), ceilings, text=1)
    print("noise: tt dataset show FOLDER, for data that were timed twice; chance: 0.5 of pairs")


def _after(model: tuple[str, Options], judged: Sequence[Lesson], own: int, seed: int) -> list[Ranked]:
    """Rows ranked after so many others of the operator, drawn at random, were learned."""
    found = []
    for x in judged:
        if len(x.seconds) < 2 * own:
            continue
        order = np.random.default_rng([seed, own]).permutation(len(x.seconds))
        piece = Plugins().build("surrogate", model[0], **model[1])
        piece.fit([_only(x, order[:own]).group(piece.inputs)], np.random.default_rng(seed))
        found += _ranked(piece, [_only(x, order[own:])])
    return found


def _ranked(piece: Any, some: Sequence[Lesson]) -> list[Ranked]:
    """All rows of operators, their sketches and their templates, each where there are enough."""
    found = []
    for x, r in zip(some, rank(piece, some), strict=True):
        for part, at in _parts(x).items():
            found.append(Ranked(f"{part}: {x.name}", r.scores[at], r.seconds[at], r.weight))
    return found


def _parts(x: Lesson) -> dict[str, np.ndarray]:
    sketches = algorithms(x.task, x.codes) == "sketch"
    found = {"all": np.full(len(sketches), True), "sketches": sketches, "templates": ~sketches}
    return {part: at for part, at in found.items() if part == "all" or at.sum() >= HALF}


PARTS = ("all", "sketches", "templates")


def _figures(some: Sequence[Ranked]) -> dict[str, dict[str, float]]:
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


def _table(study: Study, names: Sequence[str], protocol: str) -> None:
    print(f"\nleave-{protocol}-out, means over operators and seeds, 95 % over operators")
    rows = []
    for name, part, stage in product(names, PARTS, ("zero-shot", *(f"{k} rows" for k in OWN))):
        kept = sorted((study.out / "accuracy").glob(f"{_slug(name)}--{protocol}--*.json"))
        every = _of_part([read_json(p).get(stage, {}) for p in kept], part)
        if any(every):
            shown = [_three(_by_operator(every, figure)) for figure in FIGURES]
            many = str(len({n for e in every for n in e}))
            rows.append((name, part, stage, many, *shown, _top(every, 1), _top(every, 5)))
    show(("model", "rows", "after", "operators", *FIGURES, "top-1", "top-5"), rows, text=3)
    _costs(study, names, protocol)


def _costs(study: Study, names: Sequence[str], protocol: str) -> None:
    """What one training took, of one core: means."""
    rows = []
    for name in names:
        kept = sorted((study.out / "accuracy").glob(f"{_slug(name)}--{protocol}--*.json"))
        costs = [read_json(p)["cost"] for p in kept]
        if costs:
            mean = {k: float(np.mean([c[k] for c in costs])) for k in costs[0]}
            rows.append((name, f"{mean['core seconds']:.0f}", f"{mean['rounds']:.0f}", f"{mean['bytes'] / 1e6:.2f}"))
    print()
    show(("model", "core seconds of a training", "rounds", "MB of weights"), rows, text=1)


def _by_operator(every: Sequence[Mapping[str, Mapping[str, float]]], figure: str) -> list[float]:
    names = sorted({n for e in every for n in e})
    found = [[e[n][figure] for e in every if figure in e.get(n, {})] for n in names]
    return [float(np.mean(values)) for values in found if values]


def _top(every: Sequence[Mapping[str, Mapping[str, float]]], k: int) -> str:
    """TenSet's top-k score: sum of weighted best seconds over that of the best among k. Operators whose k rows all fail
    would make it 0: they are left out and counted."""
    rows = [f for e in every for f in e.values()]
    valid = [f for f in rows if f[f"best of {k}"]]
    best = sum(f["weighted best_s"] for f in valid)
    found = sum(f["weighted best_s"] / f[f"best of {k}"] for f in valid)
    failed = f", {len(rows) - len(valid)} failed" if len(valid) < len(rows) else ""
    return f"{best / found:.3f}{failed}" if valid else ""


def _twin_ceiling(x: Lesson, part: str) -> float:
    at = _parts(x).get(part)
    if at is None:
        return math.nan
    where = np.flatnonzero(at)
    names = [x.statements[i : i + 1].values.tobytes() for i in where]
    same, counted, _ = twins(names, x.seconds[where])
    return 1 - same / counted / 2 if counted else math.nan


def _three(values: Sequence[float]) -> str:
    mid, low, high = ranking.mean_interval(values)
    return "" if math.isnan(mid) else f"{mid:.3f} ({low:.3f} to {high:.3f})"


# -- transfer: how to learn on -----------------------------------------------------------------------------------------


def _transfer(study: Study, folders: Sequence[Path]) -> None:
    model = MODELS["atformer"]
    for seed, (fold, school, judged) in product(range(study.seeds), _splits(study.known, "operators")):
        where = f"operators--{_slug(fold)}--{seed}"
        kept = study.out / "transfer" / f"{where}.json"
        if kept.exists():
            continue
        path = _trained(study, "atformer", model, school, where)
        built = Plugins().build("surrogate", model.piece, weights=path)
        found = {"zero-shot": _figures(_ranked(built, judged))}
        for freeze, own in product(FREEZE, OWN):
            made = (model.piece, {"weights": path, "freeze": freeze})
            found[f"{freeze}, {own} rows"] = _figures(_after(made, judged, own, seed))
        write_json(kept, found)
        print(f"transfer: {fold}, seed {seed}", flush=True)
    every = [read_json(p) for p in sorted((study.out / "transfer").glob("operators--*.json"))]
    rows = [
        (s, part, *(_three(_by_operator(_of_part([e[s] for e in every], part), f)) for f in FIGURES[:3]))
        for s, part in product(list(every[0]) if every else [], PARTS)
    ]
    print("\nfrozen while fine-tuning, and own rows; zero-shot first")
    show(("frozen, own rows", "rows", *FIGURES[:3]), rows, text=2)
    _devices(study.out / "devices", lessons.read(folders, "knobs"))


BEFOREHAND: Options = {"inputs": "knobs", "objective": "regression", "rounds": 320, "max_depth": 6, "eta": 0.1}
"""The trees that ship. They read knobs, which can be read of an older space too; its statements cannot be computed."""


def _devices(out: Path, known: list[Lesson]) -> None:
    """Leave-device-out beside leave-operators-out, for each pair of devices: trees learn on one and judge another."""
    devices, rows = sorted({x.device for x in known}), []
    for taught, judged, left_out in product(devices, devices, (True, False)):
        school, exam = ([x for x in known if x.device == d] for d in (taught, judged))
        mine = {x.operator for x in school}
        if not left_out:
            exam = [x for x in exam if x.operator in mine]
        if not left_out and (taught == judged or not exam):
            continue
        case = "left out" if left_out else "known"
        kept = out / f"{_slug(taught)}--{_slug(judged)}--{_slug(case)}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            groups = _groups(known) if left_out else [set()]
            ranked = [r for apart in groups for r in _by_trees(kept.with_suffix(".weights"), school, exam, apart)]
            write_json(kept, _figures(ranked))
        for part in PARTS:
            some = _of_part([read_json(kept)], part)
            rows.append(
                (taught, judged, case, part, str(len(some[0])), *(_three(_by_operator(some, f)) for f in FIGURES))
            )
    print("\ntrees over knobs: learned on one device, judged on another; operators left out, or known from there")
    show(("learned on", "judged on", "operators", "rows", "how many", *FIGURES), rows, text=4)


def _by_trees(path: Path, school: list[Lesson], exam: list[Lesson], apart: set[tuple[str, str]]) -> list[Ranked]:
    """Operators apart, or all if there are none, ranked by trees that learned from others."""
    school = [x for x in school if x.operator not in apart]
    exam = [x for x in exam if x.operator in apart or not apart]
    if not school or not exam:
        return []
    train(Training((), "xgb", path, BEFOREHAND, 0, patience=60, with_held_out=True), data=school)
    fixed = {k: BEFOREHAND[k] for k in ("inputs", "objective")}
    found = _ranked(Plugins().build("surrogate", "xgb", weights=path, **fixed), exam)
    path.unlink()
    return found


def _of_part(every: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    return [{n: f for n, f in e.items() if n.startswith(f"{part}: ")} for e in every]


# -- replay: the first batch, gain per second, recipes -----------------------------------------------------------------


def _replay(recordings: Path, out: Path, seeds: int, trials: int, names: Sequence[str], pick: str) -> None:
    from tt_bench.compare import units
    from tt_core.host import Host

    files = [p for p in sorted(recordings.glob("*-template.json.gz")) if fnmatch(p.name, pick)]
    variants = {n: _variant(n) for n in names}
    options: Options = {"seeds": seeds, "trials": trials, "say": print}
    done = compare_variants(Host(), units(files, []), variants, out, **options)
    base, rows = names[0], []
    for name in names[1:]:
        ratios: dict[str, list[float]] = {}
        for unit in done.units:
            pairs = list(zip(done.of(name, unit), done.of(base, unit), strict=True))
            best = done.best[unit]
            for figure, of in _course(best).items():
                logs = [math.log(of(a) / of(b)) for a, b in pairs if math.isfinite(of(a)) and math.isfinite(of(b))]
                ratios.setdefault(figure, []).append(math.exp(float(np.mean(logs))) if logs else math.nan)
        rows.append((name, *(_ratio(r) for r in ratios.values())))
    print(f"\n{len(done.units)} operators, {seeds} seeds, by {base}; geometric means, 95 % over operators")
    show(("variant", *_course(1.0)), rows, text=1)


def _course(best: float) -> dict[str, Any]:
    """Figures of a run: speeds, where more is better, and trials and seconds until 98 %, where less is."""

    def speed(rows: int) -> Any:
        return lambda run: max(float(quality(run, best)[min(rows, len(run.t)) - 1]), 1e-9)

    def arrival(run: Any) -> int:
        there = np.flatnonzero(quality(run, best) >= 0.98 - 1e-12)
        return int(there[0]) if len(there) else len(run.t) - 1  # one that never arrives counts with all its trials

    return {
        "speed after 16": speed(16),
        "speed after 32": speed(32),
        "speed at the end": speed(1 << 30),
        "trials to 98 %": lambda run: arrival(run) + 1,
        "seconds to 98 %": lambda run: run.t[arrival(run)],
    }


def _ratio(values: Sequence[float]) -> str:
    known = [v for v in values if math.isfinite(v)]
    mid, low, high = geometric_interval(known, np.random.default_rng(0))
    return f"{mid:.3f} ({low:.3f} to {high:.3f})"


# -- live --------------------------------------------------------------------------------------------------------------


def _live(out: Path, seeds: int, models: Sequence[str], variants: Sequence[str], minutes: Sequence[str]) -> None:
    """Commands of so many minutes, variants in turns: latency of the file that each writes, by the first variant's."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for seed, model, long, variant in product(range(seeds), models, minutes, variants):
        kept = out / f"{_slug(model)}--{_slug(variant)}--{long}--{seed}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            chosen = _variant(variant)
            more = [w for text in chosen.sets for w in ("--set", text)]
            where = ["--history", str(kept.with_suffix(".db")), "--out", str(kept.with_suffix(".so"))]
            about = ["--recipe", chosen.recipe, "--minutes", long, "--seed", str(seed)]
            name, *shape = source(model)
            write_json(kept, tuned(name, *shape, *about, *more, *where))
            print(f"live: {kept.name}", flush=True)
        after = read_json(kept).get("after_s")
        found.setdefault((model, long, variant), []).append(math.nan if after is None else float(after))
    rows = []
    for long, variant in product(minutes, variants[1:]):
        ratios = []
        for model in models:
            pairs = zip(found[model, long, variant], found[model, long, variants[0]], strict=True)
            ratios.append(geometric_mean([a / b for a, b in pairs]))
            rows.append((model, long, variant, f"{ratios[-1]:.3f}"))
        rows.append(("all", long, variant, _ratio(ratios)))
    print(f"\nlatency by {variants[0]}, {seeds} seeds; geometric means, of all models with 95 % over models")
    show(("model", "minutes", "variant", "latency"), rows, text=3)


def _variant(name: str) -> Variant:
    """Recipe `tt` in one of its ways, or another recipe."""
    return Variant("tt", FIRST[name]) if name in FIRST else Variant(name)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)


if __name__ == "__main__":
    program(main)
