"""Where the wall clock goes, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tt_spec import Batch, Measurement, TaskState
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.spent import Spent

TASK = synthetic_task()


def batch(asked_s: float | None) -> Batch:
    codes = np.zeros((0, 4), dtype=np.int64)
    return Batch(1, codes, (), np.zeros(0), codes, {} if asked_s is None else {"slot": {"asked_s": asked_s}})


def results(*ends: float, build: float = 1.0, run: float = 0.5) -> list[Measurement]:
    cost = {"apply": 0.2, "build": build - 0.2, "run": run}
    return [Measurement(TASK.key, "s", (i,), seconds=(1.0,), cost=cost, at=at) for i, at in enumerate(ends)]


def test_a_batch_is_thinking_building_timing_and_the_rest_waiting():
    spent = Spent(workers=2)
    spent.start(100.0)
    spent.add(TaskState(TASK, curve=[(4, 110.0, 1.0)]), batch(3.0), results(107, 108, 109, 110))
    assert spent.parts == pytest.approx({"think": 3.0, "build": 2.0, "run": 2.0, "wait": 3.0})
    assert spent.total_s == pytest.approx(10.0) and spent.idle == pytest.approx(0.6)
    spent.add(TaskState(TASK, curve=[(4, 114.0, 1.0)]), batch(0.0), results(112, 114, build=2.0, run=1.0))
    assert spent.spans[1].parts == pytest.approx({"think": 0.0, "build": 2.0, "run": 2.0, "wait": 0.0})
    assert spent.idle == pytest.approx(6 / 14)


def test_parts_never_exceed_the_clock():
    spent = Spent()
    spent.start(0.0)
    spent.add(TaskState(TASK, curve=[(1, 2.0, 1.0)]), batch(9.0), results(1.0, build=5.0, run=1.5))
    assert spent.parts == pytest.approx({"think": 0.0, "build": 0.5, "run": 1.5, "wait": 0.0})


def test_a_batch_that_was_asked_and_built_before_takes_from_the_waiting_then():
    spent, ahead = Spent(), batch(1.0)
    ahead.info["slot"]["ahead"] = True
    spent.start(0.0)
    spent.add(TaskState(TASK, curve=[(1, 10.0, 1.0)]), batch(2.0), results(10.0, build=3.0, run=1.0))
    assert spent.parts == pytest.approx({"think": 2.0, "build": 3.0, "run": 1.0, "wait": 4.0})
    spent.add(TaskState(TASK, curve=[(1, 10.5, 1.0)]), ahead, results(10.5, build=2.0, run=0.5))
    assert spent.parts == pytest.approx({"think": 3.0, "build": 5.0, "run": 1.5, "wait": 1.0})
    assert spent.total_s == pytest.approx(10.5)


def test_logs_that_do_not_say_what_asking_took_count_it_as_waiting():
    spent = Spent()
    spent.add(TaskState(TASK, curve=[(2, 10.0, 1.0)]), batch(None), results(6.0, 10.0, build=0.5))
    assert spent.total_s == pytest.approx(4.0), "from the first result, where the begin is unknown"
    assert spent.parts["wait"] == pytest.approx(2.0) and spent.parts["think"] == 0.0
    assert Spent().idle == 0.0
