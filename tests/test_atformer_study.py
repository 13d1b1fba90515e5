"""The study of ATFormer's claims, on operators whose programs are the faster the larger one feature."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tt_bench.errors import BenchError
from tt_bench.lessons import Lesson
from tt_spec import Statements
from tt_spec.pieces.synthetic import synthetic_task

PROGRAM = Path(__file__).parents[1] / "studies" / "atformer" / "study.py"


@pytest.fixture(scope="module")
def study() -> Any:
    spec = importlib.util.spec_from_file_location("atformer_study", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    import dataclasses

    return dataclasses.replace(task, shapes=f"{i}x1")


def test_nothing_that_is_judged_was_learned(study):
    for protocol, count in (("operators", 5), ("models", 2)):
        splits = list(study._splits(known(), protocol))
        judged = [x.operator for _, _, apart in splits for x in apart]
        assert len(splits) == count and sorted(judged) == sorted(x.operator for x in known()), "each is judged once"
        for _, school, apart in splits:
            assert not {x.operator for x in school} & {x.operator for x in apart}


def test_a_fifth_of_every_operators_rows_is_left_out(study):
    ((_, school, apart),) = study._splits(known(), "rows")
    for x, learned, judged in zip(known(), school, apart, strict=True):
        assert (len(learned.seconds), len(judged.seconds)) == (32, 8)
        assert sorted([*learned.seconds, *judged.seconds]) == sorted(x.seconds)


def test_a_model_may_learn_from_a_few_operators_or_from_shuffled_labels(study):
    few, others = (study._taught(study.Model("mlp", operators=2), known(), seed) for seed in (0, 1))
    assert len(few) == len(others) == 2 and {x.name for x in few} != {x.name for x in others}
    mixed = study._taught(study.Model("mlp", shuffled=True), known(), 0)
    for x, y in zip(known(), mixed, strict=True):
        assert sorted(x.seconds) == sorted(y.seconds) and not np.array_equal(x.seconds, y.seconds)
        assert np.array_equal(x.statements.values, y.statements.values)


def test_an_operator_whose_first_rows_all_fail_is_counted_apart(study):
    """(2 + 1) seconds by (4 + 1): the best of the first operator's five takes twice as long as its best row."""
    half = {"best of 5": 0.5, "weighted best_s": 2.0}
    whole = {"best of 5": 1.0, "weighted best_s": 1.0}
    assert study._top([{"a": half, "b": whole}], 5) == "0.600"
    none = {"best of 5": 0.0, "weighted best_s": 9.0}
    assert study._top([{"a": half, "b": whole, "c": none}], 5) == "0.600, 1 failed"


def test_it_learns_resumes_and_refuses_figures_of_other_data(study, tmp_path, capsys, monkeypatch):
    asked = study.Study(known(), tmp_path, 1, 40)
    study._begin(asked)
    models = {"mlp": study.Model("mlp", {"width": 16, "rate": 1e-2})}
    study._accuracy(asked, models, ["models"])
    first = capsys.readouterr().out
    row = next(line for line in first.splitlines() if line.startswith("mlp ") and "zero-shot" in line)
    assert float(row.split("zero-shot")[1].split()[1]) > 0.8, f"one feature decides, and the network finds it: {row}"
    made = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    one = sorted((tmp_path / "accuracy").iterdir())[0]
    one.unlink()
    monkeypatch.setattr(study, "train", None)  # nothing is trained twice
    study._accuracy(asked, models, ["models"])
    assert capsys.readouterr().out.count("mlp, ") == 1, "only what is missing is done again"
    assert all(p.stat().st_mtime_ns == at for p, at in made.items() if p != one)
    with pytest.raises(BenchError, match="figures of other data, rows or epochs"):
        study._begin(study.Study(known(5), tmp_path, 1, 40))
    with pytest.raises(BenchError, match="is not known here"):
        study._named("rnn", ("mlp",))
