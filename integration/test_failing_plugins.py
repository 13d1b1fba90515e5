"""Plug-ins that break: before a run they are left out, in the middle of one they are named and nothing is lost."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from pathlib import Path

import pytest
from tt_spec import Listener

FAILING = Path(__file__).parent / "failing"
OP = "op:matmul:16,16,16"
QUICK = ("--set", "measurer.lock=false", "--set", "measurer.workers=1")
"""No figure is asserted here, so that other processes may disturb the timing."""


@pytest.fixture(scope="module")
def failing():
    """The plug-in `failing-tt`, installed as far as this process and its workers can see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FAILING)
        import failing_tt

        yield failing_tt
        for pool in failing_tt.KEPT:
            failing_tt.WorkerPool.close(pool)


ROLES = {
    "searcher": (6, "Bang"),
    "surrogate": (6, "ValueError: scores must be finite, 6 of 6 are not"),
    "sampler": (6, "ValueError: select must return rows (n, "),
    "scheduler": (6, "Bang"),
    "stopper": (5, "Bang"),
    "store": (4, "Bang"),
    "measurer": (4, "Bang"),
    "evaluator": (3, "Bang"),
}
"""The number of programs that are measured before each breaks, and what of."""


@pytest.mark.parametrize("role", ROLES)
def test_a_piece_that_breaks_in_mid_run_is_named_and_loses_nothing(role, failing, tmp_path):
    import tt_core

    kept, why = ROLES[role]
    heard = []

    class Hears(Listener):
        def tt_batch_measured(self, run, state, batch, results):
            heard.extend(m for m in results if m.error != "invalid")

    own = role in ("measurer", "evaluator")  # the others share workers, and writing a file goes the same way for all
    out = tmp_path / "m.so" if own else None
    sets = [f"{role}=bang", "batch=6", *([] if own else ["measurer=kept"]), "measurer.lock=false", "measurer.workers=1"]
    with pytest.warns(UserWarning) as warned:
        result = tt_core.tune(
            OP,
            recipe="random",
            trials=12,
            history=tmp_path / "h.db",
            out=out,
            set=sets,
            listeners=[Hears()],
        )
    assert str(result.failure).startswith(f"{role} 'bang' of failing-tt 0.3 failed: {why}")
    assert result.reason == f"broken off: {result.failure}"
    with sqlite3.connect(tmp_path / "h.db") as db:
        stored = db.execute(
            "select count(*) from measurements where error is not 'invalid' and origin != 'again'"
        ).fetchone()[0]
        reason = db.execute("select reason from runs").fetchone()[0]
    assert result.trials == stored == len(heard) == kept and reason == result.reason
    assert math.isfinite(result.tasks[0].best_s) and (out is None or (out.exists() and result.verified))
    texts = [str(w.message) for w in warned]
    assert sum("failing-tt 0.3: tt_warm_start failed and is left out: Bang" in t for t in texts) == 1
    assert sum("failing-tt 0.3 failed in tt_batch_measured; the run goes on: Bang" in t for t in texts) == 1


def test_the_command_says_it_in_one_line_and_exits_with_7(tt, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.fspath(FAILING))
    done = tt(
        "tune", OP, "--recipe", "random", "--set", "searcher=bang", "--set", "batch=4", *QUICK, "--out", "m.so", code=7
    )
    *warnings, line = done.stderr.strip().splitlines()
    what = "searcher 'bang' of failing-tt 0.3 failed: Bang"
    assert line == f"tt: the run broke off ({what}); everything measured before is kept in tt.db"
    assert len(warnings) == 2 and all(w.startswith("tt: warning: plug-in failing-tt 0.3") for w in warnings)
    assert (tmp_path / "m.so").exists(), "the best so far is written"


def distribution(folder: Path, name: str, source: str, entry: str = "") -> None:
    """A module with metadata, as an installer would leave it."""
    module = name.replace("-", "_")
    (folder / f"{module}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{module}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / f"{module}-1.0.dist-info" / "entry_points.txt").write_text(f"[tt]\n{entry or name} = {module}\n")
    (folder / f"{module}.py").write_text(source)


SEARCHER = "from tt_spec import Entry, hookimpl\n@hookimpl\ndef tt_searchers():\n    return [Entry({!r}, dict)]\n"


def test_plugins_that_cannot_be_loaded_are_left_out_and_listed(tt, tmp_path, monkeypatch):
    site = tmp_path / "site"
    distribution(site, "no-import", "import libfoo_that_nobody_has")
    distribution(site, "no-syntax", "def tt_searchers(:\n")
    distribution(site, "misspelt", SEARCHER.format("m").replace("tt_searchers", "tt_serchers"))
    distribution(site, "unmarked", SEARCHER.format("u").replace("@hookimpl\n", ""))
    distribution(site, "fine", SEARCHER.format("fine"))
    monkeypatch.setenv("PYTHONPATH", os.fspath(site))
    done = tt("plugins", "--json")
    listed = json.loads(done.stdout)
    why = {b["distribution"]: b["why"] for b in listed["broken"]}
    assert set(why) == {"no-import", "no-syntax", "misspelt", "unmarked"}
    assert why["no-import"] == "ModuleNotFoundError: No module named 'libfoo_that_nobody_has'"
    assert why["no-syntax"].startswith("SyntaxError: ")
    assert "there is no hook 'tt_serchers'; did you mean 'tt_searchers'" in why["misspelt"]
    assert "tt_searchers is not marked: put @tt_spec.hookimpl above it" in why["unmarked"]
    assert {"fine", "random"} <= {p["name"] for p in listed["pieces"] if p["role"] == "searcher"}
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all(
        line.startswith("tt: warning: plug-in ") and "1.0 is left out" in line for line in lines
    )


@pytest.mark.parametrize("entry", ["", "one"], ids=["two entries of one name", "two distributions of one name"])
def test_duplicates_are_one_line_that_names_both(tt, tmp_path, monkeypatch, entry):
    distribution(tmp_path / "site", "one", SEARCHER.format("same"))
    distribution(tmp_path / "site", "two", SEARCHER.format("same"), entry)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path / "site"))
    (line,) = tt("plugins", code=2).stderr.splitlines()
    assert "'same' is registered by both" in line or "both use the entry-point name 'one'" in line
    assert "one" in line and "two" in line
