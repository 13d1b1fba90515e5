"""The commands, as `tt-history` has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tt_history import SqliteStore
from tt_history.cli import run
from tt_spec import Knob, Measurement, Plugins, Space, Task

FIXTURE = Path(__file__).parent / "data" / "version1.sqlite"
SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))), Knob("unroll", "choice", (0, 16))))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a small history, tt.db."""
    store = SqliteStore(tmp_path / "tt.db")
    shapes = "1x8x8x3, 3x3x3x4 -> 1x8x8x4"
    store.remember(
        [Task(k, f"layer{k}.conv", "conv2d", "llvm", (SPACE,), 1e9 * n, shapes=shapes) for n, k in ((1, "1"), (2, "2"))]
    )
    rows = [
        Measurement(k, SPACE.key, (i % 3, 0), SPACE.decode((i % 3, 0)), (1e-3 / (i + 1),), device="xeon", at=1.7e9 + i)
        for k in "12"
        for i in range(5)
    ]
    store.append([*rows, Measurement("2", SPACE.key, (1, 1), error="build", device="epyc", at=1.7e9)])
    store.close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *args: str, code: int = 0) -> str:
    """What a command prints; its mistakes are one line."""
    assert run(args) == code
    out, err = capsys.readouterr()
    if code:
        assert len(err.splitlines()) == 1 and not out
        return err
    return out


def records(path: str = "tt.db") -> int:
    store = SqliteStore(path)
    n = len(list(store.query()))
    store.close()
    return n


def test_stats(folder, capsys):
    text = said(capsys, "stats")
    assert "11 records of 2 tasks in 0 runs (schema 2)" in text and "measured again: 4" in text
    assert "failures: 1 build" in text and "device xeon: 10" in text and "bytes a record" in text
    found = json.loads(said(capsys, "stats", "tt.db", "--json"))
    assert (found["rows"], found["doubles"], found["devices"]) == (11, 4, {"epyc": 1, "xeon": 10})


def test_tasks(folder, capsys):
    lines = said(capsys, "tasks").splitlines()
    assert lines[0].split() == ["task", "key", "op", "shapes", "rows", "failed", "device", "best"]
    assert lines[1].startswith("layer1.conv  1") and lines[1].endswith("xeon    200.0 us") and len(lines) == 4
    found = json.loads(said(capsys, "tasks", "--json"))
    assert [(t["name"], t["rows"], t["failed"], len(t["devices"])) for t in found] == [
        ("layer1.conv", 5, 0, 1),
        ("layer2.conv", 6, 1, 2),
    ]


def test_nearest(folder, capsys):
    assert "0.50" in said(capsys, "nearest", "layer1.conv") and "layer2.conv" in said(capsys, "nearest", "1")
    (found,) = json.loads(said(capsys, "nearest", "1", "--json"))
    assert [(n["key"], n["rows"], n["distance"]) for n in found["nearest"]] == [("2", 6, 0.5)]
    assert "has no task 'resnet18'" in said(capsys, "nearest", "resnet18", code=6)


def test_compact_asks_before_anything_goes(folder, capsys, monkeypatch):
    before = (folder / "tt.db").read_bytes()
    assert "4 of 11 records would go" in said(capsys, "compact", "--by", "date", "--dry-run")
    line = said(capsys, "compact", "--by", "date", code=6)
    assert "4 of 11 records would go; nobody can be asked here: add --yes" in line
    assert records() == 11 and (folder / "tt.db").read_bytes() == before
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text: False)
    assert "nothing was changed" in said(capsys, "compact", "--by", "date")
    monkeypatch.setattr("typer.confirm", lambda text: True)
    assert "4 of 11 records removed" in said(capsys, "compact", "--by", "date")
    assert records() == 7
    found = json.loads(said(capsys, "compact", "--by", "mean", "--yes", "--json"))
    assert found == {"rows": 7, "removed": 0, "averaged": 0, "dry_run": False}


def test_compact_by_mean(folder, capsys):
    assert "4 of 11 records removed, 4 became the mean of theirs" in said(capsys, "compact", "--by", "mean", "--yes")


def test_prune(folder, capsys):
    assert "1 of 11 records removed" in said(capsys, "prune", "--failed", "--yes")
    assert "5 of 10 records would go" in said(capsys, "prune", "--task", "layer1.*", "--dry-run")
    assert (
        json.loads(said(capsys, "prune", "--older-than", "1d", "--keep-best", "1", "--yes", "--json"))["removed"] == 6
    )
    assert records() == 4, "the best row of each task with all its records"


@pytest.mark.parametrize(
    ("args", "rule"),
    [
        (["prune"], "say what goes"),
        (["prune", "--older-than", "soon"], "a number and s, m, h, d or w, e.g. 90d, got 'soon'"),
        (["compact", "--by", "hand"], "--by is date or mean, got 'hand'"),
        (["compact"], "Missing option '--by'"),
        (["stats", "tt.db", "more"], "unexpected extra argument"),
    ],
)
def test_wrong_options_are_one_line(folder, capsys, args, rule):
    assert rule in said(capsys, *args, code=2)
    assert records() == 11


