"""The study of ATFormer's claims, on operators whose programs are the faster the larger one feature."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tt_bench.atomic import read_json
from tt_bench.errors import BenchError
from tt_bench.lessons import Lesson
from tt_bench.train import train
from tt_spec import Statements
from tt_spec.pieces.synthetic import synthetic_task

FOLDER = Path(__file__).parents[1] / "studies" / "atformer"
WAYS = ("from nothing", "with weights")
MODULES = ("cost_models", "accuracy", "curves", "transfer", "searches", "study")


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    """The study's modules, which are beside its program and in no package."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            del sys.modules[name]


def known(operators: int = 6, rows: int = 40) -> list[Lesson]:
    found = []
    for i in range(operators):
        rng = np.random.default_rng(i)
        task = synthetic_task(f"op{i}", knobs=3)
        codes = np.stack(list(task.space.enumerate()))[:rows]
        values = np.pad(rng.random((rows, 3)), ((0, 0), (0, 161)))
        X = Statements(values, np.arange(rows + 1), np.full((rows, 10), float(i)))
        name = f"{'net' if i % 2 else 'other'}-{i}-sketch/op{i}"
        found.append(Lesson(name, _shaped(task, i), codes, X, 1e-3 / (0.1 + values[:, 0]), "cpu"))
    return found


def _shaped(task: Any, i: int) -> Any:
    return dataclasses.replace(task, shapes=f"{i}x1")


def test_nothing_that_is_judged_was_learned(modules):
    for protocol, count in (("operators", 5), ("models", 2)):
        splits = list(modules.cost_models.splits(known(), protocol))
        judged = [x.operator for _, _, apart in splits for x in apart]
        assert len(splits) == count and sorted(judged) == sorted(x.operator for x in known()), "each is judged once"
        for _, school, apart in splits:
            assert not {x.operator for x in school} & {x.operator for x in apart}


def test_a_fifth_of_every_operators_rows_is_left_out(modules):
    ((_, school, apart),) = modules.cost_models.splits(known(), "rows")
    for x, learned, judged in zip(known(), school, apart, strict=True):
        assert (len(learned.seconds), len(judged.seconds)) == (32, 8)
        assert sorted([*learned.seconds, *judged.seconds]) == sorted(x.seconds)


def test_a_model_may_learn_from_a_few_operators_or_from_shuffled_labels(modules):
    few, others = (
        modules.cost_models.taught(modules.cost_models.Model("mlp", operators=2), known(), seed) for seed in (0, 1)
    )
    assert len(few) == len(others) == 2 and {x.name for x in few} != {x.name for x in others}
    mixed = modules.cost_models.taught(modules.cost_models.Model("mlp", shuffled=True), known(), 0)
    for x, y in zip(known(), mixed, strict=True):
        assert sorted(x.seconds) == sorted(y.seconds) and not np.array_equal(x.seconds, y.seconds)
        assert np.array_equal(x.statements.values, y.statements.values)


def test_an_operator_whose_first_rows_all_fail_is_counted_apart(modules):
    """(2 + 1) seconds by (4 + 1): the best of the first operator's five takes twice as long as its best row."""
    half = {"best of 5": 0.5, "weighted best_s": 2.0}
    whole = {"best of 5": 1.0, "weighted best_s": 1.0}
    assert modules.accuracy.top([{"a": half, "b": whole}], 5) == "0.600"
    none = {"best of 5": 0.0, "weighted best_s": 9.0}
    assert modules.accuracy.top([{"a": half, "b": whole, "c": none}], 5) == "0.600, 1 failed"


def test_it_learns_resumes_and_refuses_figures_of_other_data(modules, tmp_path, capsys, monkeypatch):
    asked = modules.cost_models.Study(known(), tmp_path, 1, 40)
    modules.cost_models.begin(asked)
    models = {"mlp": modules.cost_models.Model("mlp", {"width": 16, "rate": 1e-2})}
    modules.accuracy.accuracy(asked, models, ["models"])
    first = capsys.readouterr().out
    row = next(line for line in first.splitlines() if line.startswith("mlp ") and "zero-shot" in line)
    assert float(row.split("zero-shot")[1].split()[1]) > 0.8, f"one feature decides, and the network finds it: {row}"
    made = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    one = sorted((tmp_path / "accuracy").iterdir())[0]
    one.unlink()
    monkeypatch.setattr(modules.cost_models, "train", None)  # nothing is trained twice
    modules.accuracy.accuracy(asked, models, ["models"])
    assert capsys.readouterr().out.count("mlp, ") == 1, "only what is missing is done again"
    assert all(p.stat().st_mtime_ns == at for p, at in made.items() if p != one)
    with pytest.raises(BenchError, match="figures of other data, rows or epochs"):
        modules.cost_models.begin(modules.cost_models.Study(known(5), tmp_path, 1, 40))
    with pytest.raises(BenchError, match="is not known here"):
        modules.study.named("rnn", ("mlp",))


def test_with_weights_a_curve_starts_higher_and_from_nothing_as_at_random(modules, tmp_path, capsys, monkeypatch):
    asked = modules.cost_models.Study(known(rows=64), tmp_path, 1, 40)
    monkeypatch.setattr(modules.curves, "parts", lambda x: {"sketches": np.full(len(x.seconds), True)})
    small = {"mlp": modules.cost_models.Model("mlp", {"width": 16, "rate": 1e-2})}
    monkeypatch.setattr(modules.curves, "MODELS", small)
    monkeypatch.setattr(modules.curves, "_draw", lambda *args: None)
    modules.curves.curves(asked, known(rows=64), ["mlp"])
    table = capsys.readouterr().out
    rows = {way: next(r for r in table.splitlines() if way in r and "(" in r) for way in ("random", *WAYS)}
    first = {way: float(row.split(way)[1].split()[0]) for way, row in rows.items()}
    assert first["with weights"] == 1.0 > first["from nothing"] == first["random"], table


