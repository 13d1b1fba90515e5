"""Every way a file can be unusable: one clear line, nothing damaged."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tt_history import SqliteStore, StoreError
from tt_history.mounts import network
from tt_spec import Measurement

ROW = Measurement("t", "s", (1,), {"tile": (1, 2)}, (1e-3,))

USES: list[Callable[[SqliteStore], object]] = [
    lambda s: s.append([ROW]),
    lambda s: s.query(),
    lambda s: s.best("t"),
    lambda s: s.summary(),
    lambda s: s.begin_run({}),
]


def refused(store: SqliteStore, use: Callable[[SqliteStore], object] = USES[0]) -> str:
    """The one line that the store says."""
    with pytest.raises(StoreError) as caught:
        use(store)
    said = str(caught.value)
    store.close()
    assert "\n" not in said
    assert os.fspath(store.path) in said
    return said


@pytest.mark.parametrize("content", [b"x", b"hello\n" * 3, b"task,seconds\n" * 1000, bytes(range(256)) * 20])
def test_not_a_database(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for use in USES:
        assert "not a SQLite database, and left as it is; choose another path" in refused(SqliteStore(path), use)
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("application", [0, 0x0F055112])
def test_another_application(tmp_path, application):
    path = tmp_path / "theirs.db"
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA application_id={application}")
    db.execute("CREATE TABLE photos (id)")
    db.commit()
    db.close()
    before = path.read_bytes()
    for use in USES:
        said = refused(SqliteStore(path), use)
        assert f"belongs to another application (application_id {application:#x}" in said
        assert "choose another path" in said
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["theirs.db"]


def test_newer_schema(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([ROW])
    store.close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=7")
    db.close()
    before = path.read_bytes()
    for use in USES:
        said = refused(SqliteStore(path), use)
        assert "schema is version 7, this tt-history reads version 2; pip install --upgrade tt-history" in said
    assert path.read_bytes() == before


def test_a_folder_instead_of_a_file(tmp_path):
    assert "this is a folder; give a file in it, e.g. " in refused(SqliteStore(tmp_path))


def test_a_folder_that_is_missing(tmp_path):
    said = refused(SqliteStore(tmp_path / "nowhere" / "tt.db"))
    assert f"the folder {tmp_path / 'nowhere'} does not exist; make it, or choose another path" in said


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="needs /proc")
def test_a_folder_where_nothing_can_be_made():
    assert "make the file and its folder writable, or choose another path" in refused(SqliteStore("/proc/tt.db"))


def test_opened_to_read_only(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    store.append([ROW])
    store.close()
    readonly = SqliteStore(f"file:{tmp_path}/tt.db?mode=ro")
    assert list(readonly.query()) == [ROW]
    assert "read-only; make the file and its folder writable" in refused(readonly)
    assert list(SqliteStore(tmp_path / "tt.db").query()) == [ROW]
    assert "there is no such file" in refused(SqliteStore(f"file:{tmp_path}/none.db?mode=ro"))


@pytest.fixture
def ordinary_user():
    """Become nobody for the body of a test, if root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def shared_folder():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        yield Path(folder)
        os.chmod(folder, 0o755)


def test_no_permission_to_write(shared_folder, request):
    store = SqliteStore(shared_folder / "tt.db")
    store.append([ROW])
    store.close()
    (shared_folder / "tt.db").chmod(0o444)
    shared_folder.chmod(0o555)
    request.getfixturevalue("ordinary_user")
    said = refused(SqliteStore(shared_folder / "tt.db"))
    assert "make the file and its folder writable, or choose another path" in said
    said = refused(SqliteStore(shared_folder / "new.db"))
    assert "make the file and its folder writable, or choose another path" in said


