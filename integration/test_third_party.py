"""A stranger's distribution, `third_party/`: installed in a fresh environment, listed, tuned with by name, and judged
by the contracts that tt ships."""

from __future__ import annotations

import csv
import json
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tt_spec.testing import cases, contract_for

from .conftest import events

HERE = Path(__file__).parent / "third_party"
RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Runs Python in an environment of its own, in which `third_party` is installed as its README says.

    The environment is empty but for a `.pth` file that shows it this one's packages, editable ones among them, so that
    tt is installed in it without a download; pip finds the plug-in's dependencies there, and would fail on a missing
    one (`--no-index`). Nothing is written to this environment.
    """
    home = tmp_path_factory.mktemp("fresh") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    own = next(home.glob("lib/python*/site-packages"))
    house = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (own / "house.pth").write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in house))

    def run(*args, code=0, cwd=None, **env):
        environment = {**os.environ, **env}
        command = [home / "bin" / "python", *args]
        done = subprocess.run(command, cwd=cwd or home, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    run("-m", "pip", "install", "--no-index", "--no-build-isolation", "--disable-pip-version-check", str(HERE))
    return run


def test_it_is_installed_there_and_not_here(python):
    where = python("-c", "import acme_tt; print(acme_tt.__file__)").stdout
    assert "fresh" in where and str(HERE) not in where
    done = subprocess.run([sys.executable, "-c", "import acme_tt"], capture_output=True, text=True)
    assert "No module named 'acme_tt'" in done.stderr


@pytest.fixture(scope="module")
def listed(python):
    return json.loads(python("-m", "tt_core", "plugins", "--json").stdout)


def test_its_pieces_are_listed_with_their_distribution(listed):
    assert listed["broken"] == []
    mine = {(p["role"], p["name"], p["version"]) for p in listed["pieces"] if p["distribution"] == "acme-tt"}
    wanted = {
        ("searcher", "hillclimb"),
        ("surrogate", "knn"),
        ("surrogate", "linear"),
        ("measurer", "here"),
        ("store", "lines"),
        ("recipe", "acme"),
    }
    wanted |= {("listener", "tt_batch_measured")}
    assert mine == {(*piece, "1.0.0") for piece in wanted}


def test_its_options_are_tuned_by_suggest(python, listed, tmp_path):
    (climb,) = [p for p in listed["pieces"] if p["name"] == "hillclimb"]
    assert climb["ranges"]["steps"] == {"type": "integer", "low": 1, "high": 8, "log": False}
    task = "Task('k', 'convolution', 'conv2d', 'llvm', (), 1e6)"
    python("-c", f"from tt_history import SqliteStore as S; from tt_spec import Task; S('tt.db').remember([{task}])")
    recipe = tmp_path / "hill.toml"
    recipe.write_text('batch = 8\n[searcher]\npiece = "hillclimb"\n[surrogate]\npiece = "knn"\n')
    recorded = sorted(map(str, RECORDINGS.glob("*-template.json.gz")))
    command = ["-m", "tt_core", "suggest", "convolution", "--by", "replay", "--trials", "3", "--against", "random"]
    command += ["--recipe", str(recipe), "--device", "here", "--json"]
    command += [word for file in recorded for word in ("--recordings", file)]
    (found,) = json.loads(python(*command, "--out", str(tmp_path / "my.toml")).stdout)
    told, written = found["evidence"]["replay"], (tmp_path / "my.toml").read_text()
    assert told["recipe"]["searcher"]["piece"] == "hillclimb" and told["chosen"] < 1, told
    assert found["better"] and 'piece = "hillclimb"' in written and 'piece = "knn"' in written, told["held_out"]


def test_its_pieces_tune_an_operator_and_its_listener_writes_every_measurement(python, tmp_path):
    chosen = ["searcher=hillclimb", "searcher.steps=2", "surrogate=knn", "draft=none", "batch=8"]
    sets = [part for text in chosen for part in ("--set", text)]
    command = ["-m", "tt_core", "tune", "op:matmul:64,64,64", "--trials", "24", "--seed", "1", "--json", *sets]
    done = python(*command, "--out", "m.so", cwd=tmp_path, ACME_CSV="trials.csv")
    assert done.stderr == ""
    seen = events(done.stdout)
    result, batches = seen[-1], [e for e in seen if e["event"] == "batch_measured"]
    assert result["trials"] == 24 and result["after_s"] < result["before_s"]
    assert batches[1]["info"]["climbed"] > 0, "its searcher was asked"

    with (tmp_path / "trials.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    kept = (
        sqlite3.connect(tmp_path / "tt.db")
        .execute("select config, error from measurements where origin != 'again'")
        .fetchall()
    )
    written = sorted((tuple(map(int, x["config"].split())), x["error"] or None) for x in lines)
    assert written == sorted((tuple(json.loads(config)), error) for config, error in kept)
    assert {x["origin"] for x in lines if not x["error"]} == {"random", "search"}
    assert all(float(x["latency_s"]) > 0 for x in lines if not x["error"])
    seconds = {tuple(map(int, x["config"].split())): float(x["latency_s"]) for x in lines if x["latency_s"]}
    told = [m for batch in batches for m in batch["results"] if m["error"] is None]
    assert seconds == {tuple(m["config"]): float(np.median(m["seconds"])) for m in told}

    sidecar = json.loads((tmp_path / "m.so.json").read_text())
    assert sidecar["recipe"]["searcher"] == {"piece": "hillclimb", "steps": 2}
    assert sidecar["versions"]["acme-tt"] == "1.0.0"


@pytest.mark.slow
def test_its_measurer_and_store_tune_ship_and_show_their_history(python, tmp_path):
    sets = ["--recipe", "random", "--set", "measurer=here", "--set", "store=lines", "--set", "batch=8"]
    command = ["-m", "tt_core", "tune", "op:matmul:64,64,64", "--trials", "16", *sets]
    done = python(*command, "--history", "h.jsonl", "--out", "m.so", cwd=tmp_path)
    assert "verified against the untuned program" in done.stdout and (tmp_path / "m.so").exists()
    again = python(*command, "--history", "h.jsonl", cwd=tmp_path)
    assert "continuing: 16 measurements" in again.stdout
    shown = python("-m", "tt_core", "history", "show", "h.jsonl", "--store", "lines", cwd=tmp_path).stdout
    assert "2 runs" in shown and "16 trials are spent" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.startswith("matmul")]
    assert row[1] == "matmul" and row[4] == "32"


def test_its_cost_model_is_trained_beforehand_and_tunes(python, tmp_path):
    for name in ("mobilenet-dw-96-sketch", "mobilenet-dw-192-sketch", "encoder-up-sketch"):
        (tmp_path / f"{name}.json.gz").symlink_to(RECORDINGS / f"{name}.json.gz")
    train = ["-m", "tt_core", "train", ".", "--model", "linear", "--out", "w.json", "--hold-out", "mobilenet-dw-192*"]
    train.append("--with-held-out")  # all recordings are
    told = python(*train, "--set", "ridge=5", cwd=tmp_path).stdout
    assert "kept apart: 500 rows of 1 operator\n" in told and not (tmp_path / "w.json.checkpoint").exists()
    card = json.loads((tmp_path / "w.json").read_text())["card"]
    assert card["versions"]["acme-tt"] == "1.0.0" and card["options"] == {"ridge": 5}
    assert card["metrics"]["apart"]["pairs"][0] > 0.6, "the other depthwise convolution has taught it something"
    sets = ["surrogate=linear", "surrogate.weights=w.json", "draft=none", "batch=8"]
    command = ["-m", "tt_core", "tune", "op:matmul:64,64,64", "--trials", "16", "--json"]
    done = python(*command, *[part for text in sets for part in ("--set", text)], cwd=tmp_path)
    assert events(done.stdout)[-1]["trials"] == 16
    refused = python("-m", "tt_core", "train", ".", "--model", "knn", "--out", "k", code=2, cwd=tmp_path)
    assert "surrogate 'knn' cannot be trained beforehand: it lacks pretrain (Pretrains)" in refused.stderr


BLIND = """
import sys
from tt_core.cli.app import run
from acme_tt import here, lines