def test_folds_learn_side_by_side_and_only_those_that_are_missing(modules, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(modules.transfer, "_devices", lambda out, known: None)
    monkeypatch.setattr(modules.transfer.lessons, "read", lambda folders, inputs: [])
    asked = modules.cost_models.Study(known(rows=24), tmp_path, 1, 1)
    modules.transfer.transfer(asked, [])
    table = capsys.readouterr().out
    assert table.count("transfer: fold ") == 5 and "zero-shot " in table
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "transfer").iterdir()}
    judged = [name for p in kept for name in read_json(p)["zero-shot"] if name.startswith("all: ")]
    assert sorted(judged) == sorted(f"all: {x.name}" for x in asked.known), "each once"
    one = min(kept)
    one.unlink()
    modules.transfer.transfer(asked, [])
    assert capsys.readouterr().out.count("transfer: fold ") == 1
    assert one.exists() and all(p.stat().st_mtime_ns == at for p, at in kept.items() if p != one)


def test_trees_of_some_devices_judge_operators_that_they_did_not_learn_from_on_every_device(
    modules, tmp_path, monkeypatch
):
    lessons = [
        dataclasses.replace(x, device=cpu, name=f"{cpu}/{x.name}")
        for cpu, operators in (("a", 6), ("b", 6), ("c", 2))
        for x in known(operators)
    ]
    schools = []

    def spied(what, *, data):
        schools.append(data)
        return train(what, data=data)

    monkeypatch.setattr(modules.transfer, "train", spied)
    monkeypatch.setattr(modules.transfer, "BEFOREHAND", modules.transfer.BEFOREHAND | {"rounds": 4})
    assert modules.transfer.schools("abc") == [
        *zip("abc", strict=True),
        *itertools.combinations("abc", 2),
        tuple("abc"),
    ]
    assert modules.transfer.schools("ab") == [("a",), ("b",), ("a", "b")]
    found = modules.transfer.judged(tmp_path / "w", ("c",), lessons)
    counted = {
        case: {cpu: sum(name.startswith("all: ") for name in some) for cpu, some in by_cpu.items()}
        for case, by_cpu in found.items()
    }
    assert counted["left out"] == {"a": 6, "b": 6, "c": 2}, "each once"
    assert counted["known"] == {"a": 2, "b": 2}, "what c taught, elsewhere"
    assert {x.device for school in schools for x in school} == {"c"}
    assert [len(school) for school in schools[-1:]] == [2] and all(len(school) in (1, 2) for school in schools)
    assert set(modules.transfer.judged(tmp_path / "w", ("a", "b"), lessons)) == {"left out"}


def test_trials_to_95_percent_count_from_one_and_end_with_the_run(modules):
    assert modules.curves.arrival([0.5, 0.94, 0.95, 1.0]) == 3
    assert modules.curves.arrival([0.5, 0.94]) == 2


def test_files_are_timed_in_turns_and_operators_added_up(modules, tmp_path, capsys, monkeypatch):
    def tuned(model, *options):
        best_s = 2e-3 if "draft.weights=none" in options else 1e-3
        return {"tasks": [{"weight": 3.0, "best_s": best_s}, {"weight": 1.0, "best_s": 1e-3}]}

    raced = []
    monkeypatch.setattr(modules.searches, "tuned", tuned)
    monkeypatch.setattr("tt_core.host.Host.raced", lambda self, files: raced.append(files) or [4.0, 3.0])
    for seeds in (1, 2):
        modules.searches.live(tmp_path, seeds, ["resnet18"], ["weights=none", "shipped weights"], ["1"])
    assert [[f.suffix for f in files] for files in raced] == [[".so", ".so"]] * 2, "no pair is timed twice"
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("resnet18"))
    assert row.split()[-2:] == ["0.750", "0.571"], "3 / 4; (3 + 1) / (6 + 1)"


def test_speed_by_the_clock_is_that_of_the_last_batch_before(modules):
    """Measured after 10 and 40 s, whole with the second row, as fast as the best with the third."""
    run = SimpleNamespace(t=[10.0, 40.0, 50.0], true_s=[None, 2.0, 1.0])
    figures = {name: of(run) for name, of in modules.searches._course(1.0).items()}
    assert (figures["speed after 30 s"], figures["speed after 60 s"], figures["speed at the end"]) == (0.0, 1.0, 1.0)
    assert (figures["trials to 98 %"], figures["seconds to 98 %"]) == (3, 50.0)
    slower = SimpleNamespace(of=lambda name, unit: [run], best={"net": 1.0})
    assert modules.searches._ratios(slower, "a", "b", "net")["speed after 30 s"] == [], "no program, no ratio"


def test_recorded_operators_make_a_model_with_the_weights_that_they_have_there(modules, tmp_path):
    from tt_bench.compare import units
    from tt_bench.files import load

    (path,) = modules.searches.composed(FOLDER.parents[1] / "recordings", tmp_path, "resnet18*")
    (unit,) = units([path], [], whole=True)
    weights = {p.whole.name: p.whole.weight for p in load(path).parts}
    assert unit.name == "resnet18 [template]" and len(unit.parts) == 6
    assert weights["resnet18-64"] == 4 and weights["resnet18-stem"] == 1
