"""Task keys are what they were: a history stays valid, whatever rewriting, pass or space is added; and no operator has
another one's rows."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path

import pytest
import tt_core
import tvm
from tt_core.prepared import prepare
from tt_history import SqliteStore
from tt_spec import from_json
from tvm import relax

RECORDINGS = sorted((Path(__file__).parent.parent / "recordings").glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_a_recorded_operator_keeps_its_key(path):
    with gzip.open(path) as f:
        recorded = json.load(f)["metadata"]["tt"]
    tasks = {(t := from_json(text["task"])).key: t for text in recorded["tasks"]}
    target = next(iter(tasks.values())).target
    ready = prepare(recorded["model"], target=target, space=recorded["space"], recall=tasks.get)
    assert tasks.keys() <= {t.key for t in ready.lowered.tasks}, "also where their old payloads are compared"


def _reduction(op) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 256), "float32"))
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
