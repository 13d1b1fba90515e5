"""The traces on the disk: the run retold, and every way a history can be unusable."""

from __future__ import annotations

import json
import math
import resource
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median

import pytest
from tt_history import SqliteStore

OP = "op:matmul:64,64,64"


@pytest.fixture(scope="module")
def tuned(tt_in, tmp_path_factory) -> tuple[Path, str]:
    """A folder after two runs, the second without a log, and what the first printed."""
    folder = tmp_path_factory.mktemp("tuned")
    first = tt_in(folder, "tune", OP, "--trials", "12", "--recipe", "random", "--set", "batch=4", "--out", "m.so")
    second = tt_in(folder, "tune", OP, "--trials", "2", "--recipe", "random", "--no-log")
    assert "continuing: 12 measurements" in second.stdout and "not yet measured" not in second.stdout
    return folder, first.stdout


def test_a_finished_run_is_retold_as_it_was_shown(tuned, tt_in):
    folder, shown = tuned
    (log,) = (folder / "tt.runs").iterdir()
    assert shown.count(" trials left") == 3 and "times faster" in shown
    for which in ([], [log.stem[:6], "--history", str(folder / "tt.db")]):
        told = tt_in(folder, "history", "replay", *which)
        assert (told.stdout, told.stderr) == (shown, "")
    runs = tt_in(folder, "history", "show").stdout
    assert "2 runs" in runs and log.stem[:8] in runs and "12 trials are spent" in runs


def test_the_log_agrees_with_the_history_and_the_result(tuned):
    folder, _ = tuned
    (log,) = (folder / "tt.runs").iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    by_event = {e["event"]: e for e in lines}
    result, stopped = by_event["result"], by_event["run_stopped"]
    assert result["run_id"] == log.stem == by_event["run_started"]["run_id"]
    assert [(t["trials"], t["all_errors"]) for t in stopped["tasks"]] == [
        (t["trials"], t["errors"]) for t in result["tasks"]
    ]
    measured = [m for e in lines if e["event"] == "batch_measured" for m in e["results"]]
    with closing(sqlite3.connect(folder / "tt.db")) as db:
        of = "from measurements where run_id = ? and origin != 'again'"
        kept = db.execute(f"select config, error {of}", [log.stem]).fetchall()
    with closing(SqliteStore(folder / "tt.db")) as store:
        mine = [m for m in store.query() if m.run_id == log.stem]
    seconds = [m.seconds for m in mine if m.origin != "again"]
    again = [list(m.seconds) for m in mine if m.origin == "again"]
    assert [(m["config"], m["error"]) for m in measured] == [(json.loads(c), e) for c, e in kept]
    assert [tuple(m["seconds"]) for m in measured] == seconds
    assert [a["seconds"] for e in lines for a in e.get("info", {}).get("again", [])] == again
    assert stopped["tasks"][0]["best_s"] == pytest.approx(min(in_force(lines).values()))


def in_force(lines) -> dict[tuple[int, ...], float]:
    """The seconds that count of each row of a run's one operator, as docs/eventlog.md says."""
    latest: dict[tuple[int, ...], float] = {}
    for info, results in ((e["info"], e["results"]) for e in lines if e["event"] == "batch_measured"):
        latest = {config: seconds * info.get("rescaled", 1) for config, seconds in latest.items()}
        guesses = info.get("corrections", {"factor": 1, "configs": []})
        for config in map(tuple, guesses["configs"]):
            latest[config] *= guesses["factor"]
        level = info.get("levelled", 1)
        for told, factor in [*((m, level) for m in results), *((m, 1) for m in info.get("again", []))]:
            latest[tuple(told["config"])] = factor * median(told["seconds"]) if told["seconds"] else math.inf
    return latest


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 99")


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def other(path: Path) -> None:
    path.write_bytes(b"a model, by mistake" * 99)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (newer, ["version 99", "pip install --upgrade tt-history"]),
        (truncated, ["damaged", ".recover"]),
        (other, ["not a SQLite database", "choose another path"]),
    ],
)
def test_a_history_that_cannot_be_used_is_one_line_and_left_alone(tuned, here, tmp_path, harm, words):
    path = tmp_path / "tt.db"
    shutil.copy(tuned[0] / "tt.db", path)
    harm(path)
    before = path.read_bytes()
    for args in (["tune", OP, "--trials", "4"], ["history", "show"]):
        done = here(*args, code=6)
        assert len(done.stderr.splitlines()) == 1 and done.stdout == ""
        assert all(word in done.stderr for word in [str(path), *words])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["tt.db"]


