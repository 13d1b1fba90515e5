"""Task keys are what they were: a history stays valid, whatever rewriting, pass or space is added; and no operator has
another one's rows."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import tt_core
import tvm
from tt_core.prepared import prepare
from tt_history import SqliteStore
from tt_spec import from_json
from tt_spec.serial import to_json
from tvm import relax

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_a_recorded_operator_keeps_its_key(path):
    with gzip.open(path) as f:
        recorded = json.load(f)["metadata"]["tt"]
    tasks = {(t := from_json(text["task"])).key: t for text in recorded["tasks"]}
    target = next(iter(tasks.values())).target
    ready = prepare(
        recorded["model"],
        target=target,
        space=recorded["space"],
        recall=lambda key: [tasks[key]] if key in tasks else [],
    )
    assert tasks.keys() <= {t.key for t in ready.lowered.tasks}, "also where their old payloads are compared"


def _reduction(op, rows: int = 64) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 256), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(op(x, axis=1))
        builder.emit_func_output(out)
    return builder.get()


def test_an_operator_never_gets_the_rows_of_another_with_its_key(tmp_path, kept, monkeypatch):
    """Two models of one history whose operators' hashes are forged to collide; both have the same space."""
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same")
    one, other = _reduction(relax.op.max), _reduction(relax.op.min)
    about = {"recipe": "random", "history": tmp_path / "tt.db", "tasks": "*"}
    first = tt_core.tune(one, trials=3, **about)
    assert [t.history for t in tt_core.plan(one, trials=1, **about).tasks] == [3]
    assert [t.history for t in tt_core.plan(other, trials=1, **about).tasks] == [0], "not counted"
    second = tt_core.tune(other, trials=2, **about)
    again = tt_core.tune(one, trials=1, **about)
    assert [r.restored for r in (first, second, again)] == [0, 0, 3], "not restored"
    with closing(SqliteStore(tmp_path / "tt.db")) as store:
        assert sorted(s["trials"] for s in store.summary()) == [2, 4]
        assert len({t["workload"] for t in store.tasks()}) == len({m.space_key for m in store.query()}) == 1


def test_rows_of_version_1_are_not_those_of_an_operator_of_other_shapes_with_their_key(tmp_path, kept, monkeypatch):
    """Such a file, old or migrated by its first writer, knows no more of a task than its name, target and shapes. Keys
    are not those of the test before: the workers that both use know these."""
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same, in version 1")
    one, other = _reduction(relax.op.max), _reduction(relax.op.max, 128)
    about = {"recipe": "random", "history": tmp_path / "tt.db", "tasks": "*"}
    first = tt_core.tune(one, trials=2, **about)
    with closing(SqliteStore(tmp_path / "tt.db")) as store:
        rows, tasks = list(store.query()), store.tasks()
    _as_version_1(tmp_path / "old.db", rows, tasks)
    about["history"] = tmp_path / "old.db"
    assert [t.history for t in tt_core.plan(one, trials=1, **about).tasks] == [2]
    assert [t.history for t in tt_core.plan(other, trials=1, **about).tasks] == [0], "not counted"
    second, again = tt_core.tune(other, trials=1, **about), tt_core.tune(one, trials=1, **about)
    assert [r.restored for r in (first, second, again)] == [0, 0, 2], "not restored"
    with closing(SqliteStore(tmp_path / "old.db")) as store:
        assert sorted(s["trials"] for s in store.summary()) == [1, 3]


def _as_version_1(path: Path, rows: list, tasks: list) -> None:
    """A file as `tt` wrote it once, with these rows."""
    data = Path(__file__).parent.parent / "packages" / "tt-history" / "tests" / "data" / "version1.sqlite"
    path.write_bytes(data.read_bytes())
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("measurements", "tasks", "runs"):
            db.execute(f"DELETE FROM {table}")
        names = ("key", "name", "op", "target", "shapes", "flops", "weight")
        some = [[t[n] for n in names] for t in tasks]
        db.executemany(f"INSERT INTO tasks ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)", some)
        for m in rows:
            about = [m.task_key, m.space_key, json.dumps(m.config), to_json(m.knobs), json.dumps(m.seconds)]
            about += [None if m.error else m.latency_s, m.runs, m.error, m.why, to_json(m.cost), m.origin, m.device]
            about += [to_json(m.versions), m.at, m.run_id]
            columns = "task_key, space_key, config, knobs, seconds, median_s, runs, error, why, cost, origin, device"
            columns += ", versions, at, run_id"
            db.execute(f"INSERT INTO measurements ({columns}) VALUES ({', '.join('?' * 15)})", about)
