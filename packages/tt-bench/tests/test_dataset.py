"""Data sets: what is taken from histories, that files are whole or refused, and that statements are computed once."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tt_bench import dataset, files, lessons, statements
from tt_bench.dataset_add import add
from tt_bench.errors import BenchError
from tt_bench.held_out import held_out, signature, signatures
from tt_bench_toy import SyntheticHost, SyntheticPool, measured, task
from tt_history import SqliteStore
from tt_spec import Measurement, Statements, Task, labels
from tt_spec.errors import PieceError

DEVICE = "toy/2 cores"


def stamped(m: Measurement, **about) -> Measurement:
    return dataclasses.replace(m, **{"device": DEVICE, "versions": {"tvm": "0"}, **about})


def history(path: Path, tasks: list[Task], rows: int = 30, **about) -> Path:
    """A tuning history of the first rows of each task's space; the first row is timed twice."""
    store = SqliteStore(path)
    store.remember(tasks)
    for t in tasks:
        codes = list(t.space.enumerate())[:rows]
        store.append([stamped(measured(t, row, 0.01), **about) for row in codes])
        first = measured(t, codes[0], 0.01)
        later = tuple(1.5 * s for s in first.seconds)
        store.append([stamped(dataclasses.replace(first, seconds=later), **about)])
    store.close()
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two operators, 30 rows each."""
    add([history(tmp_path / "h.db", [task("a"), task("b", 8)])], tmp_path / "set")
    return tmp_path / "set"


def test_a_history_becomes_a_data_set_each_row_once(tmp_path, folder):
    (data,) = dataset.load_all(folder)
    assert (data.device, data.tvm, data.rows) == (DEVICE, "0", 60)
    for o in data.operators:
        truth = [measured(o.task, row, 0.01) for row in o.codes]
        assert np.allclose(o.seconds, [m.latency_s for m in truth], rtol=1e-6)
        assert [m.error == "build" for m in truth] == (o.errors == 1).tolist() and (o.errors == 1).any()
        assert o.again[0] == pytest.approx(1.5 * o.seconds[0], rel=1e-5) and np.isnan(o.again[1:]).all()
        assert set(o.parts()) == {"template"}
    again = add([tmp_path / "h.db", tmp_path / "h.db"], folder)
    assert again.rows == 0 and dataset.load_all(folder)[0].sha256 == data.sha256, "the same rows, the same bytes"
    more = add([history(tmp_path / "more.db", [task("a")], rows=40)], folder)
    assert more.rows == 10 and dataset.load_all(folder)[0].rows == 70


def test_a_later_failure_counts_and_rows_without_a_program_are_not_kept(tmp_path):
    t = task("a")
    rows = list(t.space.enumerate())[:3]
    store = SqliteStore(tmp_path / "h.db")
    store.remember([t])
    good = [stamped(measured(t, row, 0.0)) for row in rows]
    store.append(good)
    store.append([dataclasses.replace(good[1], seconds=(), error="wrong-result")])
    store.append([dataclasses.replace(good[2], seconds=(), error="invalid", config=(5, 1, 2, 2))])
    store.close()
    add([tmp_path / "h.db"], tmp_path / "set")
    ((_, codes, seconds, _),) = dataset.read(tmp_path / "set")
    assert codes.tolist() == [r.tolist() for r in rows] and np.isinf(seconds).tolist() == [False, True, False]


def test_devices_have_files_of_their_own_and_versions_of_tvm_do_not_mix(tmp_path, folder):
    add([history(tmp_path / "other.db", [task("a")], device="another CPU/8 cores")], folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        "another-cpu-8-cores.dataset.json.gz",
        "toy-2-cores.dataset.json.gz",
    ]
    assert len(dataset.read(folder)) == 3
    new = history(tmp_path / "new.db", [task("a")], versions={"tvm": "1"})
    with pytest.raises(BenchError, match="TVM 0 and of 1"):
        add([new], folder)
    with pytest.raises(BenchError, match="no history"):
        add([tmp_path / "none.db"], folder)


def test_what_is_held_out_stays_out(tmp_path):
    shapes = "1x56x56x64, 4x3x3x64x16, 1x1x1x64, 1x56x56x64 -> 1x56x56x64"
    kept = task("kept")
    resnet = dataclasses.replace(task("a"), name="conv2d_add_relu", shapes=shapes)
    done = add([history(tmp_path / "h.db", [kept, resnet])], tmp_path / "set")
    assert done.held_out == ["conv2d_add_relu"] and [t.name for t, *_ in dataset.read(tmp_path / "set")] == ["kept"]


def test_an_operator_is_held_out_by_its_shapes_in_any_layout_fusion_and_batch():
    def conv(shapes: str, op: str = "conv2d") -> Task:
        return dataclasses.replace(task(), op=op, shapes=shapes)

    assert held_out(conv("1x56x56x64, 3x3x64x64 -> 1x56x56x64"))
    assert held_out(conv("1x64x56x56, 64x64x3x3 -> 1x64x56x56"))
    assert held_out(conv("8x56x56x64, 4x3x3x64x16, 1x1x1x64 -> 8x56x56x64"))
    assert not held_out(conv("1x56x56x64, 3x3x1x64 -> 1x56x56x64", "dwconv2d"))
    assert not held_out(conv("1x56x56x64, 3x3x64x96 -> 1x56x56x96"))
    assert held_out(conv("128x768, 192x768x16, 3072 -> 128x3072", "matmul"))
    assert held_out(conv("12x128x64, 12x64x128 -> 12x128x128", "matmul"))
    assert not held_out(conv("128x768, 768x3000 -> 128x3000", "matmul"))
    assert signature(conv("1x1x1x5 -> 1", "norm")) == "norm 5 1"
    assert len(signatures()) > 100


def test_committed_data_sets_hold_nothing_that_is_held_out():
    folder = Path(__file__).parents[3] / "datasets"
    files = sorted(folder.rglob("*.dataset.json.gz")) if folder.is_dir() else []
    for path in files:
        data = dataset.load(path)
        assert not [o.task.name for o in data.operators if held_out(o.task)]
        assert path.stat().st_size < 3e6 and data.rows


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_damaged_files_are_refused_in_one_line(folder):
    (path,) = folder.glob("*.json.gz")
    good = path.read_bytes()
    whole = dataset.load(path)
    rng = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(good)
        bad[rng.integers(10, len(bad))] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        with pytest.raises(BenchError) as e:
            dataset.load(path)
        assert "\n" not in str(e.value) and str(path) in str(e.value) and e.value.exit_code == 6
    for at in range(80):  # the header: bits of no meaning may flip
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        path.write_bytes(bad)
        with contextlib.suppress(BenchError):
            assert dataset.load(path).sha256 == whole.sha256
    for end in (0, 5, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:end])
        with pytest.raises(BenchError, match="copy it again"):
            dataset.load(path)
    path.write_bytes(good)
    assert dataset.load(path).sha256 == whole.sha256


def rewritten(path: Path, change) -> None:
    """The file with its content changed and its checksum right."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    del data["sha256"]
    change(data)
    path.write_bytes(gzip.compress(json.dumps({**data, "sha256": dataset._hash(data)}).encode()))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.update(format=2), "a data set of format 2"),
        (lambda d: d.update(kind="other"), "no data set of tt"),
        (lambda d: d["operators"][0].update(space_key="0"), "the space of a has changed"),
        (lambda d: d["operators"][0].update(rows=29), "damaged"),
        (lambda d: d["operators"][0].update(rows=-1), "damaged"),
        (lambda d: d["operators"][0].update(rows=1 << 40), "damaged"),
        (lambda d: d["operators"][0].update(errors=d["operators"][0]["seconds"]), "damaged"),
        (lambda d: d["operators"][0].update(seconds="?"), "damaged"),
        (lambda d: d["operators"][0].update(task="{}"), "damaged"),
        (lambda d: d.pop("operators"), "damaged"),
        (lambda d: d.update(operators=[]), "is empty"),
    ],
)
def test_files_of_another_meaning_are_refused_in_one_line(folder, change, told):
    (path,) = folder.glob("*.json.gz")
    rewritten(path, change)
    with pytest.raises(BenchError, match=told) as e:
        dataset.load_all(folder)
    assert "\n" not in str(e.value)


