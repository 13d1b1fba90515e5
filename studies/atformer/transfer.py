"""Transfer: ways of learning on, and from one device to another."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from multiprocessing import get_context
from pathlib import Path

from accuracy import FIGURES, OWN, PARTS, after, by_operator, figures, of_part, ranked_by, three
from cost_models import MODELS, Options, Study, groups, slug, splits, trained
from tt_bench import lessons
from tt_bench.atomic import read_json, write_json
from tt_bench.lessons import Lesson
from tt_bench.ranking import Ranked
from tt_bench.tables import show
from tt_bench.train import Training, train
from tt_spec import Plugins

FREEZE = ("body", "embedding", "none")


def transfer(study: Study, folders: Sequence[Path]) -> None:
    """Print what fine-tuning makes of ATFormer, by what is frozen, and leave-device-out over `folders`."""
    todo = [
        (kept, fold, seed, school, judged)
        for seed, (fold, school, judged) in product(range(study.seeds), splits(study.known, "operators"))
        if not (kept := study.out / "transfer" / f"operators--{slug(fold)}--{seed}.json").exists()
    ]
    if todo:  # a network learns with one thread: a fold on each core
        settings, cores = replace(study, known=[]), min(len(todo), os.cpu_count() or 1)
        with get_context("spawn").Pool(cores, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
            jobs = [pool.apply_async(_fold, (settings, *case)) for case in todo]
            for job, (_, fold, seed, *_) in zip(jobs, todo, strict=True):
                job.get()
                print(f"transfer: {fold}, seed {seed}", flush=True)
    every = [read_json(p) for p in sorted((study.out / "transfer").glob("operators--*.json"))]
    rows = [
        (s, part, *(three(by_operator(of_part([e[s] for e in every], part), f)) for f in FIGURES[:3]))
        for s, part in product(list(every[0]) if every else [], PARTS)
    ]
    print("\nfrozen while fine-tuning, and own rows; zero-shot first")
    show(("frozen, own rows", "rows", *FIGURES[:3]), rows, text=2)
    _devices(study.out / "devices", lessons.read(folders, "knobs"))


def _fold(study: Study, kept: Path, fold: str, seed: int, school: list[Lesson], judged: list[Lesson]) -> None:
    """Write to `kept` the figures of one fold: zero-shot, and by what is frozen and how many own rows there are."""
    model = MODELS["atformer"]
    path = trained(study, "atformer", model, school, kept.stem)
    built = Plugins().build("surrogate", model.piece, weights=path)
    found = {"zero-shot": figures(ranked_by(built, judged))}
    for freeze, own in product(FREEZE, OWN):
        made = (model.piece, {"weights": path, "freeze": freeze})
        found[f"{freeze}, {own} rows"] = figures(after(made, judged, own, seed))
    write_json(kept, found)


BEFOREHAND: Options = {
    "inputs": "knobs",
    "objective": "regression",
    "rounds": 320,
    "max_depth": 6,
    "eta": 0.1,
    "threads": 0,
}
"""The trees that ship, grown by all cores. They read knobs, which can be read of an older space too; its statements
cannot be computed."""


def _devices(out: Path, known: list[Lesson]) -> None:
    """Leave-device-out beside leave-operators-out: trees of each device, of all but one and of all, judged on each."""
    devices, rows = sorted({x.device for x in known}), []
    for taught in schools(devices):
        kept = out / f"{slug(' '.join(taught))}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_json(kept, judged(kept.with_suffix(".weights"), taught, known))
        for (case, found), device, part in product(read_json(kept).items(), devices, PARTS):
            if some := of_part([found.get(device, {})], part)[0]:
                told = (three(by_operator([some], f)) for f in FIGURES)
                rows.append((", ".join(taught), device, case, part, str(len(some)), *told))
    print("\ntrees over knobs: learned on devices, judged on one; operators left out, or known from there")
    show(("learned on", "judged on", "operators", "rows", "how many", *FIGURES), rows, text=4)


def schools(devices: Sequence[str]) -> list[tuple[str, ...]]:
    """Each device, all but one, and all, each once and the smaller first."""
    sizes = sorted({1, len(devices) - 1, len(devices)} - {0})
    return [some for size in sizes for some in combinations(devices, size)]


def judged(path: Path, taught: Sequence[str], known: list[Lesson]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Figures by case, device and operator: operators left out, on all devices, in five folds; and where one device
    taught, what it knows, on the others."""
    school = [x for x in known if x.device in taught]
    found = {"left out": [r for apart in groups(known) for r in _by_trees(path, school, known, apart)]}
    if len(taught) == 1:
        mine = {x.operator for x in school}
        exam = [x for x in known if x.device not in taught and x.operator in mine]
        found["known"] = _by_trees(path, school, exam, set())
    return {
        case: {d: figures([r for x, r in some if x.device == d]) for d in sorted({x.device for x, _ in some})}
        for case, some in found.items()
    }


def _by_trees(
    path: Path, school: list[Lesson], exam: list[Lesson], apart: set[tuple[str, str]]
) -> list[tuple[Lesson, Ranked]]:
    """Operators apart, or all if there are none, ranked by trees that learned from others."""
    school = [x for x in school if x.operator not in apart]
    exam = [x for x in exam if x.operator in apart or not apart]
    if not school or not exam:
        return []
    train(Training((), "xgb", path, BEFOREHAND, 0, patience=60, with_held_out=True), data=school)
    fixed = {k: BEFOREHAND[k] for k in ("inputs", "objective")}
    piece = Plugins().build("surrogate", "xgb", weights=path, **fixed)
    found = [(x, r) for x in exam for r in ranked_by(piece, [x])]
    path.unlink()
    return found
