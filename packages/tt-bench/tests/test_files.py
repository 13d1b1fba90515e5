"""Recordings on disk."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import zlib

import numpy as np
import pytest
from tt_bench import files, t4
from tt_bench.errors import BenchError
from tt_bench.record import record
from tt_bench_toy import SyntheticHost
from tt_history import SqliteStore


def same(a, b):
    assert (a.model, a.space, a.device, a.versions) == (b.model, b.space, b.device, b.versions)
    for p, q in zip(a.parts, b.parts, strict=True):
        assert (p.whole, p.keep, p.pace) == (q.whole, q.keep, q.pace)
        assert np.array_equal(p.rows, q.rows)
        for m, n in zip(p.measured, q.measured, strict=True):
            assert (m.config, m.seconds, m.runs, m.error, m.why, m.cost, m.knobs) == (
                n.config,
                n.seconds,
                n.runs,
                n.error,
                n.why,
                n.cost,
                n.knobs,
            )
        for s, t in zip(p.statements, q.statements, strict=True):
            assert (s is None) == (t is None) and (s is None or np.array_equal(s, t))


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_t4_reads_back_equal(recording, tmp_path, name):
    path = tmp_path / name
    files.write_t4(recording, path)
    same(files.load(path), recording)
    before = path.read_bytes()
    files.write_t4(files.load(path), path)
    assert path.read_bytes() == before


def test_history_and_t4_hold_the_same(tmp_path):
    found = record(SyntheticHost(), "op:toy", tmp_path / "x", long=(3, 60))
    same(files.load(tmp_path / "x.db"), found)
    same(files.load(tmp_path / "x.json.gz"), found)


@pytest.mark.together
def test_t4_keeps_the_published_schema(recording):
    validators = pytest.importorskip("autotuning_methodology.validators")
    data = json.loads(json.dumps(t4.write(recording, 1)))
    validators.validate_T4(data)
    kinds = {r["invalidity"] for r in data["results"]}
    assert kinds == {"correct", "compile"}
    with pytest.raises(Exception, match="maybe"):
        validators.validate_T4({**data, "results": [{**data["results"][0], "invalidity": "maybe"}]})


def broken(tmp_path, recording, change):
    path = tmp_path / "x.json"
    data = t4.write(recording, files.FORMAT)
    path.write_text(change(json.loads(json.dumps(data))))
    with pytest.raises(BenchError) as e:
        files.load(path)
    text = str(e.value)
    assert "\n" not in text and len(text) < 300
    return text


def put(data, value, *where):
    inner = data
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: json.dumps(d)[:-200], "truncated"),
        (lambda d: "[1, 2]", "no T4 results"),
        (lambda d: json.dumps({"rows": 3}), "no T4 results"),
        (lambda d: put(d, "1.1.0", "schema_version"), "schema 1.1.0"),
        (lambda d: put(d, {}, "metadata"), "another tuner"),
        (lambda d: put(d, 99, "metadata", "tt", "format"), "format 99"),
        (
            lambda d: put(d, "0000", "metadata", "tt", "tasks", 0, "space_key"),
            "x.json: the space of",
        ),
        (lambda d: put(d, d["results"][:-3], "results"), "rows of"),
        (lambda d: put(d, {}, "results", 0, "times"), "damaged"),
        (lambda d: put(d, 5, "metadata", "tt", "tasks", 0, "task"), "damaged"),
    ],
)
def test_bad_files_are_refused_in_one_line(recording, tmp_path, change, says):
    assert says in broken(tmp_path, recording, change)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(BenchError, match="tt record writes one"):
        files.load(tmp_path / "none.db")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}" * 1000)[:30])
    with pytest.raises(BenchError, match="truncated"):
        files.load(tmp_path / "cut.json.gz")
    store = SqliteStore(tmp_path / "runs.db")
    store.begin_run({"recipe": "tt"})
    store.close()
    with pytest.raises(BenchError, match="without a recording"):
        files.load(tmp_path / "runs.db")


def test_a_longer_series_counts_and_rows_outside_are_left_out(part):
    first = part.measured[5]
    longer = dataclasses.replace(first, seconds=first.seconds * 5)
    again = type(part).of(part.whole, part.keep, [longer, *part.measured], {}, part.pace)
    assert again.measured[5].seconds == longer.seconds and len(again.rows) == len(part.rows)
    keep = ((0, 2), *part.keep[1:])
    some = type(part).of(part.whole, keep, list(part.measured), {}, part.pace)
    assert some.complete and {m.config[0] for m in some.measured} == {0, 2}


def test_files_that_claim_to_be_huge_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST", 1 << 20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (2 << 20)))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(BenchError, match="more than 1 MB"):
        files.load(bomb)
    monkeypatch.setattr(t4, "MOST", 1 << 20)
    with pytest.raises(ValueError, match="more than 1 MB"):
        t4.unpack(base64.b64encode(zlib.compress(b"\0" * (2 << 20))).decode())
