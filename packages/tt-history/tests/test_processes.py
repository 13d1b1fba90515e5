"""Several processes at once, and a process that is killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys

import pytest
from tt_history import SqliteStore

APPEND = """
import sys
from tt_history import SqliteStore
from tt_spec import Measurement

path, who, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = SqliteStore(path)
sys.stdin.readline()  # all start together
for i in range(n):
    store.append([Measurement(who, "s", (i,), {"tile": (i, 1)}, (1e-3,), device="xeon")])
    print(i + 1, flush=True)
"""


def start(path, who: str, n: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", APPEND, str(path), who, str(n)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows(path, who: str) -> list[int]:
    store = SqliteStore(path)
    found = [m.config[0] for m in store.query(who)]
    store.close()
    return found


def test_four_processes_write_one_new_file(tmp_path):
    path = tmp_path / "tt.db"
    processes = [start(path, f"p{i}", 200) for i in range(4)]
    for p in processes:
        p.stdin.write("\n")
        p.stdin.flush()
    for p in processes:
        _, errors = p.communicate(timeout=120)
        assert p.returncode == 0, errors
    for i in range(4):
        assert rows(path, f"p{i}") == list(range(200))
    store = SqliteStore(path)
    assert len(list(store.query())) == 800
    store.close()


@pytest.mark.parametrize("after", [1, 37, 400])
def test_a_killed_process_loses_no_reported_row(tmp_path, after):
    path = tmp_path / "tt.db"
    with start(path, "p", 10**9) as p:
        p.stdin.write("\n")
        p.stdin.flush()
        while (reported := int(p.stdout.readline())) < after:
            pass
        p.send_signal(signal.SIGKILL)
        reported = max([reported, *(int(line) for line in p.stdout.read().split("\n")[:-1])])
        p.wait()
        assert p.returncode == -signal.SIGKILL
    assert (tmp_path / "tt.db-wal").exists()  # it did not end in order
    found = rows(path, "p")
    assert found == list(range(len(found)))
    assert len(found) in (reported, reported + 1)  # it may die between the commit and its report
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


def test_others_go_on_when_a_writer_is_killed(tmp_path):
    path = tmp_path / "tt.db"
    with start(path, "killed", 10**9) as killed, start(path, "survivor", 300) as survivor:
        for p in (killed, survivor):
            p.stdin.write("\n")
            p.stdin.flush()
        survivor.stdout.readline()
        killed.stdout.readline()
        killed.kill()
        _, errors = survivor.communicate(timeout=120)
        killed.communicate()
        assert survivor.returncode == 0, errors
    assert rows(path, "survivor") == list(range(300))


def test_appending_one_row_does_not_wait_for_the_disk(tmp_path):
    from tt_spec import Measurement

    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    row = Measurement("t", "s", (1, 2, 3), {"tile": (4, 8)}, (1e-3,) * 10, device="xeon")
    store.append([row])
    before, log = path.read_bytes(), tmp_path / "tt.db-wal"
    for _ in range(20):
        held = log.stat().st_size
        store.append([row])
        assert log.stat().st_size > held
    assert path.read_bytes() == before, "the file is synced; its log, to which rows go, is not"
    assert store._connection().execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL: at checkpoints only"
    store.close()
