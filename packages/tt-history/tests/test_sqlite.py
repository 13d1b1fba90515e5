"""The SQLite store: values, queries, runs, threads."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_history import SqliteStore, StoreError
from tt_spec import ERRORS, Knob, Measurement, Plugins, Space, Task, VirtualClock
from tt_spec.roles import Store

SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))), Knob("unroll", "choice", (0, 16))))


def task(key: str = "t", name: str = "layer1.conv") -> Task:
    return Task(key, name, "conv2d", "llvm", (SPACE,), flops=1e9, weight=2.0, shapes="1x3x8x8")


def valid(seconds: float = 1e-3, task_key: str = "t", **more: object) -> Measurement:
    fields: dict = {"space_key": SPACE.key, "config": (1, 1), "knobs": SPACE.decode((1, 1)), "device": "xeon", **more}
    return Measurement(task_key, seconds=(seconds,), **fields)


def failed(error: str = "build", task_key: str = "t", **more: object) -> Measurement:
    fields: dict = {"space_key": SPACE.key, "config": (0, 0), "device": "xeon", **more}
    return Measurement(task_key, error=error, why="no such loop", **fields)


@pytest.fixture
def store(tmp_path):
    s = SqliteStore(tmp_path / "tt.db")
    yield s
    s.close()


def test_is_a_store_found_by_name(tmp_path):
    built = Plugins().build("store", "sqlite", path=tmp_path / "tt.db")
    assert isinstance(built, SqliteStore)
    assert isinstance(built, Store)


def test_making_one_opens_nothing(tmp_path, store):
    assert list(tmp_path.iterdir()) == []
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_importing_the_hooks_loads_no_database():
    code = "import sys, tt_history, tt_history.hooks; sys.exit('sqlite3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    import tt_history

    with pytest.raises(AttributeError, match="known: SqliteStore, StoreError"):
        _ = tt_history.Sqlite


def test_file_says_what_it_is(tmp_path, store):
    store.append([valid()])
    db = sqlite3.connect(tmp_path / "tt.db")
    assert db.execute("PRAGMA application_id").fetchone() == (0x74745F68,)
    assert db.execute("PRAGMA user_version").fetchone() == (2,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
    assert store._connection().execute("PRAGMA synchronous").fetchone() == (1,)


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
words = st.text(max_size=20)
names = words.filter(lambda s: not s.startswith("$"))
values = st.recursive(
    numbers | words | st.none(), lambda v: st.lists(v, max_size=4) | st.lists(v, max_size=4).map(tuple), max_leaves=8
)


@st.composite
def measurements(draw):
    error = draw(st.none() | st.sampled_from(ERRORS))
    times = st.floats(min_value=0, max_value=1e300, exclude_min=True)
    return Measurement(
        draw(words),
        draw(words),
        tuple(draw(st.lists(st.integers(0, 2**40), max_size=6))),
        draw(st.dictionaries(names, values, max_size=4)),
        () if error else tuple(draw(st.lists(times, min_size=1, max_size=5))),
        draw(st.integers(0, 2**62)),
        error,
        draw(words),
        draw(st.dictionaries(names, st.floats(allow_nan=False), max_size=3)),
        draw(words),
        draw(words),
        draw(st.dictionaries(names, words, max_size=3)),
        draw(st.floats(allow_nan=False)),
        draw(words),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(measurements(), max_size=6))
def test_what_is_appended_is_read_back_equal(batch):
    with_file = SqliteStore(":memory:")
    with_file.append(batch)
    back = list(with_file.query())
    assert back == batch
    assert [repr(m.knobs) for m in back] == [repr(m.knobs) for m in batch]  # a tuple is no list, True is not 1
    with_file.close()


def test_values_survive_the_file(tmp_path, store):
    m = valid(knobs={"tile": (2, (3, 4)), "list": [1, 2], "flag": True, "inf": math.inf}, cost={"build": 0.5})
    store.append([m])
    store.close()
    other = SqliteStore(str(tmp_path / "tt.db"))
    assert list(other.query()) == [m]
    other.close()


def test_numpy_numbers_are_kept_as_numbers(store):
    np = pytest.importorskip("numpy")
    store.append([valid(np.float64(2e-3), config=tuple(np.array([1, 0])), runs=np.int64(3), at=np.float64(5))])
    assert list(store.query()) == [valid(2e-3, config=(1, 0), runs=3, at=5.0)]


def test_a_message_that_is_not_utf8_is_kept_with_escapes(store):
    store.append([Measurement("t", "s", (0,), error="build", why=b"bad \xff byte".decode("utf-8", "surrogateescape"))])
    assert next(store.query()).why == "bad \\udcff byte"


def test_a_batch_is_kept_whole_or_not_at_all(store):
    store.append([valid()])
    with pytest.raises(ValueError, match="cannot be serialised"):
        store.append([valid(), valid(knobs={"x": object()})])
    with pytest.raises(StoreError, match="NOT NULL"):
        store.append([valid(), valid(at=math.nan)])
    assert len(list(store.query())) == 1
    store.append([valid()])
    assert len(list(store.query())) == 2


def test_query_filters_and_keeps_the_order_of_arrival(store):
    rows = [
        valid(1e-3, "a", device="x", at=9.0),
        valid(2e-3, "b", device="x", at=3.0),
        valid(3e-3, "a", device="y", space_key="old", at=1.0),
        failed(task_key="a", device="x", at=2.0),
    ]
    store.append(rows[:3])
    store.append(rows[3:])
    assert list(store.query()) == rows
    assert list(store.query("a")) == [rows[0], rows[2], rows[3]]
    assert list(store.query("a", device="x")) == [rows[0], rows[3]]
    assert list(store.query(space_key="old")) == [rows[2]]
    assert list(store.query("a", SPACE.key, "y")) == []


def test_query_shows_the_moment_of_the_call_while_others_write(tmp_path, store):
    store.append([valid(runs=i) for i in range(1200)])
    rows = store.query()
    other = SqliteStore(tmp_path / "tt.db")
    seen = []
    for m in rows:
        seen.append(m.runs)
        if m.runs % 100 == 0:
            other.append([valid(runs=-1)])
            store.append([valid(runs=-2)])
    other.close()
    assert seen == list(range(1200))
    assert len(list(store.query())) == 1224


def test_query_outlives_close(store):
    store.append([valid(runs=i) for i in range(700)])
    rows = store.query()
    next(rows)
    store.close()
    assert len(list(rows)) == 699


def test_best_is_the_earliest_of_lowest_median(store):
    assert store.best("t") is None
    store.append([failed(), valid(3e-3, config=(0, 1)), valid(2e-3, at=2.0), valid(2e-3, config=(1, 0), at=3.0)])
    store.append([valid(1e-3, device="gpu")])
    store.append([valid(1e-9, "other")])
    assert store.best("t").device == "gpu"
    assert store.best("t", "xeon").at == 2.0
    assert store.best("t", "nothing") is None
    lucky = Measurement("u", "s", (0,), seconds=(1e-6, 5e-3, 5e-3))
    steady = Measurement("u", "s", (1,), seconds=(4e-3, 4e-3))
    store.append([lucky, steady])
    assert store.best("u") == steady


def test_the_latest_verdict_on_a_row_counts(store):
    store.append([valid(1e-3), valid(2e-3, config=(0, 1)), valid(5e-4, device="gpu")])
    store.append([failed("wrong-result", config=(1, 1))])
    assert store.best("t", "xeon").config == (0, 1) and store.best("t").device == "gpu"
    assert [(s["device"], s["best_s"], s["trials"], s["failed"]) for s in store.summary()] == [
        ("xeon", 2e-3, 3, 1),
        ("gpu", 5e-4, 1, 0),
    ]
    store.append([valid(3e-3, config=(0, 1))])
    assert store.best("t", "xeon").latency_s == 3e-3, "measured again and slower"


def test_runs_are_recorded_newest_last(tmp_path):
    clock = VirtualClock(100.0)
    store = SqliteStore(tmp_path / "tt.db", clock=clock)
    info = {"options": {"trials": 64, "tile": (1, 2)}, "seed": 7, "recipe": "tt", "device": "xeon"}
    first = store.begin_run(info)
    clock.advance(5)
    second = store.begin_run({})
    clock.advance(5)
    store.end_run(first, "64 trials")
    assert len(first) == 32 and int(first, 16) and first != second
    assert store.runs() == [
        {"id": first, "started": 100.0, "ended": 110.0, "reason": "64 trials", "info": info},
        {"id": second, "started": 105.0, "ended": None, "reason": None, "info": {}},
    ]
    with pytest.raises(StoreError, match=r"tt\.db: there is no run 'zzz' to end"):
        store.end_run("zzz", "")
    store.close()


def test_summary_has_one_line_per_task_and_device(store):
    assert store.summary() == []
    store.append([valid(3e-3, "b", at=5.0), failed(task_key="b", at=9.0), failed("invalid", "b", at=8.0)])
    store.append([valid(2e-3, "b", at=7.0, space_key="new"), valid(4e-3, "a", at=1.0)])
    store.append([failed("run", "b", device="gpu", at=2.0)])
    store.remember([task("b", "old name")])
    store.remember([task("b", "conv"), task("unmeasured")])
    common = {"trials": 1, "failed": 0, "invalid": 0, "space_key": SPACE.key}
    assert store.summary() == [
        {
            "task_key": "b",
            "device": "xeon",
            "name": "conv",
            "op": "conv2d",
            "trials": 3,
            "failed": 1,
            "invalid": 1,
            "best_s": 2e-3,
            "last": 9.0,
            "space_key": "new",
        },
        {**common, "task_key": "a", "device": "xeon", "name": None, "op": None, "best_s": 4e-3, "last": 1.0},
        {
            **common,
            "task_key": "b",
            "device": "gpu",
            "name": "conv",
            "op": "conv2d",
            "failed": 1,
            "best_s": None,
            "last": 2.0,
        },
    ]


def test_closing_twice_and_using_again(store):
    store.append([valid()])
    store.close()
    store.close()
    store.append([valid()])
    assert len(list(store.query())) == 2


def test_threads_may_share_a_store(store):
    workers = [threading.Thread(target=lambda: [store.append([valid()]) for _ in range(50)]) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert len(list(store.query())) == 200


def test_an_empty_batch_is_nothing(tmp_path, store):
    store.append([])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_is_told_to_open_its_own(store):
    store.append([valid()])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.append([valid()])
        except BaseException as e:  # nothing may leave the child
            os.write(writer, f"{type(e).__name__}: {e}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)
    assert said.startswith("StoreError") and "make a new SqliteStore in each process" in said
    assert len(list(store.query())) == 1


def test_a_step_of_the_machines_clock_in_mid_run_is_no_hour_of_work(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "tt.db")
    run = store.begin_run({})
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    store.end_run(run, "done")
    (found,) = store.runs()
    assert 0 <= found["ended"] - found["started"] < 600
    store.close()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("database is locked", "another process has held its lock for more than 120 s"),
        ("file is not a database", "not a SQLite database, and left as it is"),
        (
            "database disk image is malformed",
            "the database is damaged (database disk image is malformed); move it away",
        ),
        ("attempt to write a readonly database", "read-only; make the file and its folder writable"),
        ("database or disk is full", "the disk is full; free some space"),
        ("unable to open database file", "cannot be opened or made"),
        ("disk I/O error", "the disk refused to read or write (disk I/O error); check its health"),
        ("something new", "SQLite says: something new"),
    ],
)
def test_what_sqlite_says_is_explained(store, text, means):
    error = store.explained(sqlite3.OperationalError(text))
    assert isinstance(error, StoreError) and str(error).startswith(f"{store.name}: {means}")


def test_our_own_misuse_is_no_fault_of_the_file(store):
    with pytest.raises(sqlite3.ProgrammingError), store.reading() as (db, _):
        db.execute("SELECT ?", ())


def test_where_sqlite_itself_ended_the_reading_its_own_error_is_told(store):
    store.append([valid()])
    with pytest.raises(StoreError, match="SQLite says: no such table"), store.reading() as (db, _):
        db.execute("ROLLBACK")
        db.execute("SELECT * FROM missing")
    assert len(list(store.query())) == 1


def test_a_history_that_is_opened_to_read_is_not_written(tmp_path, store):
    store.append([valid()])
    reader = SqliteStore(f"file:{tmp_path / 'tt.db'}?mode=ro")
    assert len(list(reader.query())) == 1
    with pytest.raises(StoreError, match="read-only"):
        reader.append([valid()])
    reader.close()


def test_a_file_that_another_process_is_just_making_is_waited_for(tmp_path):
    """SQLite does not wait by itself where a file gets its log."""
    other = sqlite3.connect(tmp_path / "tt.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    impatient = SqliteStore(tmp_path / "tt.db", wait_s=0.05)
    with pytest.raises(StoreError, match="has held its lock for more than"):
        impatient.append([valid()])
    later = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    later.start()
    patient = SqliteStore(tmp_path / "tt.db", wait_s=60.0)
    patient.append([valid()])
    later.join()
    assert len(list(patient.query())) == 1
    patient.close()
    other.close()


def test_a_file_that_could_not_be_made_is_made_next_time(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tt_history.sqlite.INDEXES", ["CREATE INDEX broken ON missing(x)"])
        with pytest.raises(StoreError, match="SQLite says: no such table"):
            SqliteStore(tmp_path / "tt.db").append([valid()])
    whole = SqliteStore(tmp_path / "tt.db", wait_s=0.1)
    whole.append([valid()])
    assert len(list(whole.query())) == 1
    whole.close()


def test_a_task_that_maintenance_removes_meanwhile_lends_nothing(store, monkeypatch):
    near, gone = task("near", "a"), task("gone", "b")
    store.remember([near, gone])
    store.append([valid(1e-3 * (i + 1), key) for key in ("near", "gone") for i in range(3)])
    found = store.nearest(task())
    assert {x.key for x in found} == {"near", "gone"}

    def removed(*_):
        with store.transaction() as (db, _):
            db.execute("DELETE FROM known_tasks WHERE key = 'gone'")
        return found

    monkeypatch.setattr(store, "nearest", removed)
    assert {f.task.key for f in store.lend(task(), "other", 64)} == {"near"}