del here.InThisProcess.race
del lines.LinesStore.summary
sys.exit(run(sys.argv[1:]))
"""


def test_a_piece_without_a_capability_is_refused_by_its_name(python, tmp_path):
    tune = ["tune", "op:matmul:8,8,8", "--trials", "2", "--set", "measurer=here", "--out", "m.so"]
    done = python("-c", BLIND, *tune, code=2, cwd=tmp_path)
    assert "it lacks race (Races), which a run that writes a file (--out) needs" in done.stderr
    assert list(tmp_path.glob("tt.db*")) == [] or "trials" not in done.stdout
    (tmp_path / "h.jsonl").touch()
    done = python("-c", BLIND, "history", "show", "h.jsonl", "--store", "lines", code=2, cwd=tmp_path)
    assert "--store lines: it lacks summary (Summarises)" in done.stderr


def test_its_own_tests_run_the_contracts(python):
    roles = ("searcher", "surrogate", "surrogate", "store", "measurer")
    wanted = sum(len(cases(contract_for(role))) for role in roles)
    done = python("-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(HERE), str(HERE / "tests"))
    assert re.search(rf"\b{wanted} passed", done.stdout), done.stdout[-500:]


def test_a_misspelt_option_of_its_piece_is_told_like_our_own(python, tmp_path):
    args = ("-m", "tt_core", "tune", "op:matmul:8,8,8", "--set", "searcher=hillclimb", "--set", "searcher.step=2")
    done = python(*args, code=2, cwd=tmp_path)
    assert "searcher 'hillclimb' has no option 'step'; did you mean 'steps'?" in done.stderr
