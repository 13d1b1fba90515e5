"""Transfer: ways of learning on, and from one device to another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
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
    model = MODELS["atformer"]
    for seed, (fold, school, judged) in product(range(study.seeds), splits(study.known, "operators")):
        where = f"operators--{slug(fold)}--{seed}"
        kept = study.out / "transfer" / f"{where}.json"
        if kept.exists():
            continue
        path = trained(study, "atformer", model, school, where)
        built = Plugins().build("surrogate", model.piece, weights=path)
        found = {"zero-shot": figures(ranked_by(built, judged))}
        for freeze, own in product(FREEZE, OWN):
            made = (model.piece, {"weights": path, "freeze": freeze})
            found[f"{freeze}, {own} rows"] = figures(after(made, judged, own, seed))
        write_json(kept, found)
        print(f"transfer: {fold}, seed {seed}", flush=True)
    every = [read_json(p) for p in sorted((study.out / "transfer").glob("operators--*.json"))]
    rows = [
        (s, part, *(three(by_operator(of_part([e[s] for e in every], part), f)) for f in FIGURES[:3]))
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
        kept = out / f"{slug(taught)}--{slug(judged)}--{slug(case)}.json"
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            folds = groups(known) if left_out else [set()]
            ranked = [r for apart in folds for r in _by_trees(kept.with_suffix(".weights"), school, exam, apart)]
            write_json(kept, figures(ranked))
        for part in PARTS:
            some = of_part([read_json(kept)], part)
            rows.append(
                (taught, judged, case, part, str(len(some[0])), *(three(by_operator(some, f)) for f in FIGURES))
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
    found = ranked_by(Plugins().build("surrogate", "xgb", weights=path, **fixed), exam)
    path.unlink()
    return found