def test_no_data_set_and_a_bomb_are_refused(tmp_path, monkeypatch):
    with pytest.raises(BenchError, match=r"no data set in|is no folder of data sets"):
        dataset.load_all("x" * 3000)
    with pytest.raises(BenchError, match="no data set in"):
        dataset.read(tmp_path)
    monkeypatch.setattr("tt_bench.files.MOST", 1 << 20)
    (tmp_path / "x.dataset.json.gz").write_bytes(gzip.compress(b"0" * (2 << 20)))
    with pytest.raises(BenchError, match="more than 1 MB"):
        dataset.read(tmp_path)


# -- statements --------------------------------------------------------------------------------------------------------


class CountingPool(SyntheticPool):
    """Statements that say whose they are: as many as the row's second code and one, all with the row's sum."""

    def __init__(self, host: CountingHost) -> None:
        super().__init__(1, [])
        self.host = host

    def features(self, task, codes):
        self.host.asked += [tuple(map(int, row)) for row in codes]
        if task.name == self.host.broken:
            raise PieceError("the backend cannot open task 'a': this process derives space 1")
        ok = codes[:, 0] != 2
        lengths = codes[ok][:, 1] + 1
        values = np.repeat(codes[ok].sum(axis=1), lengths)[:, None] * np.ones((1, 164))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Statements(values, offsets, np.ones((int(ok.sum()), 10))), ok


