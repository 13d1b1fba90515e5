"""ATFormer's claims on this machine: accuracy, ablation, transfer, replay, live.

    hatch run python studies/atformer/study.py --part accuracy --data datasets/mine recordings [--out atformer]
    hatch run python studies/atformer/study.py --part ablation --data datasets/mine recordings [--out atformer]
    hatch run python studies/atformer/study.py --part transfer --data datasets/mine recordings [--out atformer]
    hatch run python studies/atformer/study.py --part replay --recordings recordings [--out atformer]
    hatch run python studies/atformer/study.py --part live [--out atformer]

Stop any of it at any time; the same command goes on. `--seeds`, `--epochs`, `--rows`, `--pick` and `--models` make it
smaller.
Training is `tt train`'s, and ends early on operators of the training folds alone; what is judged was never seen.
`live` wants a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench import lessons, ranking
from tt_bench.atomic import read_json, write_json
from tt_bench.ceilings import twins
from tt_bench.errors import BenchError
from tt_bench.launch import program, tuned
from tt_bench.lessons import Lesson
from tt_bench.stats import geometric_interval, quality
from tt_bench.tables import show
from tt_bench.train import Training, rank, train
from tt_spec import Plugins

FOLDS = 5
OWN = (16, 64)
Options = dict[str, Any]

MODELS: dict[str, tuple[str, Options]] = {
    "xgb": ("xgb", {"inputs": "statements", "objective": "rank"}),
    "lightgbm": ("lightgbm", {}),
    "tabnet": ("tabnet", {}),
    "lstm": ("lstm", {"width": 128}),
    "mha": ("mha", {"width": 96}),
    "mlp": ("mlp", {"width": 128}),
    "atformer-1L": ("atformer", {"width": 96, "layers": 1}),
    "atformer": ("atformer", {"width": 96}),
    "atformer shuffled": ("atformer", {"width": 96}),
}
"""Models of `accuracy`, narrower than the paper's: those take hours on two cores."""

ABLATION: dict[str, tuple[str, Options]] = {
    "atformer": ("atformer", {"width": 96}),
    **{f"loss {x}": ("atformer", {"width": 96, "loss": x}) for x in ("squared", "lambda")},
    "no mask": ("atformer", {"width": 96, "mask": False}),
    **{f"{n} heads": ("atformer", {"width": 96, "heads": n}) for n in (1, 2, 8)},
    **{f"width {n}": ("atformer", {"width": n}) for n in (48, 208)},
    **{f"{n} layers": ("atformer", {"width": 96, "layers": n}) for n in (0, 1, 3)},
    "no features of the operator": ("atformer", {"width": 96, "operator": False}),
}

FREEZE = ("body", "embedding", "none")
FIRST: dict[str, tuple[str, ...]] = {
    "weights=none": ("draft.weights=none",),
    "shipped weights": (),
    "per-second": ("sampler=per-second",),
}
"""Recipe `tt` as it searches without what it learned beforehand, as it is, and by gain per second."""