def test_a_history_that_cannot_be_written_is_refused_before_any_work(tuned, here, tmp_path):
    shutil.copy(tuned[0] / "tt.db", tmp_path / "tt.db")
    done = here("tune", OP, "--trials", "4", "--history", f"file:{tmp_path}/tt.db?mode=ro", code=6)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "read-only; make the file and its folder writable, or choose another path" in done.stderr


def test_a_disk_that_fills_in_the_middle_costs_nothing_measured_before(tmp_path):
    """No file may grow beyond 500 kB: the history's log meets that after some rows, the library (40 kB) does not."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

    args = ["tune", OP, "--trials", "100", "--recipe", "random", "--set", "batch=4", "--out", "m.so"]
    command = [sys.executable, "-m", "tt_core", *args, "--set", "measurer.workers=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, preexec_fn=small)
    assert done.returncode == 7, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "the disk refused to read or write" in done.stderr and "is kept in tt.db" in done.stderr
    assert done.stdout.count("the run broke off (") == 1 and "times faster" in done.stdout
    assert (tmp_path / "m.so").exists() and (tmp_path / "m.so.json").exists()
    with closing(sqlite3.connect(tmp_path / "tt.db")) as db:
        assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
        (kept,) = db.execute("select count(*) from measurements where origin != 'again'").fetchone()
    assert 0 < kept < 100
    assert f"; {kept} trials in " in done.stdout


def test_a_run_that_has_no_log_is_one_line(here, tmp_path):
    done = here("history", "replay", code=6)
    assert len(done.stderr.splitlines()) == 1 and "tt.runs" in done.stderr and "tt tune" in done.stderr
    (tmp_path / "notes.txt").write_text("no log\nat all\n")
    done = here("history", "replay", "notes.txt", code=6)
    assert len(done.stderr.splitlines()) == 1 and "notes.txt, line 1" in done.stderr


def test_upkeep_is_part_of_tt(tuned, here, tmp_path):
    shutil.copy(tuned[0] / "tt.db", tmp_path / "tt.db")
    found = json.loads(here("history", "stats", "--json").stdout)
    assert found["rows"] - found["failures"].get("invalid", 0) >= 14  # with second looks
    assert (found["runs"], found["tasks"]) == (2, 1)
    (task,) = json.loads(here("history", "tasks", "--json").stdout)
    assert len(task["workload"]) == 16 and task["rows"] == 14
    with closing(SqliteStore(tmp_path / "tt.db")) as store:
        whole = store.task(task["key"])
        assert whole is not None and whole.payload and whole.space.key == next(iter(store.query())).space_key
    near = here("history", "nearest", "op:matmul:64,64,128", "--json")
    (other,) = json.loads(near.stdout)
    assert [(n["key"], n["rows"]) for n in other["nearest"]] == [(task["key"], 14)]
    assert 0 < other["nearest"][0]["distance"] < 1.5
    for args, words in (
        (["compact", "--by", "date", "--yes"], "removed"),
        (["prune", "--failed", "--yes"], "removed"),
        (["merge", "tt.db", "--into", "all.db"], "all.db has"),
        (["vacuum"], "integrity: ok"),
        (["show"], "2 runs"),
    ):
        done = here("history", *args)
        assert done.stderr == "" and words in done.stdout
    refused = here("history", "stats", "none.db", code=6)
    assert refused.stderr == "tt: no history none.db: tt tune writes one\n"
    again = here("tune", OP, "--trials", "2", "--recipe", "random", "--no-log")
    assert "continuing: " in again.stdout, "a history that was looked after goes on"


def test_what_another_compiler_built_is_measured_again(here, tmp_path):
    """The history of a run with another TVM: its rows stay, and none of them is believed."""
    before = here("tune", OP, "--trials", "4", "--recipe", "random", "--no-log", "--history", "other.db")
    assert "made again" not in before.stdout
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("UPDATE contexts SET versions = json_set(versions, '$.tvm', '0.26.0')")
    again = here("tune", OP, "--trials", "2", "--recipe", "random", "--no-log", "--history", "other.db")
    assert "4 measurements of these tasks are of programs built by tvm 0.26.0" in again.stdout
    assert "continuing: " not in again.stdout
    assert "2 runs" in here("history", "show", "other.db").stdout, "they stay in the history"