def test_disk_full_keeps_what_was_there(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([ROW])
    pages = store._connection().execute("PRAGMA page_count").fetchone()[0]
    store._connection().execute(f"PRAGMA max_page_count={pages + 4}")  # SQLite then meets a full disk
    kept = 1
    with pytest.raises(StoreError) as caught:
        for _ in range(1000):
            store.append([ROW] * 10)
            kept += 10
    assert str(caught.value).startswith(f"{path}: the disk is full; free some space")
    assert 1 < kept < 1000
    assert len(list(store.query())) == kept
    store._connection().execute("PRAGMA max_page_count=100000")
    store.append([ROW])
    assert len(list(store.query())) == kept + 1
    assert store._connection().execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store.close()


def test_locked_for_too_long(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path, wait_s=0.2)
    store.append([ROW])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.warns(UserWarning, match=r"held its lock for 0\.2 s; waiting for it, for at most 1 s"):
        said = refused(store)
    assert 0.8 < time.monotonic() - began < 30
    assert "another process has held its lock for more than 1 s" in said and "try again" in said
    assert list(store.query()) == [ROW]  # readers do not wait for a writer
    other.execute("COMMIT")
    other.close()
    store.append([ROW])
    assert len(list(store.query())) == 2
    store.close()


def test_locked_while_it_is_made(tmp_path):
    path = tmp_path / "tt.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert "has held its lock for more than 0.2 s" in refused(SqliteStore(path, wait_s=0.2))
    other.close()
    store = SqliteStore(path)
    store.append([ROW])
    store.close()


def test_a_damaged_file(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([ROW] * 500)
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\x00" * (len(whole) - 4096))
    assert "damaged" in refused(SqliteStore(path), lambda s: list(s.query()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "tt.db"
    store = SqliteStore(path)
    store.append([ROW] * 300)
    store.close()
    return path.read_bytes()


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("missing", [1, 100, 4095, 4096, 4097, 20000, -4097, -4096, -512, -100, -99, -16, -2])
def test_a_truncated_file(tmp_path, whole, missing, use):
    path = tmp_path / "tt.db"
    path.write_bytes(whole[:-missing])
    said = refused(SqliteStore(path), use)
    assert "the database is damaged (" in said or "not a SQLite database" in said
    assert "move it away" in said or "choose another path" in said
    assert path.read_bytes() == whole[:-missing]
    assert [p.name for p in tmp_path.iterdir()] == ["tt.db"]


def test_an_emptied_file_does_not_cost_its_log(tmp_path):
    path, log = tmp_path / "tt.db", tmp_path / "tt.db-wal"
    store = SqliteStore(path)
    store.append([ROW])
    left = path.read_bytes(), log.read_bytes()  # as if the writer had been killed here
    store.close()
    path.write_bytes(b"")
    log.write_bytes(left[1])
    assert "the file is empty, its log is not" in refused(SqliteStore(path))
    assert log.read_bytes() == left[1]
    path.write_bytes(left[0])
    store = SqliteStore(path)
    assert list(store.query()) == [ROW]
    store.close()


def test_a_killed_writer_may_leave_half_a_page_that_its_log_has(tmp_path):
    path, log = tmp_path / "tt.db", tmp_path / "tt.db-wal"
    store = SqliteStore(path)
    store.append([ROW] * 20)
    left = path.read_bytes() + b"half", log.read_bytes()
    store.close()
    path.write_bytes(left[0])
    log.write_bytes(left[1])
    store = SqliteStore(path)
    assert list(store.query()) == [ROW] * 20
    store.close()


def test_a_row_edited_by_hand(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([ROW, ROW])
    store.begin_run({})
    db = sqlite3.connect(path)
    db.execute("UPDATE records SET knobs = '{' WHERE id = 2")
    db.execute("UPDATE runs SET info = '{'")
    db.commit()
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert list(store.query()) == [ROW]
    db.execute("UPDATE records SET knobs = NULL WHERE id = 2")  # and its space is not in the file
    db.commit()
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert list(store.query()) == [ROW]
    db.execute("UPDATE records SET seconds = x'' WHERE id = 2")
    db.commit()
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert list(store.query()) == [ROW]
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert [r["info"] for r in store.runs()] == [{}], "what a run says of itself"
    db.close()


def test_a_lock_held_longer_than_the_wait_is_waited_for_with_a_note(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path, wait_s=0.3)
    store.append([ROW])
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.7, other.execute, ["COMMIT"])
    timer.start()
    with pytest.warns(UserWarning, match="another process has held its lock"):
        store.append([ROW])
    timer.join()
    assert len(list(store.query())) == 2
    other.close()
    store.close()


def test_one_damaged_row_costs_that_row(tmp_path):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([replace(ROW, config=(i,)) for i in range(1200)])
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA ignore_check_constraints = on")
        db.execute("UPDATE records SET config = '[' WHERE id = 7")
        db.execute("UPDATE records SET config = x'ff' WHERE id = 900")
    db.close()
    store = SqliteStore(path)
    with pytest.warns(UserWarning, match="2 damaged rows are left out"):
        found = list(store.query())
    assert [m.config[0] for m in found] == [i for i in range(1200) if i not in (6, 899)]
    store.close()


@pytest.mark.parametrize(
    "damage",
    ["config = '['", "seconds = 'x'", "error = 'build'", "at = 'x'", "runs = x'ff'", "cost = 'x'"],
)
def test_a_damaged_row_costs_neither_its_tasks_best_nor_the_summary(tmp_path, damage):
    path = tmp_path / "tt.db"
    store = SqliteStore(path)
    store.append([replace(ROW, config=(i,), seconds=(s,)) for i, s in enumerate((3e-3, 1e-3, 2e-3))])
    store.append([replace(ROW, task_key="other")])
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE records SET {damage} WHERE id = 2")
    db.close()
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        best = store.best(ROW.task_key)
    assert best is not None and best.seconds == (2e-3,), "the next one"
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert {s["task_key"]: s["best_s"] for s in store.summary()} == {ROW.task_key: 2e-3, "other": ROW.latency_s}
    with sqlite3.connect(path) as db:
        db.execute("UPDATE places SET trials = 'x', last_at = x'ff' WHERE id = 1")
    db.close()
    with pytest.warns(UserWarning, match="1 damaged rows are left out"):
        assert [s["task_key"] for s in store.summary()] == ["other"], "what is counted of a task"
    store.close()


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/scratch tmpfs rw 0 0
//nas/share /mnt/my\\040share cifs rw 0 0
me@host: /mnt/far fuse.sshfs rw 0 0
server:/x /var/x nfs rw 0 0
/dev/sdb /var/x xfs rw 0 0
"""


def test_a_network_file_system_is_named(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text(MOUNTS)
    table = str(tmp_path / "mounts")
    assert [network(p, table) for p in ("/home/me/tt.db", "/mnt/my share/tt.db", "/mnt/far/a/tt.db")] == [
        "nfs4",
        "cifs",
        "fuse.sshfs",
    ]
    assert [network(p, table) for p in ("/root/tt.db", "/home/me/scratch/tt.db", "/homes/tt.db", "/var/x/tt.db")] == [
        None
    ] * 4
    assert network("/home/me/tt.db", str(tmp_path / "none")) is None
    monkeypatch.setattr("tt_history.sqlite.network", lambda path: "nfs4")
    store = SqliteStore(tmp_path / "tt.db")
    with pytest.warns(UserWarning, match=r"tt\.db lies on a network file system \(nfs4\)"):
        store.append([ROW])
    store.close()


def test_a_file_system_without_a_shared_log_is_named(tmp_path):
    """SQLite's "unix-none" has no shared memory, like file systems that cannot share it."""
    store = SqliteStore(f"file:{tmp_path}/tt.db?vfs=unix-none")
    assert "put the history on a local disk" in refused(store)
