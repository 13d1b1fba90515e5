"""How spaces explain knobs, and ids that are held in memory."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_history import SqliteStore, StoreError, maintenance
from tt_history.raw import explain, explain_json, same
from tt_spec import Knob, Measurement, Space, Task
from tt_spec.serial import to_json

choices = st.lists(
    st.integers(-3, 99) | st.floats(allow_nan=False) | st.text(max_size=3) | st.booleans(), min_size=1, max_size=4
).map(tuple)
tiles = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=4).map(tuple)


@st.composite
def spaces(draw):
    knobs = []
    for i in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["tile", "choice"]))
        active_if = None
        if i and draw(st.booleans()):
            parent = draw(st.integers(0, i - 1))
            codes = st.integers(0, len(knobs[parent].choices) - 1)
            active_if = (parent, tuple(draw(st.lists(codes, min_size=1, max_size=2))))
        knobs.append(Knob(f"k{i}", kind, draw(tiles if kind == "tile" else choices), active_if))
    return Space(tuple(knobs))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spaces(), st.integers(0, 2**32))
def test_knobs_are_explained_as_the_space_decodes_them(space, seed):
    fast, kept = explain(space), explain_json(to_json(space).encode())
    rng = np.random.default_rng(seed)
    for row in rng.integers(0, space.shape, (8, len(space.knobs))).tolist():
        decoded = space.decode(row)
        for found in (fast(row), kept(row)):
            assert same(found, decoded) and repr(found) == repr(decoded)
        assert fast.text(row) == kept.text(row) == to_json(decoded)
    shape = list(space.shape)
    for odd in ([], [*shape, 0], [-1] * len(shape)):
        assert fast(odd) is None and kept(odd) is None and fast.text(odd) is None
    outside = [n if i == 0 else 0 for i, n in enumerate(shape)]
    assert fast(outside) is None and fast.text(outside) is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, True),
        (1, 1.0),
        ((1, 2), [1, 2]),
        (0.0, -0.0),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, (2, 3)), (1, (2, True))),
        ((1,), (1, 2)),
    ],
)
def test_what_would_not_come_back_alike_is_not_the_same(a, b):
    assert not same(a, b) and same(a, a)
    assert same({"x": (1, math.inf)}, {"x": (1, math.inf)})


SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2))), Knob("unroll", "choice", (0, 16))))
TASK = Task("t", "conv", "conv2d", "llvm", (SPACE,), 1e9, payload=b"bytes", workload="w")
ROW = Measurement("t", SPACE.key, (1, 1), SPACE.decode((1, 1)), (1e-3,), device="d")


@pytest.fixture
def store(tmp_path):
    s = SqliteStore(tmp_path / "tt.db")
    yield s
    s.close()


def knobs_kept(store: SqliteStore) -> list[bool]:
    with closing(sqlite3.connect(store.path)) as db:
        return [k is not None for (k,) in db.execute("SELECT knobs FROM records ORDER BY id")]


def test_rows_of_a_space_that_is_kept_need_no_knobs(store):
    rows = [ROW, dataclasses.replace(ROW, knobs={"tile": [2, 2], "unroll": 16}), dataclasses.replace(ROW, knobs={})]
    store.append(rows)
    store.remember([TASK])
    store.append(rows)
    assert knobs_kept(store) == [True, True, True, False, True, True]
    again = SqliteStore(store.path)
    assert [repr(m.knobs) for m in again.query()] == [repr(m.knobs) for m in rows + rows]
    assert again.task("t") == TASK and again.tasks()[0]["workload"] == "w"
    again.remember([dataclasses.replace(TASK, name="new", payload=b"", workload="", spaces=())])
    assert again.task("t") == dataclasses.replace(TASK, name="new"), "what is known is not lost to one who does not"
    again.close()


def test_a_task_keeps_every_space_that_it_had_the_latest_first(store):
    other = Space((Knob("unroll", "choice", (0, 8)),))
    store.remember([TASK])
    store.remember([dataclasses.replace(TASK, spaces=(other,))])
    assert store.task("t").spaces == (other, SPACE) and store.space(other.key) == other
    assert store.task("nobody") is None and store.space("nothing") is None


def test_a_reader_sees_a_space_that_another_process_brought(store, tmp_path):
    store.append([ROW])
    assert list(store.query()) == [ROW]
    writer = SqliteStore(tmp_path / "tt.db")
    writer.remember([TASK])
    writer.append([ROW])
    writer.close()
    assert list(store.query()) == [ROW, ROW]


def test_ids_in_memory_do_not_outlive_what_another_process_removed(store, tmp_path):
    remarked = dataclasses.replace(ROW, why="a remark", run_id="run", device="other")
    store.append([remarked])
    other = SqliteStore(tmp_path / "tt.db")
    maintenance.prune(other, maintenance.Unwanted(keep_best=0))
    maintenance.vacuum(other)
    other.append([dataclasses.replace(ROW, why="another", run_id="takes the ids")])
    store.append([remarked])
    assert list(other.query())[1:] == [remarked] == list(store.query("t", device="other"))
    assert store.summary()[1]["trials"] == 1
    other.close()


def test_ids_in_memory_do_not_outlive_a_rollback(store):
    store.append([ROW])
    fresh = dataclasses.replace(ROW, why="new", run_id="new", device="new")
    with pytest.raises(StoreError, match="NOT NULL"):
        store.append([fresh, dataclasses.replace(fresh, at=math.nan)])
    store.append([dataclasses.replace(ROW, why="other", run_id="other", device="other")])
    store.append([fresh])
    assert list(store.query())[-1] == fresh and len(list(store.query())) == 3


def test_costs_that_are_no_floats_come_back_as_they_were(store):
    odd = dataclasses.replace(ROW, cost={"build": 1, "big": 2**60, "inf": math.inf})
    store.append([odd])
    (found,) = store.query()
    assert found == odd and [type(v) for v in found.cost.values()] == [int, int, float]
