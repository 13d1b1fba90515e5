from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from tt_core.cli.progress import LiveTable, PlainLines, latency
from tt_core.events.log import JsonLines
from tt_spec import Batch, Measurement, RunInfo, TaskState, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task

TASK = synthetic_task("conv2d_relu")
OTHER = synthetic_task("softmax")
RUN = RunInfo("r", (TASK, OTHER))


def batch() -> Batch:
    codes = np.zeros((1, 4), dtype=np.int64)
    return Batch(1, codes, ("random",), np.full(1, np.nan), codes[:0], {"epsilon": 0.1})


def state() -> TaskState:
    return TaskState(TASK, trials=3, best_s=2e-3, errors={"build": 1})


def failed() -> Measurement:
    return Measurement(TASK.key, TASK.space.key, (0, 0, 0, 0), error="build", why="no")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.50 s"), (0.0123, "12.3 ms"), (4.56e-4, "456 µs"), (3.1e-7, "0.31 µs"), (float("inf"), "-")],
)
def test_latency_is_written_for_people(seconds, text):
    assert latency(seconds) == text


def test_plain_lines_name_task_errors_and_what_is_missing():
    out = io.StringIO()
    lines = PlainLines(out, trials=10)
    lines.tt_run_started(RUN)
    lines.tt_batch_measured(RUN, state(), batch(), [failed()])
    text = out.getvalue()
    assert text.count("\n") == 1
    for words in ("conv2d_relu", "0.5 GFLOP/s", "2 ms", "3 trials", "1 build", "1 operators not yet", "7 trials left"):
        assert words in text


def test_json_lines_are_one_event_per_batch_without_infinities():
    out = io.StringIO()
    lines = JsonLines(out, VirtualClock(7.0))
    run = RunInfo("r", (TASK, OTHER), states=(state(), TaskState(OTHER)))
    lines.tt_run_started(run)
    lines.tt_batch_measured(run, state(), batch(), [failed()])
    lines.tt_run_stopped(run, [state()], "done")
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert [t["name"] for t in first["tasks"]] == ["conv2d_relu", "softmax"]
    assert second["errors"] == {"build": 1}
    assert second["model_s"] is None  # softmax has no program yet
    assert second["best_s"] == 2e-3
    assert second["info"] == {"epsilon": 0.1}
    assert third["event"] == "run_stopped" and third["reason"] == "done" and third["trials"] == 3
    assert first["at"] == third["at"] == 7.0


def test_the_live_table_has_a_row_per_task_and_ends_with_the_run():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    table = LiveTable(console, minutes=1.0)
    table.tt_run_started(RUN)
    table.tt_batch_measured(RUN, state(), batch(), [failed()])
    table.tt_run_stopped(RUN, [state()], "done")
    assert table._live is None
    out = io.StringIO()
    Console(file=out, width=120).print(table._table())
    text = out.getvalue()
    assert "conv2d_relu" in text and "softmax" in text and "1 build" in text and "left" in text


def test_a_maximum_that_a_stopper_adapts_is_shown_beside_the_trials():
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    table, out, plain = LiveTable(console), io.StringIO(), io.StringIO()
    lines = PlainLines(plain)
    told = batch()
    told.info["stopper"] = {"im": 287.5, "blocks": [[None, 0.0, 256.0]]}
    for view in (table, lines):
        view.tt_batch_measured(RUN, state(), told, [failed()])
    Console(file=out, width=120).print(table._table())
    assert "3 of at most 288" in out.getvalue()
    assert "3 trials of at most 288, 1 build" in plain.getvalue()
    told.info["stopper"]["im"] = -4.0
    lines.tt_batch_measured(RUN, state(), told, [failed()])
    assert "of at most 0," in plain.getvalue(), "a maximum below no trials is none"
