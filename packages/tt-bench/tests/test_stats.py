"""Statistics against their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_bench.compare import Comparison
from tt_bench.runs import Run
from tt_bench.stats import (
    area,
    final,
    geometric_interval,
    geometric_mean,
    geometric_text,
    holm,
    interval,
    paired,
    quality,
    time_to,
)


def run(true, t=None):
    t = t or [float(i + 1) for i in range(len(true))]
    return Run(t, [0] * len(true), list(true), list(true), list(true), {}, 0.0, "")


def test_a_run_in_figures():
    r = run([None, 4.0, 2.0, 2.1, 1.0], [1.0, 2.0, 4.0, 8.0, 16.0])
    assert quality(r, 1.0).tolist() == [0, 0.25, 0.5, 1 / 2.1, 1.0]
    assert [time_to(r, 1.0, s) for s in (0.2, 0.5, 0.51, 1.0)] == [2.0, 4.0, 16.0, 16.0]
    assert time_to(r, 0.9, 0.95) == math.inf
    assert final(r, 1.0) == 1.0 and final(run([]), 1.0) == 0.0
    assert area(r, 1.0, 5) == pytest.approx((0.25 + 0.5 + 1 / 2.1 + 1) / 5)
    assert area(r, 1.0, 10) == pytest.approx((0.25 + 0.5 + 1 / 2.1 + 1 + 5) / 10), "what was found stays"


@given(st.lists(st.floats(0.1, 100) | st.just(math.inf), min_size=1, max_size=20))
def test_an_interval_holds_its_median(values):
    mid, low, high = interval(values, np.random.default_rng(0), draws=200)
    x = sorted(values)
    want = (x[(len(x) - 1) // 2] + x[len(x) // 2]) / 2
    assert mid == want or (math.isinf(mid) and math.isinf(want))
    assert low <= mid <= high and min(values) <= low and high <= max(values)


def test_an_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hit = 0
    for _ in range(300):
        _, low, high = interval(rng.lognormal(size=25).tolist(), rng, draws=300)
        hit += low <= 1.0 <= high
    assert 0.90 <= hit / 300 <= 0.99


def test_geometric_means():
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([2.0, 0.0]) == 0.0 and geometric_mean([2.0, math.inf]) == math.inf
    assert math.isnan(geometric_mean([])) and all(map(math.isnan, geometric_interval([], np.random.default_rng(0))))


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_a_geometric_interval_turns_with_its_ratios(ratios):
    """Of b / a it is the reciprocal of that of a / b."""
    mid, low, high = geometric_interval(ratios, np.random.default_rng(0), draws=200)
    assert mid == pytest.approx(geometric_mean(ratios))
    assert min(ratios) <= low * (1 + 1e-9) and high <= max(ratios) * (1 + 1e-9)
    turned = geometric_interval([1 / r for r in ratios], np.random.default_rng(0), draws=200)
    assert turned == pytest.approx((1 / mid, 1 / high, 1 / low))


def test_a_table_shows_what_is_known_of_ratios():
    assert geometric_text([2.0, 2.0, math.nan, math.inf]) == "2.000 (2.000 to 2.000)"
    assert geometric_text([math.nan]) == geometric_text([]) == "-"


def test_a_geometric_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hit = 0
    for _ in range(300):
        _, low, high = geometric_interval(rng.lognormal(size=25).tolist(), rng, draws=300)
        hit += low <= 1.0 <= high
    assert 0.88 <= hit / 300 <= 0.98


def test_holm_corrects_step_by_step():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


def comparison(factor, seeds=12):
    rng = np.random.default_rng(0)
    runs = {}
    for unit in ("u", "v"):
        for seed in range(seeds):
            times = 10 * rng.lognormal(0, 0.5) * np.array([0.2, 0.5, 1.0])
            runs["a", unit, seed] = run([4.0, 2.0, 1.0], times.tolist())
            runs["b", unit, seed] = run([4.0, 2.0, 1.0], (factor(seed) * times).tolist())
    settings = {"recipes": {"a": {}, "b": {}}, "units": [{"name": "u"}, {"name": "v"}], "trials": 3, "seeds": seeds}
    return Comparison(settings, runs, {}, {"u": 1.0, "v": 1.0}, Path())


def test_a_real_difference_is_found_and_none_is_not():
    by = {p.figure: p for p in paired(comparison(lambda seed: 2.0 + 0.01 * seed))}
    slow = by["time to 95 %"]
    assert slow.pairs == 24 and slow.wins == 1.0 and slow.p < 1e-4
    assert 0.46 < slow.ratio[1] <= slow.ratio[0] <= slow.ratio[2] <= 0.5
    assert by["final"].p == 1.0 and by["final"].wins == 0.5 and by["final"].ratio == (1.0, 1.0, 1.0)
    mixed = {p.figure: p for p in paired(comparison(lambda seed: 1.3 if seed % 2 else 1 / 1.3))}
    assert mixed["time to 95 %"].p > 0.5


def test_one_that_never_arrives_loses_its_pair():
    done = comparison(lambda seed: 1.0)
    for key in list(done.runs):
        if key[0] == "b":
            done.runs[key] = run([4.0, 2.0, 1.5])
    slow = next(p for p in paired(done) if p.figure == "time to 95 %")
    assert slow.wins == 1.0 and slow.p < 1e-3 and slow.ratio[0] < 1e-3
