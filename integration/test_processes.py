"""Several `tt tune` on one history at once: all finish, nothing is lost, and none times while another does."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import events

WATCHED = '''
import os, time
from pathlib import Path
from tt_measure import Fixed
from tt_spec import Entry, hookimpl

class Watched(Fixed):
    """The fixed evaluator; keeps when each of its evaluations began and ended."""

    def evaluate(self, run, bar, rng):
        began = time.monotonic_ns()
        timing = super().evaluate(run, bar, rng)
        line = f"{os.environ['WHO']} {began} {time.monotonic_ns()}\\n"
        with open(os.environ["INTERVALS"], "a") as f:  # one short write: lines of several processes do not mix
            f.write(line)
        return timing

@hookimpl
def tt_evaluators():
    return [Entry("watched", Watched)]

@hookimpl
def tt_run_started(run):
    """Wait until every process has come so far."""
    Path("ready-" + os.environ["WHO"]).touch()
    for _ in range(3000):
        if len(list(Path().glob("ready-*"))) == int(os.environ["PROCESSES"]):
            return
        time.sleep(0.1)
    raise TimeoutError("the other processes never began")
'''


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A folder with a plug-in whose evaluator `watched` keeps its intervals; on PYTHONPATH it is as if installed."""
    folder = tmp_path / "plugin"
    about = folder / "watched-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "watched.py").write_text(WATCHED)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: watched\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tt]\nwatched = watched\n")
    return folder


MODELS = ("op:matmul:64,64,64", "op:matmul:64,64,64", "op:matmul:32,48,64")
"""Two runs have a task in common, the third has its own."""


@pytest.mark.slow
def test_runs_at_once_on_one_history(tmp_path, watched):
    at_once = [start(tmp_path, watched, str(i), m) for i, m in enumerate(MODELS)]
    results = []
    for p in at_once:
        out, err = p.communicate(timeout=400)
        assert p.returncode == 0, err[-2000:]
        results.append(events(out)[-1])

    assert all(r["trials"] == 12 and r["failure"] is None for r in results)
    db = sqlite3.connect(tmp_path / "tt.db")
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    trials = "from measurements where error is not 'invalid' and origin != 'again' group by run_id"
    kept = dict(db.execute(f"select run_id, count(*) {trials}"))
    assert kept == {r["run_id"]: 12 for r in results}
    assert db.execute("select count(*) from runs where reason is not null").fetchone() == (3,)
    assert db.execute("select count(distinct task_key) from measurements").fetchone() == (2,)
    db.close()
    logs = [json.loads(line) for p in (tmp_path / "tt.runs").iterdir() for line in p.read_text().splitlines()]
    assert sorted(e["run_id"] for e in logs if e["event"] == "result") == sorted(kept)

    spans = intervals(tmp_path)
    assert {who: sum(s[2] == who for s in spans) for who in "012"} == dict.fromkeys("012", 12)
    assert overlaps(spans) == []
    turns = sum(a[2] != b[2] for a, b in itertools.pairwise(spans))
    assert turns > 3, "one after the other shows nothing"


def test_the_check_can_fail():
    assert overlaps([(0, 5, "0"), (4, 6, "1"), (6, 7, "0")]) == [((0, 5, "0"), (4, 6, "1"))]


def start(folder: Path, plugin: Path, who: str, model: str) -> subprocess.Popen[str]:
    more = {
        "PYTHONPATH": str(plugin),
        "TMPDIR": str(folder),
        "PROCESSES": str(len(MODELS)),
        "INTERVALS": str(folder / "intervals"),
        "WHO": who,
    }
    command = [sys.executable, "-m", "tt_core", "tune", model, "--trials", "12", "--json", "--recipe", "random"]
    sets = ("evaluator=watched", "batch=4", "evaluator.min_repeat_ms=30", "measurer.workers=1")
    return subprocess.Popen(
        [*command, *(word for one in sets for word in ("--set", one))],
        cwd=folder,
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def intervals(folder: Path) -> list[tuple[int, int, str]]:
    """`(began, ended, who)` of every timing in nanoseconds, by beginning; the clock is the machine's, one for all."""
    lines = (line.split() for line in (folder / "intervals").read_text().splitlines())
    return sorted((int(began), int(ended), who) for who, began, ended in lines)


def overlaps(spans: list[tuple[int, int, str]]) -> list[tuple[tuple[int, int, str], tuple[int, int, str]]]:
    """Neighbours of which the second began before the first had ended."""
    return [(a, b) for a, b in itertools.pairwise(spans) if b[0] < a[1]]
