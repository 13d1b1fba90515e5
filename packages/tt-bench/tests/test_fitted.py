"""Histories that are no recording, answered by a model fitted to their rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_bench.fitted import LEAST, Fitted, parts_of
from tt_history import SqliteStore
from tt_spec import Bar, Knob, Measurement, Space, Task, VirtualClock
from tt_spec.pieces.once_evaluator import OnceEvaluator

SPACE = Space((Knob("a", "choice", tuple(range(64))), Knob("b", "choice", (0, 1, 3, 7))))
TASK = Task("k", "conv", "conv2d", "llvm", (SPACE,), 1e6)


def measured(row: tuple[int, int], **about) -> Measurement:
    fails = row[0] < 8
    seconds = () if fails else (1e-3 * (1 + row[0] + row[1]),)
    told = {"seconds": seconds, "error": "build" if fails else None, "device": "here", **about}
    return Measurement("k", SPACE.key, row, SPACE.decode(row), **told)


@pytest.fixture
def history(tmp_path):
    """Every second value of the first knob, all of the second; and rows that are none of the device's trials."""
    store = SqliteStore(tmp_path / "tt.db")
    store.remember([TASK, dataclasses.replace(TASK, key="small")])
    store.append([measured((a, b)) for a in range(0, 64, 2) for b in range(4)])
    store.append([measured((9, 0), device="elsewhere"), measured((11, 0), origin="again")])
    store.append([dataclasses.replace(measured((10, b)), task_key="small") for b in range(4)])
    store.close()
    return tmp_path / "tt.db"


def test_only_tasks_with_rows_enough_of_the_device_are_fitted(history):
    (part,) = parts_of(history, ["k", "small", "unknown"], "here")
    assert part.whole.key == "k" and len(part.rows) == 128 and np.isfinite(part.latency).sum() >= LEAST
    assert parts_of(history, ["k"], "elsewhere") == []


def test_unknown_rows_are_the_weighted_mean_of_their_five_nearest(history):
    (part,) = parts_of(history, ["k"], "here")
    replay = Fitted([part], OnceEvaluator(), VirtualClock(), unrecorded="refuse")
    rows = np.array([[40, 2], [41, 2], [3, 1]])
    by_row = {t.config: t for t in replay.measure(part.task, rows, Bar())}
    known, between, failed = (by_row[tuple(row)] for row in rows.tolist())
    assert known.latency_s == pytest.approx(0.043), "what was measured is served as it was"
    assert failed.error == "build", "among failures it fails"
    X = part.task.space.encode(part.rows)
    spread = np.where(X.std(axis=0) == 0, 1.0, X.std(axis=0))
    apart = np.linalg.norm((X - part.task.space.encode(rows[1:2])) / spread, axis=1)
    near = np.argsort(apart, kind="stable")[:5]
    weight = 1 / (apart[near] + 1e-6)
    wanted = np.exp((weight * np.log(part.latency[near])).sum() / weight.sum())
    assert between.latency_s == pytest.approx(wanted) and between.latency_s >= part.best_s
