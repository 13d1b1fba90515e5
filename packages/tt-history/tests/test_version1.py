"""Files of schema version 1: read as they are, migrated by the first write, never lost.

`data/version1.sqlite` was written by the code of version 1, from `content()` below.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tt_history import SqliteStore, StoreError
from tt_spec import ERRORS, Knob, Measurement, Space, Task

FIXTURE = Path(__file__).parent / "data" / "version1.sqlite"
SPACE = Space(
    (
        Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))),
        Knob("unroll", "choice", (0, 16)),
        Knob("pad", "choice", ("no", "apart"), (1, (1,))),
    )
)
TASKS = [
    Task("a1", "conv", "conv2d", "llvm -mcpu=x", (SPACE,), 1e9, 2.0, b"payload", "1x8x8x3, 3x3x3x4 -> 1x8x8x4"),
    Task("b2", "dense", "matmul", "llvm -mcpu=x", (SPACE,), 2e6, 1.0, b"", "8x8, 8x8 -> 8x8"),
]
VERSIONS = {"python": "3.11", "tvm": "0.27.0.post1"}
ROW = Measurement("a1", SPACE.key, (0, 0, 0), SPACE.decode((0, 0, 0)), (1e-9,), device="xeon", at=1.8e9)

OLD_INSERT = (
    "INSERT INTO measurements (task_key, space_key, config, knobs, seconds, median_s, runs, error, why, cost, origin,"
    " device, versions, at, run_id)"
    " VALUES ('t', 's', '[1]', '{}', '[0.1]', 0.1, 1, NULL, '', '{}', '', '', '{}', 1, '')"
)
"""As the code of version 1 writes."""


def content() -> list[Measurement]:
    rows = [tuple(r.tolist()) for r in SPACE.enumerate()]
    found = []
    for i in range(60):
        row = rows[i % len(rows)]
        fields: dict = {
            "knobs": SPACE.decode(row),
            "device": ("xeon", "epyc")[i % 5 == 0],
            "versions": VERSIONS,
            "at": 1.7e9 + i,
            "run_id": f"run{i // 30}",
        }
        task = TASKS[i % 2].key
        if i % 7 == 3:
            error = ERRORS[i // 7 % len(ERRORS)]
            why, cost = f"{error} of row {i}\nsecond line", {"build": 0.5 + i}
            found.append(Measurement(task, SPACE.key, row, error=error, why=why, cost=cost, origin="random", **fields))
        else:
            seconds = tuple(1e-3 / (i + 1) * (1 + k / 7) for k in range(1 + i % 4))
            cost = {"apply": 0.1, "build": i / 3, "run": 1e-5}
            why = "one run" if i % 3 else ""
            found.append(Measurement(task, SPACE.key, row, seconds=seconds, runs=10 + i, why=why, cost=cost, **fields))
    odd = {"x": (1, (2, 3)), "y": [1, True], "z": math.inf}
    found.append(Measurement("c3", "old-space", (), odd, (2.0,), 1, why="\N{SNOWMAN}", cost={"odd": math.inf}))
    return [*found, found[10]]


RUNS = [
    {
        "id": "run0",
        "started": 1.7e9,
        "ended": 1.7e9 + 60,
        "reason": "60 trials are spent",
        "info": {"model": "m", "seed": 1, "recipe": {"name": "tt"}, "tuple": (1, 2)},
    },
    {"id": "run1", "started": 1.7e9 + 30, "ended": None, "reason": None, "info": {"model": "n"}},
]
BEST = {
    ("a1", None): ((0, 1, 1), 1.7e9 + 56),
    ("a1", "epyc"): ((1, 1, 1), 1.7e9 + 50),
    ("b2", "xeon"): ((1, 0, 0), 1.7e9 + 57),
    ("c3", None): ((), 0.0),
}


@pytest.fixture
def path(tmp_path) -> Path:
    return Path(shutil.copy(FIXTURE, tmp_path / "tt.db"))


def version(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def check(store: SqliteStore, more: int = 0) -> None:
    """Everything of the fixture is there."""
    found = list(store.query())
    assert found[: len(found) - more] == content()
    assert [repr(m.knobs) for m in found[:62]] == [repr(m.knobs) for m in content()]
    assert store.runs()[:2] == RUNS
    assert [
        (t["key"], t["name"], t["op"], t["target"], t["shapes"], t["flops"], t["weight"]) for t in store.tasks()
    ] == [(t.key, t.name, t.op, t.target, t.shapes, t.flops, t.weight) for t in TASKS]
    if not more:
        for (task, device), (config, at) in BEST.items():
            best = store.best(task, device)
            assert best is not None and (best.config, best.at) == (config, at)
    summary = {(s["task_key"], s["device"]): s for s in store.summary()}
    assert list(summary) == [("a1", "epyc"), ("b2", "xeon"), ("a1", "xeon"), ("b2", "epyc"), ("c3", "")]
    b2 = summary["b2", "xeon"]
    assert (b2["trials"], b2["failed"], b2["invalid"], b2["name"]) == (23, 3, 1, "dense")
    assert b2["best_s"] == pytest.approx(1.8472906403940885e-05) and b2["last"] == 1.7e9 + 59
    assert b2["space_key"] == SPACE.key


def test_it_is_read_as_it_is(path):
    before = path.read_bytes()
    store = SqliteStore(path)
    check(store)
    assert list(store.query("a1", SPACE.key, "epyc")) == [
        m for m in content() if (m.task_key, m.device) == ("a1", "epyc")
    ]
    unknown = {"spaces": (), "payload": b"", "workload": ""}
    assert store.task("a1") == replace(TASKS[0], **unknown) and store.space(SPACE.key) is None
    store.close()
    assert path.read_bytes() == before


def test_a_read_only_file_is_read_and_a_write_says_that_it_cannot(path):
    store = SqliteStore(f"file:{path}?mode=ro")
    check(store)
    with pytest.raises(StoreError, match="read-only; make the file and its folder writable"):
        store.append([ROW])
    check(store)
    store.close()
    assert version(path) == 1


def test_the_first_write_migrates_and_says_so(path):
    store, reader = SqliteStore(path), SqliteStore(path)
    check(reader)
    with pytest.warns(
        UserWarning, match=r"tt\.db: brought from schema version 1 to 2; 'tt history vacuum' gives"
    ) as said:
        store.append([ROW])
    assert len(said) == 1 and "\n" not in str(said[0].message)
    assert version(path) == 2
    check(store, more=1)
    check(reader, more=1)
    assert list(store.query())[-1] == ROW
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.append([ROW])
        reader.append([ROW])
    assert len(list(reader.query())) == 65
    reader.close()
    store.close()


@pytest.mark.filterwarnings("ignore:.*brought from schema version 1")
def test_tables_of_others_and_ids_survive(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM measurements WHERE id = 7")
        db.commit()
    store = SqliteStore(path)
    store.remember([])
    store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM tt_bench_statements").fetchall() == [("a1", SPACE.key, "[0, 0, 0]", "eJw=")]
        assert [i for (i,) in db.execute("SELECT id FROM measurements ORDER BY id")] == [*range(1, 7), *range(8, 63)]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.filterwarnings("ignore:.*brought from schema version 1")
def test_rows_need_no_knobs_once_their_task_is_known(path):
    store = SqliteStore(path)
    store.remember(TASKS)
    store.append([ROW])
    store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT knobs FROM records WHERE id = 63").fetchone() == (None,)
    again = SqliteStore(path)
    check(again, more=1)
    assert list(again.query())[-1] == ROW
    assert again.task("a1") == TASKS[0] and again.space(SPACE.key) == SPACE
    again.close()


def test_a_process_of_the_older_version_gets_one_clear_line(path):
    older = sqlite3.connect(path, isolation_level=None)
    older.execute("SELECT count(*) FROM measurements").fetchall()
    store = SqliteStore(path)
    with pytest.warns(UserWarning, match="brought from"):
        store.append([ROW])
    for insert in (OLD_INSERT, "INSERT OR REPLACE INTO tasks (key, name) VALUES ('a1', 'x')"):
        with pytest.raises(sqlite3.DatabaseError) as said:
            older.execute(insert)
        assert str(said.value) == "schema version 2 needs a newer tt-history: pip install --upgrade tt-history"
    (knobs,) = older.execute("SELECT knobs FROM measurements").fetchone()
    assert "pip install --upgrade tt-history" in knobs, "which version 1 quotes when it cannot read a row"
    older.close()
    check(store, more=1)
    store.close()


KILL = """
import os, signal, sys
from tt_history import SqliteStore
store = SqliteStore(sys.argv[1])
list(store.query())
die = lambda text: os.kill(os.getpid(), signal.SIGKILL) if text.strip().startswith(sys.argv[2]) else None
store._connection().set_trace_callback(die)
store.remember([])
"""


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX",
        "DROP TABLE old_tasks",
        "INSERT INTO records",
        "UPDATE places",
        "DELETE FROM measurements",
        "CREATE VIEW tasks",
        "PRAGMA user_version=2",
        "COMMIT",
    ],
)
def test_kill_9_in_the_middle_leaves_version_1_whole(path, statement):
    """Killed as SQLite begins that statement."""
    done = subprocess.run([sys.executable, "-c", KILL, str(path), statement], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert version(path) == 1
    store = SqliteStore(path)
    check(store)
    with pytest.warns(UserWarning, match="brought from"):
        store.append([ROW])
    check(store, more=1)
    store.close()


FULL = """
import resource, sys
from tt_history import SqliteStore, StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    SqliteStore(sys.argv[1]).remember([])
except StoreError as e:
    print(e)
"""


def test_a_full_disk_in_the_middle_leaves_version_1_whole(path):
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr
    assert "the disk refused to read or write" in done.stdout
    assert version(path) == 1
    store = SqliteStore(path)
    check(store)
    store.close()


def test_a_row_that_cannot_be_read_stops_the_migration(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE measurements SET seconds = '[' WHERE id = 9")
        db.commit()
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=r"measurement 9 cannot be read .*; was the file edited by hand"):
        store.append([ROW])
    store.close()
    assert version(path) == 1 and os.path.getsize(path) == FIXTURE.stat().st_size


def test_two_processes_may_meet_at_the_migration(path):
    code = "import sys; from tt_history import SqliteStore; s = SqliteStore(sys.argv[1]); s.remember([]); s.close()"
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [p.communicate(timeout=120)[1] for p in both]
    assert [p.returncode for p in both] == [0, 0]
    assert sum("brought from schema version 1 to 2" in text for text in said) == 1
    store = SqliteStore(path)
    check(store)
    store.close()
