"""The main job, as a user does it: one operator, all commands, a file that TVM alone can load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tt_core.cli.app import run
from tt_core.host import Host
from tt_spec import Listener

from .conftest import events

OP = "op:matmul:64,64,64"


@pytest.mark.slow
def test_tune_writes_a_verified_library_and_continues_where_it_stopped(tt, here, tmp_path):
    first = events(tt("tune", OP, "--trials", "24", "--out", "m.so", "--json", "--seed", "1").stdout)
    result = first[-1]
    assert result["event"] == "result"
    assert result["trials"] == 24
    assert result["restored"] == 0
    assert result["after_s"] < result["before_s"]
    assert "the untuned program" in result["verified"]
    batches = [e for e in first if e["event"] == "batch_measured"]
    assert sum(e["measured"] for e in batches) == 24
    sidecar = json.loads((tmp_path / "m.so.json").read_text())
    assert sidecar["inputs"] == [{"name": "x", "shape": [64, 64], "dtype": "float32"}]
    assert sidecar["latency_after_s"] == result["after_s"]
    assert sidecar["recipe"]["name"] == "tt"
    one, other = Host().raced([tmp_path / "m.so"] * 2, rounds=4, seconds=0.02, races=2)
    assert one > 0 and other > 0

    again = events(here("tune", OP, "--trials", "8", "--json", "--seed", "1").stdout)
    assert any("24 measurements" in e.get("text", "") for e in again)
    assert again[-1]["restored"] == 24
    shown = json.loads(here("history", "show", "--json").stdout)
    assert len(shown["runs"]) == 2
    assert sum(t["trials"] for t in shown["tasks"]) == 32
    import sqlite3

    rows = (
        sqlite3.connect(tmp_path / "tt.db")
        .execute("select task_key, config from measurements where origin != 'again'")
        .fetchall()
    )
    assert len(rows) == len(set(rows)) == 32  # nothing was measured twice

    timed = json.loads(tt("run", "m.so", "--seconds", "0.2", "--json").stdout)
    assert 0 < timed["p10_s"] <= timed["median_s"] <= timed["p90_s"]
    assert "median" in here("run", "m.so", "--seconds", "0.2").stdout


def test_tvm_alone_loads_the_file_as_the_readme_says(here, tmp_path):
    here("tune", OP, "--trials", "4", "--recipe", "random", "--out", "m.so")
    code = """
import os; os.environ["TVM_NUM_THREADS"] = "2"
import numpy as np, tvm
from tvm import relax
vm = relax.VirtualMachine(tvm.runtime.load_module("./m.so"), tvm.cpu())
x = np.eye(64, dtype="float32")
a, b = (vm["main"](tvm.runtime.tensor(v)).numpy() for v in (x, 2 * x))
assert np.allclose(b, 2 * a) and abs(a).max() > 0
import sys
assert not any(m.startswith("tt_") for m in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_interface_agrees_with_the_store(tmp_path, kept):
    import tt_core

    factors = {}

    class Scales(Listener):
        def tt_batch_measured(self, run, state, batch, results):
            for m in results:
                factors[m.config] = batch.info.get("levelled", 1.0)
            for config in factors.keys() - {m.config for m in results}:
                factors[config] *= batch.info.get("rescaled", 1.0)
            guesses = batch.info.get("corrections", {"factor": 1.0, "configs": []})
            for config in map(tuple, guesses["configs"]):
                factors[config] *= guesses["factor"]

    result = tt_core.tune(OP, trials=12, history=tmp_path / "h.db", recipe="autotvm", seed=3, listeners=[Scales()])
    assert result.trials == 12
    assert result.tasks[0].gflops > 0
    assert result.as_dict()["reason"] == "12 trials are spent"
    from tt_history.sqlite import SqliteStore

    store = SqliteStore(str(tmp_path / "h.db"))
    kept = list(store.query())
    store.close()
    assert len(kept) == 12
    assert result.tasks[0].best_s == pytest.approx(min(factors[m.config] * m.latency_s for m in kept))


def test_same_seed_asks_the_same_first_batch(tmp_path, kept):
    import tt_core

    asked = []

    class Asked(Listener):
        def tt_batch_measured(self, run, state, batch, results):
            asked.append(batch.codes.tolist())

    for _ in range(2):
        tt_core.tune(OP, trials=8, history=None, seed=5, recipe="random", listeners=[Asked()])
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    "form", ["op:conv2d:1,8,14,16,3,1,1", "op:dwconv2d:1,16,14,3,2,1", "op:batch_matmul:2,16,16,16"]
)
def test_every_operator_form_tunes_and_verifies(here, form):
    result = events(
        here(
            "tune",
            form,
            "--trials",
            "12",
            "--recipe",
            "random",
            "--set",
            "scheduler.trials=4",
            "--out",
            "o.so",
            "--json",
        ).stdout
    )[-1]
    assert result["verified"]
    assert all(t["best_s"] for t in result["tasks"])


