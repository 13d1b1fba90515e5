"""benchmarks/busy.py: its figures, by hand."""

from __future__ import annotations

import importlib.util
import math

import pytest
from tt_bench.errors import BenchError
from workspace import ROOT

spec = importlib.util.spec_from_file_location("busy", ROOT / "benchmarks" / "busy.py")
assert spec is not None and spec.loader is not None
busy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(busy)


def side(trials, curve, idle_seen=None, took_s=290.0):
    about = {"idle": 0.4, "idle_seen": idle_seen, "trials": trials, "search_s": 200.0, "curve": curve}
    return {**about, "took_s": took_s, "minutes": 5.0, "alone_s": 0.010}


BEFORE = side(400, [(30.0, 0.03), (250.0, 0.012)])
NOW = side(800, [(20.0, 0.02), (90.0, 0.0119), (200.0, 0.01)], 0.08, 304.0)
BOTH = {"before": BEFORE, "now": NOW, "latency_s": {"before": 0.0125, "now": 0.0105}}


def test_ratios_by_hand():
    assert busy.ratio(BOTH) == pytest.approx((2.0, 90 / 300, 0.84))
    lines = busy.table({"resnet18/0/5": BOTH, "bert-tiny/0/5": BOTH}).splitlines()
    assert lines[2] == "| resnet18 | 0 | before | 40% | 2.00 | 0.83 | 12.5 | 1.25 | -10 |"
    assert lines[3] == "| resnet18 | 0 | now | 40% (8%) | 4.00 | 0.30 | 10.5 | 1.05 | +4 |"
    assert lines[-1] == "| geometric mean | 2 runs | now / before | | 2.00 | 0.30 | 0.840 | | |"


def test_a_run_that_never_was_as_good_counts_as_all_of_its_minutes():
    worse = {**BOTH, "now": side(400, [(20.0, 0.02)])}
    assert math.isinf(busy.quality(worse, "now")) and busy.ratio(worse)[1] == 1.0
    assert "| >= 1 |" in busy.table({"resnet18/0/5": worse})


def test_what_is_not_there_yet_is_left_out():
    lines = busy.table({"resnet18/0/5": {"now": NOW}}).splitlines()
    assert lines[2:] == ["| resnet18 | 0 | now | 40% (8%) | 4.00 |  |  |  | +4 |"]


def test_a_folder_that_is_no_checkout_is_refused(tmp_path):
    with pytest.raises(BenchError, match="is no checkout of tt: make one with git worktree"):
        busy.checked(tmp_path)
    assert busy.checked(ROOT) == ROOT.resolve()
