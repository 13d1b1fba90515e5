"""Ceilings of a data set, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_bench import ceilings, dataset, statements
from tt_bench.ceilings import repeats, twins
from tt_bench.dataset import DataSet, Operator
from tt_bench_toy import SyntheticHost, task

NAN, INF = float("nan"), float("inf")


def test_pairs_whose_order_repeats():
    """Of rows 1, 2, 3 and 3.03 s, timed again as 1, 3, 2 and 4: two of six pairs change places, none of the others.
    The pair 3 and 3.03 is not 5 % apart; rows without a second time do not count, nor pairs of equal times."""
    first, second = np.array([1, 2, 3, 3.03]), np.array([1, 3, 2, 4.0])
    assert repeats(first, second) == (5, 6) and repeats(first, second, 0.05) == (4, 5)
    assert repeats(np.array([1, 2, INF, 5]), np.array([1, 2, NAN, NAN])) == (1, 1)
    assert repeats(np.array([1, 1.0]), np.array([1, 2.0])) == (0, 0)
    assert repeats(np.zeros(0), np.zeros(0)) == (0, 0)


def test_pairs_that_share_what_a_model_sees():
    """Rows a, a, a, b, b with 1, 2, 2, 4 and no time: of six valid pairs one has equal times, and two of the other five
    are twins. The second b failed, so the first has no twin."""
    names = [b"a", b"a", b"a", b"b", b"b"]
    assert twins(names, np.array([1, 2, 2, 4, INF])) == (2, 5, 3)
    assert twins([], np.zeros(0)) == (0, 0, 0)


def test_a_data_set_in_figures(tmp_path):
    t = task("a")
    codes = np.array(list(t.space.enumerate())[:4])
    seconds = np.array([1.0, 2.0, 3.0, INF])
    o = Operator(t, codes, seconds, np.array([2.0, 1.0, NAN, NAN]), np.array([-1, -1, -1, 1], np.int8))
    dataset.write(DataSet("toy", "0", (o,)), tmp_path)
    (shown,) = ceilings.show(tmp_path)
    total = shown.total
    assert (total.operators, total.rows, total.failed) == (1, 4, {"build": 1})
    assert (total.median, total.slow) == (2.0, pytest.approx(2.8))
    assert (total.repeats, total.pairs) == (0.0, 1) and np.isnan(total.twins)
    assert [x.name for x in shown.kinds] == ["conv2d"] and [x.name for x in shown.parts] == ["template"]
    statements.compute(SyntheticHost(), tmp_path)
    (shown,) = ceilings.show(tmp_path)
    assert (shown.total.twins, shown.total.twin_rows, shown.total.twin_ceiling) == (1.0, 1.0, 0.5), "all are the same"
    assert shown.held_out == ()


def test_an_operator_that_should_be_held_out_is_named(tmp_path):
    t = dataclasses.replace(task("a"), shapes="1x56x56x64, 3x3x64x64 -> 1x56x56x64")
    o = Operator(t, np.zeros((1, 4), np.int64), np.ones(1), np.full(1, NAN), np.full(1, -1, np.int8))
    dataset.write(DataSet("toy", "0", (o,)), tmp_path)
    assert next(ceilings.show(tmp_path)).held_out == ("a",)