RECIPES = ("tt", "ansor", "autotvm", "adatune", "chameleon", "dynatune", "adaptive-workflow", "random")
LIVE = ("squeezenet1_1", "mobilenet_v2", "bert-tiny")


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
    parser.add_argument("--recordings", type=Path, default=Path("recordings"), help="of replay")
    parser.add_argument("--out", type=Path, default=Path("atformer"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--rows", type=int, default=400, help="of an operator, at most, drawn by its name")
    parser.add_argument("--pick", default="*", help="names of operators, a pattern as in a shell")
    parser.add_argument("--models", default="", help="those of the part, with commas; else all")
    parser.add_argument("--trials", type=int, default=160, help="of a replayed run")
    o = parser.parse_args()
    if o.part == "replay":
        _replay(o.recordings, o.out / "replay", o.seeds, o.trials, _named(o.models, (*FIRST, *RECIPES)), o.pick)
        return
    if o.part == "live":
        _live(o.out / "live", o.seeds, _named(o.models, LIVE))
        return
    study = Study(_few(lessons.read(o.data), o.pick, o.rows), o.out, o.seeds, o.epochs)
    _begin(study)
    if o.part == "transfer":
        _transfer(study)
        return
    table = MODELS if o.part == "accuracy" else ABLATION
    names = _named(o.models, tuple(table))
    _accuracy(
        study,
        {name: table[name] for name in names},
        ("operators", "models") if o.part == "accuracy" else ("operators",),
    )


def _begin(study: Study) -> None:
    """Keep what the figures depend on; a folder with figures of other data or epochs is refused."""
    asked = {"data": lessons.data_hash(study.known), "epochs": study.epochs}
    path = study.out / "study.json"
    if path.exists() and read_json(path) != asked:
        raise BenchError(f"{study.out} holds figures of other data, rows or epochs: choose another --out")
    write_json(path, asked)


def _named(text: str, known: Sequence[str]) -> list[str]:
    names = [n.strip() for n in text.split(",") if n.strip()] or list(known)
    wrong = [n for n in names if n not in known]
    if wrong:
        raise BenchError(f"--models {wrong[0]} is not known here (known: {', '.join(known)})")
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
    return dataclasses.replace(x, codes=x.codes[at], seconds=x.seconds[at], statements=x.statements[at])


# -- accuracy and ablation: models that never saw what they rank -------------------------------------------------------


def _splits(known: Sequence[Lesson], protocol: str) -> Iterator[tuple[str, list[Lesson], list[Lesson]]]:
    """Name, what is learned and what is judged. "operators": five folds of whole operators, in all their spaces and
    on all devices; "models": each recorded model left out, whatever else has the same operators too."""
    if protocol == "operators":
        operators = sorted({x.operator for x in known})
        order = np.random.default_rng(0).permutation(len(operators))
        groups = {f"fold {i}": {operators[j] for j in order[i::FOLDS]} for i in range(FOLDS)}
    else:
        recorded = [x for x in known if "/" in x.name and "-" in x.name.split("/")[0] and "cores" not in x.name]
        names = sorted({x.name.split("-")[0] for x in recorded})
        groups = {n: {x.operator for x in recorded if x.name.startswith(f"{n}-")} for n in names}
    for name, apart in groups.items():
        school = [x for x in known if x.operator not in apart]
        judged = [x for x in known if x.operator in apart]
        if judged and len({x.operator for x in school}) > 1:
            yield name, school, judged


def _trained(study: Study, name: str, model: tuple[str, Options], school: list[Lesson], where: str) -> Path:
    """The file of weights of a model, trained as `tt train` does; what was stopped goes on."""
    path = study.out / "weights" / f"{_slug(name)}--{where}.weights"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = int(where.rsplit("--", 1)[1])
        if "shuffled" in name:
            rng = np.random.default_rng(seed)
            school = [dataclasses.replace(x, seconds=rng.permutation(x.seconds)) for x in school]
        options = dict(model[1])
        if study.epochs is not None:
            options["rounds" if model[0] in ("xgb", "lightgbm") else "epochs"] = study.epochs
        train(Training((), model[0], path, options, seed, with_held_out=True), data=school)
    return path


def _accuracy(study: Study, models: Mapping[str, tuple[str, Options]], protocols: Sequence[str]) -> None:
    plugins = Plugins()
    for protocol, seed, (name, model) in product(protocols, range(study.seeds), models.items()):
        for fold, school, judged in _splits(study.known, protocol):
            where = f"{protocol}--{_slug(fold)}--{seed}"
            kept = study.out / "accuracy" / f"{_slug(name)}--{where}.json"
            if kept.exists():
                continue
            path = _trained(study, name, model, school, where)
            fixed = {"inputs": "statements", "objective": "rank"} if model[0] == "xgb" else {}
            found = {"zero-shot": _figures(rank(plugins.build("surrogate", model[0], weights=path, **fixed), judged))}
            for own in OWN:
                found[f"{own} rows"] = _figures(
                    _after(plugins, (model[0], {**fixed, "weights": path}), judged, own, seed)
                )
            write_json(kept, found)
            print(f"{protocol}: {name}, {fold}, seed {seed}", flush=True)
    for protocol in protocols:
        _table(study, list(models), protocol)


def _after(plugins: Plugins, model: tuple[str, Options], judged: Sequence[Lesson], own: int, seed: int) -> list[Any]:
    """Rows ranked after so many others of the operator, drawn at random, were learned."""
    found = []
    for x in judged:
        if len(x.seconds) < 2 * own:
            continue
        order = np.random.default_rng([seed, own]).permutation(len(x.seconds))
        piece = plugins.build("surrogate", model[0], **model[1])
        piece.fit([_only(x, order[:own]).group(piece.inputs)], np.random.default_rng(seed))
        found += rank(piece, [_only(x, order[own:])])
    return found


def _figures(some: Sequence[ranking.Ranked]) -> dict[str, dict[str, float]]:
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
    spaces = sorted({x.task.space.name for x in study.known})
    rows = []
    for name, stage, space in product(names, ("zero-shot", *(f"{k} rows" for k in OWN)), spaces):
        inside = {x.name for x in study.known if x.task.space.name == space}
        every = [
            {n: f for n, f in read_json(p)[stage].items() if n in inside}
            for p in sorted((study.out / "accuracy").glob(f"{_slug(name)}--{protocol}--*.json"))
        ]
        if any(every):
            shown = [_three(_by_operator(every, figure)) for figure in FIGURES]
            rows.append(
                (name, space, stage, str(len({n for e in every for n in e})), *shown, _top(every, 1), _top(every, 5))
            )
    show(("model", "space", "after", "operators", *FIGURES, "top-1", "top-5"), rows, text=3)
    ceilings = [(s, _three([_twin_ceiling(x) for x in study.known if x.task.space.name == s])) for s in spaces]
    print()
    show(("space", "pairs that equal features leave to a model"), ceilings, text=1)
    print("noise: tt dataset show FOLDER, for data that were timed twice; chance: 0.5 of pairs")


def _by_operator(every: Sequence[Mapping[str, Mapping[str, float]]], figure: str) -> list[float]:
    names = sorted({n for e in every for n in e})
    found = [[e[n][figure] for e in every if figure in e.get(n, {})] for n in names]
    return [float(np.mean(values)) for values in found if values]


def _top(every: Sequence[Mapping[str, Mapping[str, float]]], k: int) -> str:
    """TenSet's top-k score: sum of weighted best seconds over that of the best among k."""
    rows = [f for e in every for f in e.values()]
    best = sum(f["weighted best_s"] for f in rows)
    found = sum(f["weighted best_s"] / f[f"best of {k}"] if f[f"best of {k}"] else math.inf for f in rows)
    return f"{best / found:.3f}" if rows else ""


def _twin_ceiling(x: Lesson) -> float:
    names = [x.statements[i : i + 1].values.tobytes() for i in range(len(x.seconds))]
    same, counted, _ = twins(names, x.seconds)
    return 1 - same / counted / 2 if counted else math.nan


def _three(values: Sequence[float]) -> str:
    mid, low, high = ranking.mean_interval(values)
    return "" if math.isnan(mid) else f"{mid:.3f} ({low:.3f} to {high:.3f})"


# -- transfer: how to learn on -----------------------------------------------------------------------------------------


def _transfer(study: Study) -> None:
    plugins, model = Plugins(), MODELS["atformer"]
    for seed, (fold, school, judged) in product(range(study.seeds), _splits(study.known, "operators")):
        where = f"operators--{_slug(fold)}--{seed}"
        kept = study.out / "transfer" / f"{where}.json"
        if kept.exists():
            continue
        path = _trained(study, "atformer", model, school, where)
        found = {"zero-shot": _figures(rank(plugins.build("surrogate", model[0], weights=path), judged))}
        for freeze, own in product(FREEZE, OWN):
            made = (model[0], {"weights": path, "freeze": freeze})
            found[f"{freeze}, {own} rows"] = _figures(_after(plugins, made, judged, own, seed))
        write_json(kept, found)
        print(f"transfer: {fold}, seed {seed}", flush=True)
    every = [read_json(p) for p in sorted((study.out / "transfer").glob("*.json"))]
    stages = list(every[0]) if every else []
    rows = [(s, *(_three(_by_operator([e[s] for e in every], f)) for f in FIGURES[:3])) for s in stages]
    print("\nfrozen while fine-tuning, and own rows; zero-shot first")
    show(("frozen, own rows", *FIGURES[:3]), rows, text=1)
    devices = sorted({x.device for x in study.known})
    print(f"leave-device-out: {'not measured, all data are of one CPU' if len(devices) < 2 else ', '.join(devices)}")


# -- replay: the first batch, gain per second, recipes -----------------------------------------------------------------


def _replay(recordings: Path, out: Path, seeds: int, trials: int, names: Sequence[str], pick: str) -> None:
    from tt_bench.compare import units
    from tt_bench.variants import Variant, compare_variants
    from tt_core.host import Host

    files = [p for p in sorted(recordings.glob("*-template.json.gz")) if fnmatch(p.name, pick)]
    variants = {n: Variant("tt", FIRST[n]) if n in FIRST else Variant(n) for n in names}
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


def _live(out: Path, seeds: int, models: Sequence[str]) -> None:
    """Recipe `tt` with and without the shipped weights, in turns: latency after 30 and 60 seconds."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for seed, model, seconds in product(range(seeds), models, ("30", "60")):
        for variant in list(FIRST)[:2]:
            kept = out / f"{_slug(model)}--{_slug(variant)}--{seconds}--{seed}.json"
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                sets = [w for text in FIRST[variant] for w in ("--set", text)]
                where = ["--history", str(kept.with_suffix(".db")), "--out", str(kept.with_suffix(".so"))]
                where += ["--seed", str(seed)]
                write_json(kept, tuned(model, "--minutes", str(int(seconds) / 60), *sets, *where))
                print(f"live: {kept.name}", flush=True)
            after = read_json(kept).get("after_s")
            found.setdefault((model, seconds, variant), []).append(math.nan if after is None else float(after))
    rows = []
    for model, seconds in product(models, ("30", "60")):
        plain, guided = (found[model, seconds, v] for v in list(FIRST)[:2])
        rows.append((model, seconds, _ratio([g / p for g, p in zip(guided, plain, strict=True)])))
    show(("model", "seconds", "latency, shipped weights by none"), rows)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)


if __name__ == "__main__":
    program(main)
