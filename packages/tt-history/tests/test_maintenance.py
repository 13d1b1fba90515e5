"""Upkeep: what goes, what stays, and that nothing is lost on the way."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_history import SqliteStore, StoreError, commands, maintenance
from tt_history.maintenance import Unwanted
from tt_spec import Knob, Measurement, Space, Task, VirtualClock

SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))), Knob("unroll", "choice", (0, 16))))
DAY = 86400.0
NOW = VirtualClock(1000 * DAY)


def task(key: str, flops: float = 1e9, shapes: str = "1x8 -> 1x8", op: str = "conv2d", workload: str = "") -> Task:
    return Task(key, f"layer.{key}", op, "llvm", (SPACE,), flops, shapes=shapes, workload=workload, payload=b"x")


def row(
    config: tuple[int, int] = (0, 0),
    s: float | None = 1e-3,
    key: str = "a",
    device: str = "d",
    at: float = 0.0,
    **more: object,
) -> Measurement:
    fields: dict = {"knobs": SPACE.decode(config), "device": device, "at": at, "runs": 3, **more}
    if s is None:
        return Measurement(key, SPACE.key, config, error="wrong-result", **{"why": "differs", **fields})
    return Measurement(key, SPACE.key, config, seconds=(s,), **fields)


def store_of(folder: Path, rows: list[Measurement], name: str = "tt.db") -> SqliteStore:
    store = SqliteStore(folder / name)
    store.remember([task("a"), task("b")])
    store.append(rows)
    return store


def whole(store: SqliteStore) -> bool:
    """Whether the file is sound, and its counts are those of its records."""
    db = store._connection()
    counted = db.execute(
        "SELECT place, sum(error IS NOT 'invalid'), sum(error IS NOT NULL AND error IS NOT 'invalid'),"
        " sum(error IS 'invalid'), min(id), max(id), max(at) FROM records GROUP BY place ORDER BY place"
    ).fetchall()
    kept = db.execute(
        "SELECT id, trials, failed, invalid, first_id, last_id, last_at FROM places"
        " WHERE last_id IS NOT NULL ORDER BY id"
    ).fetchall()
    return counted == kept and db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


measured = st.lists(
    st.builds(
        row,
        st.tuples(st.integers(0, 2), st.integers(0, 1)),
        st.none() | st.sampled_from([1e-3, 2e-3, 4e-3, 8e-3]),
        st.sampled_from("ab"),
        st.sampled_from("de"),
        st.integers(0, 20).map(float),
    ),
    max_size=25,
)


def latest(rows: list[Measurement]) -> dict[tuple, Measurement]:
    return {(m.task_key, m.device, m.config): m for m in rows}


def bests(store: SqliteStore) -> list[object]:
    found = [store.best(key, device) for key in "ab" for device in ("d", "e", None)]
    return [None if m is None else (m.config, m.latency_s, m.device) for m in found]


@settings(max_examples=60, deadline=None)
@given(measured)
def test_by_date_the_newest_stays_and_every_answer_stays(tmp_path_factory, rows):
    store = store_of(tmp_path_factory.mktemp("date"), rows)
    before = bests(store), latest(list(store.query()))
    done = maintenance.compact(store, "date")
    assert (bests(store), latest(list(store.query()))) == before
    assert done["rows"] == len(rows) and done["removed"] == len(rows) - len(before[1])
    assert len(list(store.query())) == len(before[1])
    assert maintenance.compact(store, "date")["removed"] == 0
    assert whole(store)
    store.close()


@settings(max_examples=60, deadline=None)
@given(measured)
def test_by_mean_one_record_has_the_mean_and_all_runs(tmp_path_factory, rows):
    store = store_of(tmp_path_factory.mktemp("mean"), rows)
    done = maintenance.compact(store, "mean")
    found = list(store.query())
    assert len(found) == len(latest(rows)) == done["rows"] - done["removed"]
    for m in found:
        same = [x for x in rows if (x.task_key, x.device, x.config) == (m.task_key, m.device, m.config)]
        if same[-1].error is not None or len(same) == 1:
            assert m == same[-1], "where the latest verdict is a failure, that stays"
        else:
            valid = [x.latency_s for x in same if x.error is None]
            assert m.seconds == (pytest.approx(sum(valid) / len(valid)),) and m.why == f"mean of {len(same)} records"
            assert m.runs == sum(x.runs for x in same) and m.at == same[-1].at
    again = maintenance.compact(store, "mean")
    assert (again["removed"], again["averaged"]) == (0, 0) and list(store.query()) == found
    assert whole(store)
    store.close()


@settings(max_examples=60, deadline=None)
@given(measured)
def test_pruned_failures_bring_no_refuted_best_back(tmp_path_factory, rows):
    store = store_of(tmp_path_factory.mktemp("failed"), rows)
    before = bests(store)
    maintenance.prune(store, Unwanted(failed=True))
    assert bests(store) == before
    assert {k for k, m in latest(rows).items() if m.error is None} == latest(list(store.query())).keys()
    assert all(m.error is None for m in store.query())
    assert maintenance.prune(store, Unwanted(failed=True))["removed"] == 0
    assert whole(store)
    store.close()


@settings(max_examples=60, deadline=None)
@given(measured, st.integers(0, 4), st.booleans())
def test_the_best_stay_where_that_is_asked(tmp_path_factory, rows, n, failed):
    store = store_of(tmp_path_factory.mktemp("best"), rows)
    before = bests(store)
    maintenance.prune(store, Unwanted(keep_best=n, failed=failed))
    found = latest(list(store.query()))
    if not failed:
        for key, device in {(m.task_key, m.device) for m in rows}:
            valid = sorted(m.latency_s for k, m in latest(rows).items() if k[:2] == (key, device) and m.error is None)
            kept = sorted(m.latency_s for k, m in found.items() if k[:2] == (key, device))
            assert kept == valid[:n]
    if n:
        assert bests(store) == before
    store.close()


def test_prune_by_age_device_and_task(tmp_path):
    rows = [row((i, 0), key="ab"[i % 2], device="de"[j], at=(900 + 50 * j) * DAY) for i in range(3) for j in range(2)]
    for unwanted, left in (
        (Unwanted(older_than_s=90 * DAY), [m for m in rows if m.device == "e"]),
        (Unwanted(older_than_s=200 * DAY), rows),
        (Unwanted(device="[ex]"), [m for m in rows if m.device == "d"]),
        (Unwanted(task="layer.a"), [m for m in rows if m.task_key == "b"]),
        (Unwanted(task="b", device="d"), [m for m in rows if (m.task_key, m.device) != ("b", "d")]),
    ):
        store = store_of(tmp_path, rows, f"{id(unwanted)}.db")
        assert maintenance.prune(store, unwanted, dry_run=True, clock=NOW)["removed"] == len(rows) - len(left)
        assert list(store.query()) == rows
        maintenance.prune(store, unwanted, clock=NOW)
        assert list(store.query()) == left and whole(store)
        store.close()


def test_what_an_agent_measured_goes_and_what_others_measured_of_the_same_rows_stays(tmp_path):
    def by(agent: str | None, at: float, s: float) -> Measurement:
        return row((0, 0), s, at=at, versions={"tvm": "1"} if agent is None else {"tvm": "1", "agent": agent})

    rows = [by("ada/box", 1, 3e-3), by(None, 2, 4e-3), by("eve/box-2", 3, 1e-9), by("eve/rig", 4, 1e-9)]
    for pattern, left in (
        ("eve/*", rows[:2]),
        ("box", rows[1:]),
        ("ada/box", rows[1:]),
        ("eve", rows),
        ("*", [rows[1]]),
    ):
        store = store_of(tmp_path, rows, f"{pattern.replace('/', '').replace('*', 'any')}.db")
        assert maintenance.prune(store, Unwanted(agent=pattern))["removed"] == 4 - len(left), pattern
        assert list(store.query()) == left and whole(store)
        store.close()


@pytest.mark.parametrize("wrong", [{}, {"older_than_s": -1.0}, {"keep_best": -1}])
def test_prune_must_be_told_what_goes(wrong):
    with pytest.raises(ValueError, match=r"must not be negative|say what goes"):
        Unwanted(**wrong)


def test_a_recording_is_left_alone(tmp_path):
    rows = [row(s=1e-3), row(s=2e-3), row(s=None), row((1, 1), s=None)]
    store = store_of(tmp_path, [*rows, *(dataclasses.replace(m, device="other") for m in rows)])
    store.begin_run({"recording": 1, "task": task("a"), "space_key": SPACE.key, "device": "d", "keep": None})
    maintenance.compact(store, "date")
    maintenance.prune(store, Unwanted(failed=True))
    maintenance.prune(store, Unwanted(keep_best=0))
    assert list(store.query()) == rows
    store.close()


# -- merge --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(measured, measured, measured, st.randoms())
def test_merged_histories_hold_each_record_once_by_date(tmp_path_factory, first, second, both, rng: random.Random):
    folder = tmp_path_factory.mktemp("merge")
    given = [sorted([*part, *both], key=lambda m: m.at) for part in (first, second)]
    a, b = (store_of(folder, part, name) for part, name in zip(given, ("a.db", "b.db"), strict=True))
    into = SqliteStore(folder / "c.db")
    done = maintenance.merge([a, b], into)
    found = list(into.query())
    assert sorted(map(repr, found)) == sorted({repr(m) for part in given for m in part})
    assert [m.at for m in found] == sorted(m.at for m in found)
    assert done == {"rows": len(found), "added": len(found), "doubles": sum(map(len, given)) - len(found), "others": 0}
    assert [t["key"] for t in into.tasks()] == ["a", "b"] and into.task("a") == task("a")
    assert maintenance.merge([b, a, into], into)["added"] == 0
    assert list(map(repr, into.query())) == list(map(repr, found)) or sorted(map(repr, into.query())) == sorted(
        map(repr, found)
    )
    assert whole(into)
    for store in (a, b, into):
        store.close()


def test_rows_of_an_operator_whose_key_another_one_has_are_not_merged(tmp_path, capsys):
    ours = dataclasses.replace(task("a"), shapes="1x8 -> 1x8", payload=b"ours")
    theirs = dataclasses.replace(ours, name="theirs", shapes="1x9 -> 1x9", payload=b"theirs")
    for name, known in (("ours.db", ours), ("theirs.db", theirs)):
        with closing(SqliteStore(tmp_path / name)) as store:
            store.remember([known, task("b")])
            store.append([row(s=1e-3 if known is ours else 1e-9, at=1.0), row(at=2.0, key="b")])
    commands.merge([tmp_path / "ours.db", tmp_path / "theirs.db"], tmp_path / "both.db")
    assert "1 left out: of operators whose key is another one's" in capsys.readouterr().out
    with closing(SqliteStore(tmp_path / "both.db")) as both:
        assert both.task("a") == ours and both.best("a").seconds == (1e-3,), "the first one's, whatever came later"
        assert [m.task_key for m in both.query()] == ["a", "b"]
        assert whole(both)


def test_rows_of_version_1_are_not_merged_into_those_of_an_operator_of_other_shapes(tmp_path):
    """It kept no workload: the shapes tell, and say the same in two ways of where the outputs begin."""
    old = tmp_path / "old.db"
    shutil.copy(Path(__file__).parent / "data" / "version1.sqlite", old)
    with closing(SqliteStore(old)) as store:
        known = store.task("a1")
    assert known is not None and known.shapes == "1x8x8x3, 3x3x3x4 -> 1x8x8x4"
    cases = ("1x8x8x3 -> 3x3x3x4, 1x8x8x4", False), ("1x9x9x3, 3x3x3x4 -> 1x9x9x4", True)
    for shapes, apart in ((known.shapes, False), *cases):
        with closing(SqliteStore(tmp_path / f"{shapes}.db")) as into:
            into.remember([dataclasses.replace(known, spaces=task("a").spaces, shapes=shapes, payload=b"ours")])
            with closing(SqliteStore(old)) as store:
                maintenance.merge([store], into)
            assert any(m.task_key == "a1" for m in into.query()) != apart


def test_an_older_file_does_not_undo_a_newer_verdict(tmp_path):
    old = store_of(tmp_path, [row(s=1e-6, at=1.0), row((1, 0), s=5e-3, at=2.0)], "old.db")
    new = store_of(tmp_path, [row(s=None, at=10.0), row((2, 0), at=11.0)], "new.db")
    maintenance.merge([old], new)
    best = new.best("a")
    assert best is not None and best.config == (2, 0), "row (0, 0) was refuted at 10"
    assert [m.at for m in new.query()] == [1.0, 2.0, 10.0, 11.0]
    new.append([row((2, 1), s=1e-4, at=12.0)])
    assert new.best("a").config == (2, 1) and whole(new)
    old.close()
    new.close()


def test_runs_tables_of_others_and_knobs_come_along(tmp_path):
    strange = dataclasses.replace(row(), space_key="unknown", knobs={"x": (1, 2)}, at=3.0)
    stranger = dataclasses.replace(strange, knobs={"x": (7, 2)}, config=(1, 0), at=4.0)
    a = store_of(tmp_path, [strange], "a.db")
    b = store_of(tmp_path, [stranger, strange], "b.db")
    for store, packed in ((a, "one"), (b, "two")):
        first = store.begin_run({"of": packed})
        store.end_run(first, "done")
        with closing(sqlite3.connect(store.path)) as db, db:
            db.execute("CREATE TABLE tt_bench_statements (config TEXT PRIMARY KEY, packed TEXT)")
            db.executemany("INSERT INTO tt_bench_statements VALUES (?, ?)", [("both", "same"), (packed, packed)])
            db.execute("CREATE TABLE notes (text)")
            db.executemany("INSERT INTO notes VALUES (?)", [("both",), (packed,)])
    into = SqliteStore(tmp_path / "c.db")
    for _ in range(2):
        maintenance.merge([a, b], into)
        assert list(into.query()) == [strange, stranger]
        assert [r["info"]["of"] for r in into.runs()] == ["one", "two"]
        db = into._connection()
        assert db.execute("SELECT config FROM tt_bench_statements ORDER BY config").fetchall() == [
            ("both",),
            ("one",),
            ("two",),
        ]
        assert db.execute("SELECT text FROM notes ORDER BY text").fetchall() == [("both",), ("one",), ("two",)]
    with closing(sqlite3.connect(tmp_path / "other.db")) as db, db:
        db.execute("CREATE TABLE notes (text, author)")
    other = SqliteStore(tmp_path / "d.db")
    other.append([row()])
    with closing(sqlite3.connect(tmp_path / "d.db")) as db, db:
        db.execute("CREATE TABLE notes (text, author)")
    with pytest.raises(StoreError, match=r"its table notes has other columns than that of .*; merge into a new file"):
        maintenance.merge([a], other)
    for store in (a, b, into, other):
        store.close()


# -- nearest ------------------------------------------------------------------------------------------------------


def test_nearest_by_kind_shapes_and_flops(tmp_path):
    store = SqliteStore(tmp_path / "tt.db")
    shape = "1x{0}x{0}x64, 3x3x64x64 -> 1x{0}x{0}x64"
    known = [
        task("far", 4e9, shape.format(112), workload="w1"),
        task("near", 1.1e9, shape.format(60), workload="w2"),
        task("same", 1e9, shape.format(56), workload="w3"),
        task("pool", 1e9, shape.format(56), op="max_pool2d"),
        task("unmeasured", 1e9, shape.format(56)),
        task("bias", 1e9, shape.format(56).replace(" ->", ", 64 ->")),
    ]
    store.remember(known)
    store.append([row(key=t.key) for t in known if t.key != "unmeasured"] + [row((1, 1), key="near")])
    me = task("me", 1e9, shape.format(56), workload="w3")
    found = store.nearest(me)
    assert [(n.key, n.rows) for n in found] == [("same", 1), ("near", 2), ("bias", 1), ("far", 1)]
    assert found[0].distance == 0 and found[1].distance < 0.2
    far = (2 + (4 / 12) ** 0.5) / 2  # four times the work, and four of twelve dimensions twice as long
    assert found[3].distance == pytest.approx(far)
    assert [n.key for n in store.nearest(me, 1)] == ["same"]
    assert [n.key for n in store.nearest(known[2])] == ["near", "bias", "far"], "a task is not its own neighbour"
    store.close()


# -- stats and vacuum ---------------------------------------------------------------------------------------------


def test_stats_count(tmp_path):
    rows = [row(at=999 * DAY + 1), row(at=998 * DAY, s=2e-3), row((1, 0), s=None, device="e", at=900 * DAY)]
    store = store_of(tmp_path, rows)
    store.begin_run({})
    found = maintenance.stats(store, NOW)
    assert (found["rows"], found["doubles"], found["failures"], found["devices"]) == (
        3,
        1,
        {"wrong-result": 1},
        {"d": 2, "e": 1},
    )
    assert (found["tasks"], found["runs"], found["schema"]) == (1, 1, 2)
    assert (found["newest_s"], found["oldest_s"]) == (DAY - 1, 100 * DAY)
    assert found["ages"] == {"1 d": 1, "7 d": 2, "30 d": 2, "90 d": 2, "365 d": 3}
    assert found["bytes"]["file"] > 0 and found["bytes"]["record"] > 0
    store.close()


def test_vacuum_gives_space_back_and_finds_damage(tmp_path):
    store = store_of(tmp_path, [row((i % 3, 0), why=f"remark {i}" * 9, at=float(i)) for i in range(3000)])
    maintenance.compact(store, "date")
    tried = maintenance.vacuum(store, dry_run=True)
    assert tried["bytes"]["free"] > 100_000
    done = maintenance.vacuum(store)
    assert done["integrity"] == "ok" and done["bytes"]["free"] == 0
    assert done["bytes"]["file"] + done["bytes"]["log"] < done["bytes_before"] / 3
    assert len(list(store.query())) == 3 and whole(store)
    store.append([row(at=1.0)])
    store.close()
    path = tmp_path / "tt.db"
    content = bytearray(path.read_bytes())
    content[len(content) - 4096 : len(content) - 2000] = b"\xff" * 2096
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"the database is damaged .*move it away"):
        maintenance.vacuum(store)
    store.close()


# -- interruptions ------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from tt_history import SqliteStore, maintenance
store = SqliteStore(sys.argv[1])
list(store.query())
die = lambda text: os.kill(os.getpid(), signal.SIGKILL) if sys.argv[3] in text else None
store._connection().set_trace_callback(die)
exec(sys.argv[2])
"""
WORK = {
    "compact": "maintenance.compact(store, 'mean')",
    "prune": "maintenance.prune(store, maintenance.Unwanted(failed=True))",
    "merge": "maintenance.merge([SqliteStore(sys.argv[1] + '.other')], store)",
    "vacuum": "maintenance.vacuum(store)",
}