def test_tasks_lists_what_can_be_tuned(here):
    found = json.loads(here("tasks", "resnet18", "--json").stdout)
    convolutions = [t for t in found if t["op"] == "conv2d"]
    assert sum(t["weight"] for t in convolutions) == 20
    assert not any("norm" in t["name"] for t in found)
    assert sum(t["share"] for t in found) == pytest.approx(1) and found[0]["share"] > 0.1
    assert all(t["size"] >= 1 and t["knobs"] >= 1 for t in found)
    text = here("tasks", OP).stdout
    assert "matmul" in text and "64x64" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tune", "resnet81"], ["resnet81", "resnet18"]),
        (["tune", OP, "--recipe", "autotvn"], ["autotvn", "autotvm"]),
        (["tune", OP, "--set", "searcher.chans=3", "--recipe", "autotvm"], ["chans", "chains"]),
        (["tune", OP, "--target", "llvn"], ["llvn", "llvm"]),
        (["tune", OP, "--target", "cuda"], ["cuda", "machine"]),
        (["tune", OP, "--tasks", "conv*"], ["conv*", "matmul"]),
        (["tune", OP, "--tasks", "matmul,sofmax"], ["'sofmax'", "matmul"]),
        (["tune", OP, "--skip", "matmul"], ["--skip matmul leaves none"]),
        (["tune", OP, "--dry-run", "--set", "light=0"], ["light", "whole number"]),
        (["tune", OP, "--shape", "x"], ["name=1,3,224,224"]),
        (["tune", OP, "--recipe", "tt", "--set", "searcher.population=abc"], ["population", "int", "abc"]),
        (["tune", OP, "--seed", "-1"], ["seed", "-1"]),
        (["tune", OP, "--minutes", "inf"], ["minutes", "inf"]),
        (["tune", OP, "--set", "measurer.workers=0"], ["measurer", "at least 1"]),
        (["tune", OP, "--out", "missing/folder/m.so"], ["missing/folder/m.so"]),
        (["run", "none.so"], ["none.so", "tt tune"]),
        (["history", "show", "none.db"], ["none.db"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(tmp_path, kept, monkeypatch, capfd, args, words):
    monkeypatch.chdir(tmp_path)
    codes = {"resnet81": 3, "llvn": 4, "cuda": 4, "x": 3, "none.so": 3, "missing/folder/m.so": 6, "none.db": 6}
    assert run(args) == next((c for w, c in codes.items() if w in args), 2)
    said = capfd.readouterr().err
    assert len(said.strip().splitlines()) == 1, said
    assert all(word in said for word in words), said


def test_plugins_and_recipes_are_listed(here):
    pieces = json.loads(here("plugins", "--json").stdout)
    assert pieces["broken"] == []
    names = {(p["role"], p["name"]) for p in pieces["pieces"]}
    assert {("searcher", "anneal"), ("surrogate", "xgb"), ("store", "sqlite"), ("measurer", "local")} <= names
    recipes = {r["name"]: r["pieces"] for r in json.loads(here("recipes", "--json").stdout)}
    assert recipes["autotvm"]["searcher"]["piece"] == "anneal"
    assert recipes["autotvm"]["surrogate"]["inputs"] == "statements"
    assert not any("unusable" in p for p in recipes.values())


def test_tables_are_plain_lines_where_nobody_looks(tt, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    for words, row, cells in (
        (["plugins"], "contextual-anneal", ["searcher", "tt-search", "AdaTune"]),
        (["tasks", "op:matmul:64,64,64"], "-> 64x64", ["matmul", "100.0%"]),
    ):
        (line,) = [line for line in tt(*words).stdout.splitlines() if row in line]
        assert all(cell in line for cell in cells), line
