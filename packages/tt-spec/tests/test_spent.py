"""Where the wall clock goes, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_spec import Batch, Measurement, TaskState
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.spent import OWN, PART_OF, Did, Spent, shared

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


def test_thinking_beside_a_batch_is_no_thinking_in_the_span_of_its_own():
    spent, beside = Spent(), batch(1.5)
    beside.info["slot"] |= {"ahead": True, "beside": True}
    spent.start(0.0)
    spent.add(TaskState(TASK, curve=[(1, 6.0, 1.0)]), batch(1.0), results(6.0, build=3.0, run=1.0))
    spent.add(TaskState(TASK, curve=[(1, 10.0, 1.0)]), beside, results(10.0, build=2.0, run=0.5))
    assert spent.spans[1].parts == pytest.approx({"think": 0.0, "build": 2.0, "run": 0.5, "wait": 1.5})
    assert spent.spans[0].parts == pytest.approx({"think": 2.0, "build": 3.0, "run": 1.0, "wait": 0.0})


def test_logs_that_do_not_say_what_asking_took_count_it_as_waiting():
    spent = Spent()
    spent.add(TaskState(TASK, curve=[(2, 10.0, 1.0)]), batch(None), results(6.0, 10.0, build=0.5))
    assert spent.total_s == pytest.approx(4.0), "from the first result, where the begin is unknown"
    assert spent.parts["wait"] == pytest.approx(2.0) and spent.parts["think"] == 0.0
    assert Spent().idle == 0.0


def test_a_trace_says_what_was_done_beside_what():
    work = [
        [OWN, "ask", 100.0, 3.0],  # of it 1 s beside a build that was begun ahead, and within it programs were made
        [0, "realise", 101.0, 1.0],
        [1, "build", 102.0, 4.0],
        [0, "build", 103.0, 2.0],  # worker 0 has nothing to build for the last second
        [0, "time", 106.5, 2.0],
        [1, "start", 106.0, 0.5],
    ]
    asked = batch(3.0)
    asked.info["work"] = work
    spent = Spent(workers=2)
    spent.start(100.0)
    spent.add(TaskState(TASK, curve=[(4, 110.0, 1.0)]), asked, results(110.0))
    assert spent.parts == pytest.approx({"think": 2.0, "build": 4.0, "run": 2.0, "wait": 2.0})
    assert (spent.hidden_s, spent.lone_s) == pytest.approx((1.0, 1.0)), "asking beside a build; one builds, one waits"
    assert spent.idle == pytest.approx(0.4) and spent.total_s == pytest.approx(10.0)


def test_work_that_spans_batches_is_told_in_pieces():
    """What was in hand when the first batch was told, its builder tells so far, and the rest with the next."""
    spent, first, second = Spent(), batch(0.0), batch(0.0)
    first.info["work"], second.info["work"] = [[0, "build", 8.0, 2.0]], [[0, "build", 10.0, 3.0]]
    spent.start(5.0)
    spent.add(TaskState(TASK, curve=[(1, 10.0, 1.0)]), first, results(10.0))
    spent.add(TaskState(TASK, curve=[(1, 14.0, 1.0)]), second, results(14.0))
    assert spent.parts == pytest.approx({"think": 0.0, "build": 5.0, "run": 0.0, "wait": 4.0})


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.sampled_from([*PART_OF, "start", "another"]),
            st.floats(-5, 15),
            st.floats(0, 8),
        ),
        max_size=12,
    )
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_parts_of_any_trace_fill_the_wall_clock(work):
    span = shared([Did(*w) for w in work], 0.0, 10.0, 4)
    assert span.seconds == pytest.approx(10.0) and min(span.parts.values()) >= -1e-9
    assert -1e-9 <= span.hidden <= span.parts["run"] + span.parts["build"] + 1e-9
    assert -1e-9 <= span.lone <= span.parts["build"] + 1e-9