class CountingHost(SyntheticHost):
    """A machine whose workers count what they are asked."""

    broken = ""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, ...]] = []

    def measurer(self, evaluator=None, threads=None):
        return CountingPool(self)


def test_statements_are_computed_once_and_are_those_of_their_rows(folder, monkeypatch):
    monkeypatch.setattr(statements, "CHUNK", 7)
    host = CountingHost()
    stops = iter([None, None, "interrupted"])
    statements.compute(host, folder, halt=lambda: next(stops, "interrupted"))
    kept = len(host.asked)
    assert 14 <= kept < 60
    with pytest.raises(BenchError, match="have no statements: tt dataset features"):
        statements.groups(folder)
    have, without = statements.compute(host, folder)
    assert len(host.asked) == 60 and (have, without) == (60 - without, without) and without > 0
    statements.compute(host, folder)
    assert len(host.asked) == 60, "nothing is computed twice"
    for (t, codes, seconds, _), (g, values, y) in zip(dataset.read(folder), statements.groups(folder), strict=True):
        ok = codes[:, 0] != 2
        assert g.key == t.key and len(values) == len(y) == ok.sum()
        assert np.diff(values.offsets).tolist() == (codes[ok][:, 1] + 1).tolist()
        assert values.values[values.offsets[:-1], 0].tolist() == codes[ok].sum(axis=1).tolist()
        assert (values.operator == 1).all()
        assert y.max() <= 1 and (y == 0).tolist() == np.isinf(seconds[ok]).tolist()


def test_a_cost_model_is_trained_on_data_sets_and_recordings_of_one_folder(tmp_path, folder, recording):
    with pytest.raises(BenchError, match="have no statements: tt dataset features"):
        lessons.read([folder])
    statements.compute(CountingHost(), folder)
    found = lessons.read([folder])
    assert [x.name for x in found] == ["toy-2-cores/a 1x1", "toy-2-cores/b 1x1"]
    for x, (t, values, y) in zip(found, statements.groups(folder), strict=True):
        assert x.task.key == t.key and x.device == DEVICE and len(x.codes) == len(x.statements) == len(y)
        assert (x.statements.values == values.values).all() and (labels(x.seconds) == y).all()
    files.write_t4(recording, folder / "r.json.gz")
    assert len(lessons.read([folder])) == 4


def test_rows_added_later_are_all_that_is_computed(tmp_path, folder):
    host = CountingHost()
    statements.compute(host, folder)
    add([history(tmp_path / "more.db", [task("a")], rows=40)], folder)
    host.asked.clear()
    assert sum(statements.compute(host, folder)) == 70 and len(host.asked) == 10


def test_rows_of_another_tvm_or_space_and_a_damaged_cache_are_refused(folder, monkeypatch):
    host = CountingHost()
    host.broken = "b"
    with pytest.raises(BenchError, match="must be recorded again") as e:
        statements.compute(host, folder)
    assert e.value.exit_code == 6
    monkeypatch.setattr(host, "versions", lambda: {"tvm": "1"})
    with pytest.raises(BenchError, match="rows of TVM 0, this is 1"):
        statements.compute(host, folder)
    (cache,) = folder.glob("*.statements.db")
    cache.write_bytes(cache.read_bytes()[:1000])
    with pytest.raises(BenchError, match="delete it, then tt dataset features"):
        statements.groups(folder)
