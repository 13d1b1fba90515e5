"""Which tasks are tuned."""

from __future__ import annotations

import dataclasses

import pytest
from tt_core.errors import ModelError
from tt_core.selection import select, share_of
from tt_spec.errors import OptionError
from tt_spec.pieces.synthetic import synthetic_task


def task(name, op, flops, weight=1.0):
    return dataclasses.replace(synthetic_task(name), op=op, flops=flops, weight=weight)


MODEL = [
    task("conv2d_add_relu", "conv2d", 50e9),
    task("conv2d_add_relu_2", "conv2d", 20e9, weight=2),
    task("conv2d_add", "dwconv2d", 4e9),
    task("matmul", "matmul", 2e9),
    task("matmul_add", "matmul", 2e9),
    task("softmax", "softmax", 2e9),
    task("transpose", "transpose", 0.0),
]


def names(**options):
    return [t.name for t in select(MODEL, **options)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("*", [t.name for t in MODEL]),
        ("conv2d_add", ["conv2d_add"]),
        ("conv2d_add*", ["conv2d_add_relu", "conv2d_add_relu_2", "conv2d_add"]),
        ("softmax,conv2d_add", ["conv2d_add", "softmax"]),
        (["softmax", "conv2d_add, transpose"], ["conv2d_add", "softmax", "transpose"]),
        ("conv2d_add_relu?2", ["conv2d_add_relu_2"]),
        ("conv2d", ["conv2d_add_relu", "conv2d_add_relu_2"]),  # no task of that name: the operator
        ("dw*", ["conv2d_add"]),
        ("matmul", ["matmul"]),  # a name goes before the operator
        (["*", "softmax"], [t.name for t in MODEL]),
    ],
)
def test_patterns_stand_for_names_or_else_operators(wanted, found):
    assert names(wanted=wanted) == found


def test_what_is_skipped_is_taken_from_what_is_wanted():
    assert names(wanted="conv2d*", skip="*_2") == ["conv2d_add_relu", "conv2d_add"]
    assert names(skip=["conv2d,dwconv2d", "matmul*"]) == ["softmax", "transpose"]


def test_only_the_fewest_that_hold_most_of_the_flop():
    heavy = ["conv2d_add_relu", "conv2d_add_relu_2", "conv2d_add", "matmul"]
    assert names(only_heavy=True) == heavy  # 50 + 40 + 4 + 2 of 100
    assert names(only_heavy=True, skip="conv2d_add_relu") == heavy[1:]  # of the whole model all the same


def test_measured_latency_goes_before_flop():
    slow = {t.key: 1e-3 for t in MODEL[:2]} | {MODEL[-1].key: 1e-2}
    assert names(only_heavy=True, best_s=slow)[-1] == "transpose"
    assert share_of(MODEL, slow)[-1] > 0.5 > share_of(MODEL)[-1] == 0.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"wanted": "conv*,sofmax"}, ["--tasks 'sofmax' matches none of the 7 tasks", "did you mean 'softmax'?"]),
        ({"skip": "dwcnv2d"}, ["--skip 'dwcnv2d' matches none", "'dwconv2d'"]),
        ({"wanted": ""}, ["--tasks '' matches none"]),
        ({"wanted": "softmax", "skip": "soft*"}, ["--skip soft* leaves none of the tasks that --tasks softmax chose"]),
        ({"wanted": "softmax", "only_heavy": True}, ["--only-heavy leaves none", "conv2d_add_relu_2"]),
    ],
)
def test_a_choice_of_nothing_says_so(options, says):
    with pytest.raises(OptionError) as e:
        select(MODEL, **options)
    assert all(text in str(e.value) for text in says) and "\n" not in str(e.value), str(e.value)


def test_a_model_without_tasks_says_so():
    with pytest.raises(ModelError, match="no operator that can be tuned"):
        select([])
