"""Choosing where time goes, on a real operator: a convolution and what changes its layout."""

from __future__ import annotations

import json
import math
import shutil

import pytest

OP = "op:conv2d:1,8,14,16,3,1,1"


@pytest.fixture
def folder(tmp_path):
    """The content of the user's folder, with every byte of it."""
    return lambda: {p.name: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_dry_run_says_what_a_run_would_do_and_writes_nothing(here, tmp_path, folder):
    import tt_core

    fresh = json.loads(here("tune", OP, "--trials", "40", "--dry-run", "--json").stdout)
    assert folder() == {}
    assert fresh["planned"] == sum(t["planned"] for t in fresh["tasks"])
    conv, *copies = fresh["tasks"]
    assert conv["op"] == "conv2d" and {t["op"] for t in copies} == {"transpose"}
    assert conv["cap"] is None and conv["planned"] > 30 and conv["best_s"] is None and not conv["measured"]
    assert all(t["planned"] <= t["cap"] for t in copies)
    assert sum(t["share"] for t in fresh["tasks"]) == pytest.approx(1)
    assert fresh["seconds"] == pytest.approx(fresh["start_s"] + fresh["trial_s"] * fresh["planned"])
    assert fresh["recipe"]["scheduler"]["piece"] == "gradient" and fresh["recipe"]["light"] == 16

    tt_core.tune(OP, trials=6, recipe="random", history=tmp_path / "tt.db", log=False)
    before = folder()
    assert list(before) == ["tt.db"]
    known = tt_core.plan(OP, minutes=1, history=tmp_path / "tt.db").as_dict()
    assert folder() == before
    assert sum(t["history"] for t in known["tasks"]) == 6
    assert all(t["measured"] and t["best_s"] > 0 and t["trial_s"] > 0 for t in known["tasks"] if t["history"])
    trials_s = sum(t["seconds"] for t in known["tasks"])
    assert known["seconds"] == pytest.approx(known["start_s"] + trials_s)
    assert trials_s <= 60 + max(t["trial_s"] for t in known["tasks"])
    text = here("tune", OP, "--minutes", "1", "--tasks", "conv2d", "--dry-run").stdout
    assert (
        "scheduler: gradient trials=16" in text
        and "1 minutes" in text
        and "search included, as earlier runs took them" in text
    )
    assert f"left out: {len(copies)} tasks (transpose" in text and folder() == before
    assert tt_core.plan(OP, trials=8, history=None).planned == 8


@pytest.mark.slow
def test_what_is_left_out_ships_with_its_best_or_untuned(here, kept, tmp_path):
    import tt_core

    planned = tt_core.plan(OP, only_heavy=True, trials=9, history=None)
    assert [t.cap for t in planned.tasks] == [None] and planned.left_out
    copies = len(planned.left_out)
    done = here("tune", OP, "--only-heavy", "--trials", "4", "--recipe", "random", "--out", "heavy.so").stdout
    assert f"left out: {copies} tasks; 0 keep their best program from tt.db, {copies} stay untuned" in done
    sidecar = json.loads((tmp_path / "heavy.so.json").read_text())
    assert [t["knobs"] is not None for t in sidecar["tasks"]] == ["faster untuned" not in done, *[False] * copies]

    shutil.copy(tmp_path / "tt.db", tmp_path / "copy.db")
    none = ["--skip", "conv2d*", "--trials", "2", "--set", "measurer.build_timeout_s=0.001", "--history", "copy.db"]
    none += ["--set", "measurer.workers=1"]
    assert "no valid program was found" in here("tune", OP, *none, "--out", "none.so", code=7).stderr
    assert not (tmp_path / "none.so").exists(), "a good program of what was left out is no success"

    result = tt_core.tune(
        OP, skip="conv2d*", trials=4, recipe="random", history=tmp_path / "tt.db", out=tmp_path / "copies.so"
    )
    assert [t.op for t in result.tasks] == ["transpose"] * copies
    (conv,) = result.left_out
    assert math.isfinite(conv.best_s) and result.verified
    sidecar = json.loads((tmp_path / "copies.so.json").read_text())
    tuned = [t["name"] for t in sidecar["tasks"] if t["knobs"] is not None and t["latency_s"] > 0]
    assert sorted([*tuned, *result.untuned]) == sorted(t["name"] for t in sidecar["tasks"])
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["left_out"][0]["best_s"] == conv.best_s
