"""What a search learned from others is said once."""

from __future__ import annotations

import numpy as np
import pytest
from tt_core.events.transfer import TransferNotes
from tt_spec import Batch, RunInfo, TaskState
from tt_spec.pieces.synthetic import synthetic_task

TASK = synthetic_task("conv2d")


def batch(**info):
    codes = np.zeros((1, 4), dtype=np.int64)
    return Batch(1, codes, ("transfer",), np.full(1, np.nan), codes[:0], info)


def test_sources_failures_and_what_was_dropped_are_said_once():
    said: list[str] = []
    notes = TransferNotes(said.append)
    about = {"weight": 1.0, "tasks": {"conv2d_1 (near)": 40, "conv2d (device)": 2}, "rows": 42}
    dropped = {"weight": 0.5, "dropped": {"draft": "ranks nothing"}, "failed": {"conv2d_1": "RuntimeError: old"}}
    for info in ({}, {"transfer": about}, {"transfer": dropped}, {"transfer": dropped}):
        notes.tt_batch_measured(RunInfo("r", (TASK,)), TaskState(TASK), batch(**info), [])
    assert said == [
        "conv2d: its first cost model learned from 42 foreign rows (40 of conv2d_1 (near), 2 of conv2d (device))",
        "conv2d: programs of conv2d_1 could not be made and are left out: RuntimeError: old",
        "conv2d: the foreign draft was dropped: it ranks nothing",
    ]


def said_of_weights(options):
    said: list[str] = []
    notes, run = TransferNotes(said.append), RunInfo("r", (TASK,), options)
    for _ in range(2):
        notes.tt_batch_measured(run, TaskState(TASK), batch(weights="znver4/A/2 cores, znver5/A/2 cores"), [])
    return said


def test_weights_of_another_machine_are_named_once_and_as_such():
    other = ", another machine than this one"
    cases = (("znver4/A/2 cores", ""), ("znver5/A/2 cores", ""), ("znver3/B/2 cores", other), ("znver4/A", other))
    for device, more in cases:
        known = "learned beforehand on znver4/A/2 cores, znver5/A/2 cores"
        assert said_of_weights({"device": device}) == [f"first batches are chosen by a cost model, {known}{more}"]


@pytest.mark.parametrize(
    ("draft", "surrogate", "named"),
    [
        ("shipped", None, "the weights that ship with tt"),
        ("shipped", "shipped", "the weights that ship with tt"),
        ("none", "mine.st", "the weights in mine.st"),
        ("mine.st", "shipped", "the weights in mine.st and the weights that ship with tt"),
    ],
)
def test_weights_are_called_by_what_the_recipe_calls_them(draft, surrogate, named):
    recipe = {"draft": {"piece": "xgb", "weights": draft}, "surrogate": {"piece": "atformer", "weights": surrogate}}
    (line,) = said_of_weights({"device": "znver4/A/2 cores", "recipe": recipe})
    assert line.startswith(f"first batches are chosen by {named}, learned beforehand on znver4/A")