@pytest.mark.parametrize(
    ("work", "statement"),
    [
        ("compact", "UPDATE records"),
        ("compact", "DELETE FROM records"),
        ("compact", "UPDATE places"),
        ("compact", "COMMIT"),
        ("prune", "DELETE FROM records"),
        ("prune", "COMMIT"),
        ("merge", "INSERT INTO merged"),
        ("merge", "DROP TABLE records"),
        ("merge", "CREATE INDEX records_by_median"),
        ("merge", "COMMIT"),
        ("vacuum", "DELETE FROM remarks"),
        ("vacuum", "VACUUM"),
        ("vacuum", "wal_checkpoint"),
    ],
)
def test_kill_9_loses_nothing(tmp_path, work, statement):
    rows = [row((i % 3, 0), s=None if i % 7 == 0 else 1e-3 + i / 1e5, at=float(i)) for i in range(50)]
    store_of(tmp_path, [row((2, 1), at=7.5)], "tt.db.other").close()
    store = store_of(tmp_path, rows)
    store.close()
    path = str(tmp_path / "tt.db")
    done = subprocess.run([sys.executable, "-c", KILLED, path, WORK[work], statement], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = SqliteStore(path)
    assert list(again.query()) == rows and whole(again)
    again.close()


FULL = """
import resource, sys
from tt_history import SqliteStore, StoreError, maintenance
store = SqliteStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    exec(sys.argv[2])
except StoreError as e:
    print(e)
"""


@pytest.mark.parametrize("work", WORK)
def test_a_full_disk_loses_nothing(tmp_path, work):
    rows = [row((i % 3, 0), s=None if i % 70 == 0 else 1e-3, why=f"why {i}" * 9, at=float(i)) for i in range(1500)]
    store_of(tmp_path, rows, "tt.db.other").close()
    store = store_of(tmp_path, rows)
    store.close()
    path = str(tmp_path / "tt.db")
    done = subprocess.run([sys.executable, "-c", FULL, path, WORK[work]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "the disk refused to read or write" in done.stdout
    again = SqliteStore(path)
    assert list(again.query()) == rows and whole(again)
    again.close()


WRITER = """
import sys
from tt_history import SqliteStore
from tt_spec import Measurement
store = SqliteStore(sys.argv[1])
for i in range(10**9):
    store.append([Measurement("w", "s", (i % 50,), {"k": i % 50}, (1e-3,), device="d", at=float(i))])
    print(i + 1, flush=True)
"""


def test_upkeep_while_another_process_writes(tmp_path):
    store = store_of(tmp_path, [row((i % 3, 0), at=float(i)) for i in range(300)])
    other = store_of(tmp_path, [row((1, 1), key="b", at=5.0)], "other.db")
    path = str(tmp_path / "tt.db")
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        maintenance.compact(store, "date")
        maintenance.prune(store, Unwanted(task="layer.a", keep_best=1))
        maintenance.merge([other], store)
        maintenance.vacuum(store)
        maintenance.compact(store, "mean")
        for _ in range(20):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        reported = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
    newest = max((m.at for m in store.query("w")), default=-1.0)
    assert newest >= (reported[-1] - 1 if reported else 0), "every row that was reported is there, or a later one"
    maintenance.compact(store, "date")
    assert len(list(store.query("w"))) == 50 or newest < 50
    assert [m.config for m in store.query("b")] == [(1, 1)] and whole(store)
    store.close()
    other.close()


@pytest.mark.parametrize("work", WORK)
def test_a_locked_newer_or_damaged_file_is_one_line_and_left_alone(tmp_path, monkeypatch, work):
    path = tmp_path / "tt.db"
    store_of(tmp_path, [row(at=1.0)], "tt.db.other").close()
    store_of(tmp_path, [row((i % 3, 0), s=None if i == 9 else 1e-3, at=float(i)) for i in range(300)]).close()
    before = path.read_bytes()

    def refused() -> str:
        store = SqliteStore(path, wait_s=0.2)
        with pytest.raises(StoreError) as caught:
            exec(WORK[work], {"store": store, "maintenance": maintenance, "SqliteStore": SqliteStore, "sys": sys})
        store.close()
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
        return str(caught.value)

    monkeypatch.setattr(sys, "argv", ["", str(path)])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "another process has held its lock for more than " in refused()
        other.execute("ROLLBACK")
    assert path.read_bytes() == before
    path.write_bytes(before[:-100])
    assert "the database is damaged" in refused()
    assert path.read_bytes() == before[:-100]
    path.write_bytes(before)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version=3")
    newer = path.read_bytes()
    assert "schema is version 3, this tt-history reads version 2; pip install --upgrade tt-history" in refused()
    assert path.read_bytes() == newer
