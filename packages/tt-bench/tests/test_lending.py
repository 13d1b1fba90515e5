"""Recorded rows lent as a history would lend them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_bench.errors import BenchError
from tt_bench.lending import DEVICE, lender
from tt_bench.recording import Pace, Recorded
from tt_spec import Entry, Measurement, Plugins, Trial, hookimpl
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.synthetic import synthetic_task


def part(name, seconds, error=None, shapes="1x8"):
    task = dataclasses.replace(synthetic_task(name, knobs=2, choices=4), shapes=shapes)
    keep = tuple(tuple(range(2)) for _ in task.space.knobs)
    measured = []
    for i, s in enumerate(seconds):
        trial = Trial((i % 2, i // 2), (s,)) if s else Trial((i % 2, i // 2), error=error)
        measured.append(Measurement.of(trial, task))
    return Recorded.of(task, keep, measured, {}, Pace())


def test_other_tasks_are_lent_in_their_recorded_space_and_the_task_itself_is_not():
    own = part("own", [1.0, 2.0, 3.0, 4.0])
    near, far = part("near", [2.0, 1.0, 0, 4.0], "build", "1x16"), part("far", [1.0, 2.0, 3.0, 4.0], shapes="1x512")
    lend = lender([own], [far, own, near], Plugins())
    found = lend(own.task, 100)
    assert [f.task.name for f in found] == ["near", "far"]
    assert found[0].task.space.key == near.space.key != near.whole.space.key
    rows = dict(zip(map(tuple, found[0].rows.tolist()), found[0].seconds.tolist(), strict=True))
    assert rows == {(0, 0): 2.0, (1, 0): 1.0, (0, 1): np.inf, (1, 1): 4.0}, "failures teach too"
    assert sum(len(f.rows) for f in lend(own.task, 5)) == 5
    assert DEVICE == "recorded"


def test_a_store_that_lends_nothing_is_named():
    class Hooks:
        @hookimpl
        def tt_stores(self):
            return [Entry("sqlite", lambda path: MemoryStore())]

    plugins = Plugins(extra=[("old-history", Hooks())], installed=False)
    with pytest.raises(BenchError, match="the store sqlite lends no rows"):
        lender([], [], plugins)
