"""Rows that a run believes: its device's, and its compiler's."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tt_spec import Measurement
from tt_spec.past import Past
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.synthetic import synthetic_task

NOW = {"tvm": "0.27", "llvm": "22"}


@pytest.fixture
def task():
    return synthetic_task()


def row(task, config: int, seconds: float, device: str = "here", **versions: str) -> Measurement:
    codes = (config, 0, 0, 0)[: len(task.space.shape)]
    return Measurement(
        task.key, task.space.key, codes, task.space.decode(codes), seconds=(seconds,), device=device, versions=versions
    )


def past(*rows: Measurement) -> Past:
    store = MemoryStore()
    store.append(list(rows))
    return Past(store, "here", NOW)


def test_rows_of_another_device_are_not_known_and_never_the_best(task):
    known = past(row(task, 0, 1e-3, "there", **NOW), row(task, 1, 2e-3, **NOW))
    assert [m.config[0] for m in known.known(task)] == [1]
    assert known.best_s(task) == 2e-3 and known.remarks == []


@pytest.mark.parametrize("other", [{"tvm": "0.26", "llvm": "22"}, {"tvm": "0.27", "llvm": "21"}])
def test_rows_of_another_compiler_are_left_out_and_counted(task, other):
    known = past(row(task, 0, 1e-3, **other), row(task, 1, 2e-3, **NOW), row(task, 2, 1.5e-3, **other))
    assert [m.config[0] for m in known.known(task)] == [1]
    assert known.best_s(task) == 2e-3
    assert [m.config[0] for m in known.rows(task)] == [1]
    (remark,) = known.remarks
    assert remark.startswith(
        f"2 measurements of these tasks are of programs built by tvm {other['tvm']}, llvm {other['llvm']}, not by"
    )
    assert "tvm 0.27, llvm 22" in remark and "made again" in remark


def test_what_came_from_a_file_is_measured_first_and_not_believed(task):
    foreign = [
        dataclasses.replace(row(task, i, 1e-4 * (i + 1), ("here", "there")[i % 2], **NOW), origin="import x, f, d")
        for i in range(7)
    ]
    wrong = dataclasses.replace(foreign[0], seconds=(), error="wrong-result")
    known = past(*foreign, wrong, row(task, 7, 2e-3, **NOW))
    assert [m.config[0] for m in known.known(task)] == [7] and known.best_s(task) == 2e-3
    assert known.guides(task)[:, 0].tolist() == [1, 2, 3, 4], "the fastest four whose latest verdict is valid"
    assert known.remarks == ["5 imported measurements of these tasks guide the search; what ships is measured here"]
    assert past(row(task, 0, 1e-3)).guides(task).shape == (0, len(task.space.knobs))


def test_where_all_is_of_another_compiler_nothing_is_best(task):
    assert past(row(task, 0, 1e-3, tvm="0.26")).best_s(task) == math.inf


def test_rows_that_do_not_say_what_built_them_are_believed(task):
    known = past(row(task, 0, 1e-3), row(task, 1, 2e-3, tvm="0.27"))
    assert len(known.known(task)) == 2 and known.best_s(task) == 1e-3 and known.remarks == []


def test_finalists_do_not_say_when_a_run_ended(task):
    measured = dataclasses.replace(row(task, 0, 1e-3), run_id="1", at=5.0)
    known = past(measured, dataclasses.replace(measured, origin="finalist", at=9.0))
    known.known(task)
    assert known.last == {"1": 5.0}
