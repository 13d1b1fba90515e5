"""The cost models of ATFormer's study: which, what they learn from, and their training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from tt_bench import lessons
from tt_bench.atomic import read_json, write_json
from tt_bench.errors import BenchError
from tt_bench.lessons import Lesson
from tt_bench.train import Training, train

FOLDS = 5
PROTOCOLS = ("operators", "models", "rows")
"""What is left out of the training: see `splits`."""

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


def begin(study: Study) -> None:
    """Keep what the figures depend on; a folder with figures of other data or epochs is refused."""
    asked = {"data": lessons.data_hash(study.known), "epochs": study.epochs}
    path = study.out / "study.json"
    if path.exists() and read_json(path) != asked:
        raise BenchError(f"{study.out} holds figures of other data, rows or epochs: choose another --out")
    write_json(path, asked)


def few(known: list[Lesson], pick: str, rows: int) -> list[Lesson]:
    """At most so many rows of each chosen operator, the same in every run."""
    found = []
    for x in known:
        if fnmatch(x.name, pick):
            at = np.sort(np.random.default_rng(len(x.seconds)).permutation(len(x.seconds))[:rows])
            found.append(only(x, at))
    if len({x.operator for x in found}) < 3:
        raise BenchError(f"{len(found)} operators match {pick!r}: three are needed to leave some out")
    return found


def only(x: Lesson, at: np.ndarray) -> Lesson:
    return replace(x, codes=x.codes[at], seconds=x.seconds[at], statements=x.statements[at])


def splits(known: Sequence[Lesson], protocol: str) -> Iterator[tuple[str, list[Lesson], list[Lesson]]]:
    """Name, what is learned and what is judged. "operators": five folds of whole operators, in all their spaces and
    on all devices; "models": each recorded model left out, whatever else has the same operators too; "rows": a fifth of
    every operator's rows, as TenSet's public default does."""
    if protocol == "rows":
        orders = [np.random.default_rng([1, len(x.seconds)]).permutation(len(x.seconds)) for x in known]
        cuts = [len(order) // FOLDS for order in orders]
        judged = [only(x, order[:n]) for x, order, n in zip(known, orders, cuts, strict=True)]
        yield "a fifth", [only(x, order[n:]) for x, order, n in zip(known, orders, cuts, strict=True)], judged
        return
    if protocol == "operators":
        cases = {f"fold {i}": apart for i, apart in enumerate(groups(known))}
    else:
        recorded = [x for x in known if "/" in x.name and "-" in x.name.split("/")[0] and "cores" not in x.name]
        names = sorted({x.name.split("-")[0] for x in recorded})
        cases = {n: {x.operator for x in recorded if x.name.startswith(f"{n}-")} for n in names}
    for name, apart in cases.items():
        school = [x for x in known if x.operator not in apart]
        judged = [x for x in known if x.operator in apart]
        if judged and len({x.operator for x in school}) > 1:
            yield name, school, judged


def groups(known: Sequence[Lesson]) -> list[set[tuple[str, str]]]:
    """The operators in five folds."""
    operators = sorted({x.operator for x in known})
    order = np.random.default_rng(0).permutation(len(operators))
    return [{operators[j] for j in order[i::FOLDS]} for i in range(FOLDS)]


def taught(model: Model, school: list[Lesson], seed: int) -> list[Lesson]:
    """What a model learns from of all that it may: a few operators, or shuffled labels."""
    rng = np.random.default_rng(seed)
    if model.operators is not None:
        operators = sorted({x.operator for x in school})
        drawn = {operators[i] for i in rng.permutation(len(operators))[: model.operators]}
        school = [x for x in school if x.operator in drawn]
    return [replace(x, seconds=rng.permutation(x.seconds)) for x in school] if model.shuffled else school


def trained(study: Study, name: str, model: Model, school: list[Lesson], where: str) -> Path:
    """The file of weights of a model, trained as `tt train` does; what was stopped goes on."""
    path = study.out / "weights" / f"{slug(name)}--{where}.weights"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        seed = int(where.rsplit("--", 1)[1])
        options = model.options | model.fixed
        if study.epochs is not None and model.piece not in ("xgb", "lightgbm"):
            options |= {"epochs": study.epochs}
        began = time.process_time()
        training = Training((), model.piece, path, options, seed, with_held_out=True)
        card = train(training, data=taught(model, school, seed)).card
        cost = {
            "core seconds": time.process_time() - began,
            "rounds": card["training"]["rounds"],
            "bytes": path.stat().st_size,
        }
        write_json(path.with_suffix(".cost.json"), cost)
    return path


def slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text)