def test_merge_and_vacuum(folder, capsys):
    shutil.copy(FIXTURE, folder / "old.db")
    before = (folder / "old.db").read_bytes()
    text = said(capsys, "merge", "tt.db", "old.db", "tt.db", "--into", "all.db", "--dry-run")
    assert "all.db would have 72 records" in text and not (folder / "all.db").exists()
    assert "all.db has 72 records, 72 of them new; 12 counted once" in said(
        capsys, "merge", "tt.db", "old.db", "tt.db", "--into", "all.db"
    )
    assert records("all.db") == 72 and records("tt.db") == 11
    assert (folder / "old.db").read_bytes() == before, "sources are only read"
    assert json.loads(said(capsys, "merge", "old.db", "--into", "all.db", "--json"))["added"] == 0
    assert "integrity: ok" in said(capsys, "vacuum", "all.db")
    assert json.loads(said(capsys, "vacuum", "all.db", "--dry-run", "--json"))["integrity"] == "ok"


def test_a_dry_run_on_an_older_file_changes_nothing(folder, capsys):
    shutil.copy(FIXTURE, folder / "old.db")
    for args in (["compact", "--by", "mean"], ["prune", "--failed"], ["vacuum"]):
        said(capsys, args[0], "old.db", *args[1:], "--dry-run")
    said(capsys, "merge", "tt.db", "--into", "old.db", "--dry-run")
    for args in (["stats"], ["tasks"]):
        said(capsys, args[0], "old.db")
    store = SqliteStore(folder / "old.db")
    assert store.space(SPACE.key) is None and len(list(store.query())) == 62
    store.close()
    assert "schema 1" in said(capsys, "stats", "old.db")


@pytest.mark.parametrize(
    "command", ["stats", "tasks", "compact --by date", "prune --failed", "vacuum", "merge --into c.db"]
)
def test_files_that_cannot_be_used_are_one_line(folder, capsys, command):
    (folder / "notes.txt").write_text("no history")
    name, *options = command.split()
    assert "no history nowhere.db: tt tune writes one" in said(capsys, name, "nowhere.db", *options, code=6)
    assert "not a SQLite database, and left as it is" in said(capsys, name, "notes.txt", *options, code=6)
    assert (folder / "notes.txt").read_text() == "no history"


def test_the_program_itself(folder):
    code = "import sys; from tt_history.cli import main; sys.argv[0] = 'tt-history'; main()"
    done = subprocess.run([sys.executable, "-c", code, "stats", "--json"], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["rows"] == 11
    done = subprocess.run([sys.executable, "-c", code, "stats", "none.db"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (
        6,
        "",
    ) and done.stderr == "tt-history: no history none.db: tt tune writes one\n"


def test_they_are_commands_of_tt_too():
    from tt_history import commands, hooks

    plugins = Plugins([("tt-history", hooks)], installed=False)
    names = ["compact", "export", "import", "merge", "nearest", "prune", "stats", "tasks", "vacuum"]
    assert plugins.names("command") == [*(f"history {n}" for n in names), "suggest"]
    assert [plugins.build("command", f"history {n}") for n in names] == [commands.COMMANDS[n] for n in names]


def test_event_logs_go_by_age_and_size(folder, capsys):
    """Newest first; those of the last day stay, and so does whatever is no run's log."""
    logs = folder / "tt.runs"
    logs.mkdir()
    names = [f"{i:032x}.jsonl" for i in range(5)]
    for days, name in zip((0, 2, 3, 100, 200), names, strict=True):
        (logs / name).write_text("x" * 1_000_000)
        changed = time.time() - 86400 * days
        os.utime(logs / name, (changed, changed))
    (logs / "mine.jsonl").write_text("kept")
    os.utime(logs / "mine.jsonl", (0, 0))
    (folder / "target").write_text("kept")
    os.symlink(folder / "target", logs / f"{9:032x}.jsonl")
    os.utime(logs / f"{9:032x}.jsonl", (0, 0), follow_symlinks=False)

    assert "2 of 5 event logs (2.0 MB) would go" in said(capsys, "prune", "--runs", code=6)
    assert "2 of 5 event logs (2.0 MB of 5.0 MB) would go" in said(capsys, "prune", "--runs", "--dry-run")
    assert len(list(logs.iterdir())) == 7
    found = json.loads(said(capsys, "prune", "--runs", "--yes", "--json"))
    assert found == {"removed": 2, "removed_bytes": 2_000_000, "logs": 5, "bytes": 5_000_000, "dry_run": False}
    said(capsys, "prune", "--runs", "--yes", "--keep-mb", "2.5")
    assert sorted(p.name for p in logs.glob("0000*")) == [*names[:2], f"{9:032x}.jsonl"]
    said(capsys, "prune", "--runs", "--yes", "--keep-mb", "0")
    assert (logs / names[0]).exists() and not (logs / names[1]).exists(), "a run may be writing the newest"
    said(capsys, "prune", "--runs", "--yes", "--older-than", "0s")
    assert sorted(p.name for p in logs.iterdir()) == [f"{9:032x}.jsonl", "mine.jsonl"]
    assert (folder / "target").read_text() == "kept" and records() == 11


def test_event_logs_are_no_records(folder, capsys):
    assert "logs are files, no records" in said(capsys, "prune", "--runs", "--failed", code=2)
    assert "--keep-mb goes with --runs" in said(capsys, "prune", "--keep-mb", "1", code=2)
    assert "no event logs beside" in said(capsys, "prune", "--runs", code=6)
