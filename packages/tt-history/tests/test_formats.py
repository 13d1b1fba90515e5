"""Histories as files of others, and back."""

from __future__ import annotations

import gzip
import json
import math
import random
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_history import SqliteStore, commands, exchange, maintenance
from tt_history.cli import run
from tt_spec import Content, Knob, Measurement, Plugins, RunRecord, Space, Task, VirtualClock
from tt_spec.testing import FormatContract
from tt_spec.testing.strategies import MEASUREMENTS, RUNS

FORMATS = ("jsonl", "csv", "parquet")
SPACE = Space((Knob("tile", "tile", ((1, 4), (2, 2), (4, 1))), Knob("most", "choice", (0.5, math.inf))))
TASK = Task("t", "layer.conv", "conv2d", "llvm", (SPACE,), 1e9, shapes="1x8 -> 1x8", workload="w", payload=b"\x00p")


def needs(form: str) -> str:
    if form == "parquet":
        pytest.importorskip("pyarrow", reason="the extra [parquet] is not installed")
    return form


@pytest.fixture(params=FORMATS)
def form(request) -> str:
    return needs(request.param)


PLUGINS = Plugins()


def build(form: str):
    return PLUGINS.build("format", form)


@pytest.fixture
def theirs(tmp_path, monkeypatch) -> Path:
    """A folder with a colleague's history, theirs.db."""
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("theirs.db")
    store.remember([TASK])
    kept = store.begin_run({"recipe": {"name": "tt"}, "seed": 0, "recording": 1})
    store.append([
        Measurement(
            "t", SPACE.key, (i % 3, i % 2), SPACE.decode((i % 3, i % 2)), (1e-3 / (i + 1),), 2, device="xeon",
            versions={"tvm": "0.27"}, at=1.7e9 + i, run_id=kept, cost={"build": 0.1 * i}
        )
        for i in range(10)
    ])  # fmt: skip
    store.append([Measurement("t", SPACE.key, (0, 0), {}, error="build", why="a\n\N{SNOWMAN}", device="epyc")])
    store.end_run(kept, "10 trials")
    store.close()
    return tmp_path


def records(path: str = "ours.db") -> list[Measurement]:
    with closing(SqliteStore(path)) as store:
        return list(store.query())


def said(capsys, *args: str, code: int = 0) -> str:
    assert run([str(a) for a in args]) == code, capsys.readouterr()
    out, err = capsys.readouterr()
    if code:
        assert len(err.splitlines()) == 1 and not out, err
    return err or out


# -- round trips ----------------------------------------------------------------------------------------------------


class TestCsv(FormatContract):
    @pytest.fixture
    def piece(self):
        return build("csv")


class TestParquet(FormatContract):
    @pytest.fixture
    def piece(self):
        return build(needs("parquet"))


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=st.lists(MEASUREMENTS, max_size=5), runs=st.lists(RUNS, max_size=2), packed=st.booleans())
def test_whatever_is_written_reads_back_equal(tmp_path_factory, rows, runs, packed):
    folder = tmp_path_factory.mktemp("round")
    for form in FORMATS:
        if form == "parquet" and "pyarrow" not in sys.modules:
            pytest.importorskip("pyarrow")
        piece, path = build(form), folder / ("x.gz" if packed and form != "parquet" else "x")
        piece.write(path, Content([TASK], runs, iter(rows), len(rows)))
        items = [i for _, i in piece.read(path)]
        assert repr([i for i in items if isinstance(i, Measurement)]) == repr(rows), form
        assert repr([i for i in items if isinstance(i, RunRecord)]) == repr(runs), form
        assert [i for i in items if isinstance(i, Task)] == [TASK], form


def test_an_export_and_its_import_hold_the_same(theirs, form, capsys):
    assert "11 of 11 records, 1 tasks, 1 runs" in said(
        capsys, "export", "x", "--format", form, "--history", "theirs.db"
    )
    before = {p.name: p.read_bytes() for p in theirs.iterdir() if not p.name.startswith("theirs")}
    said(capsys, "export", "x", "--format", form, "--history", "theirs.db")
    assert {n: (theirs / n).read_bytes() for n in before} == before, "the same history is the same bytes"
    said(capsys, "import", "x", "--format", form, "--history", "ours.db")
    found = records()
    today = found[0].origin.rsplit(", ", 1)[1]
    assert {m.origin for m in found} == {f"import search, x, {today}"} and len(today) == 10 and found[0].imported
    assert [replace(m, origin="search") for m in found] == records("theirs.db")
    with closing(SqliteStore("ours.db")) as store, closing(SqliteStore("theirs.db")) as other:
        assert store.task("t") == other.task("t")
        (run_,), (its,) = store.runs(), other.runs()
        assert run_["reason"] == its["reason"] and run_["info"]["import"] == {"file": "x", "date": today}
        assert "recording" not in run_["info"], "somebody else's recording is no recording of ours"


def test_other_programs_read_the_tables(theirs, capsys):
    pandas, duckdb, polars = (pytest.importorskip(m) for m in ("pandas", "duckdb", "polars"))
    needs("parquet")
    for form in ("csv", "parquet"):
        said(capsys, "export", f"them.{form}", "--format", form, "--history", "theirs.db")
    best = "select min(latency_s) from 'them.{0}' m join 'them.tasks.{0}' t on t.key = m.task_key where t.op = 'conv2d'"
    for form in ("csv", "parquet"):
        assert duckdb.sql(best.format(form)).fetchall() == [(1e-4,)]
        assert getattr(pandas, f"read_{form}")(f"them.{form}").latency_s.min() == 1e-4
        assert getattr(polars, f"read_{form}")(f"them.{form}")["latency_s"].min() == 1e-4
    pandas.read_parquet("them.parquet").to_parquet("again.parquet")
    assert "has 11 of 11" in said(capsys, "import", "again.parquet", "--format", "parquet", "--history", "ours.db")


# -- what comes from outside ----------------------------------------------------------------------------------------


def test_twice_adds_nothing_and_prune_takes_it_back(theirs, form, capsys):
    with closing(SqliteStore("ours.db")) as ours:
        ours.append([Measurement("t", SPACE.key, (0, 1), SPACE.decode((0, 1)), (9.0,), device="xeon", at=5.0)])
    said(capsys, "export", "x", "--format", form, "--history", "theirs.db")
    assert "would get 9 of 11" in said(capsys, "import", "x", "--format", form, "--history", "ours.db", "--dry-run")
    assert len(records()) == 1, "a dry run changes nothing"
    done = json.loads(said(capsys, "import", "x", "--format", form, "--history", "ours.db", "--json"))
    assert (done["records"], done["added"], done["known"], done["measured_here"]) == (11, 9, 0, 2)
    assert [m.seconds for m in records() if m.config == (0, 1)] == [(9.0,)], "what was measured here counts"
    done = json.loads(said(capsys, "import", "x", "--format", form, "--history", "ours.db", "--json"))
    assert (done["added"], done["known"], done["tasks"], done["runs"]) == (0, 9, 0, 0)
    with closing(SqliteStore("ours.db")) as ours:
        lent = ours.lend(replace(TASK, spaces=(SPACE,)), "xeon", 100)
        assert sorted(len(f.rows) for f in lent) == [1, 5], "imported rows of the own device guide too"
        ours.append([Measurement("t", SPACE.key, (1, 1), SPACE.decode((1, 1)), (8.0,), device="xeon", at=6.0)])
    assert "9 of 11 records removed" in said(capsys, "prune", "ours.db", "--origin", "import", "--yes")
    assert [m.seconds for m in records()] == [(9.0,), (8.0,)]
    with closing(SqliteStore("ours.db")) as ours:
        assert ours.runs() == []


def test_a_dry_run_makes_no_history(theirs, capsys):
    said(capsys, "export", "x", "--format", "jsonl", "--history", "theirs.db")
    assert "would get 11 of 11" in said(capsys, "import", "x", "--format", "jsonl", "--history", "no.db", "--dry-run")
    assert not Path("no.db").exists()


def test_a_task_of_ours_stays_as_it_is(theirs):
    with closing(SqliteStore("ours.db")) as ours:
        ours.remember([replace(TASK, name="mine", payload=b"mine", workload="")])
        content = Content([TASK], [], iter(()), 0)
        build("jsonl").write(Path("x"), content)
        exchange.take(ours, build("jsonl"), Path("x"), clock=VirtualClock())
        found = ours.task("t")
    assert found is not None and (found.name, found.payload, found.workload) == ("mine", b"mine", "w")


def test_rows_of_an_operator_whose_key_another_one_has_are_not_imported(theirs, capsys):
    said(capsys, "export", "x", "--format", "jsonl", "--history", "theirs.db")
    with closing(SqliteStore("ours.db")) as ours:
        ours.remember([replace(TASK, shapes="another's", payload=b"another's")])
        told = said(capsys, "import", "x", "--format", "jsonl", "--history", "ours.db")
        assert "11 left out: of operators whose key is another one's in this history" in told
        assert list(ours.query("t")) == [] and ours.task("t").payload == b"another's"


def test_a_killed_import_has_done_nothing(theirs, capsys):
    said(capsys, "export", "x", "--format", "jsonl", "--history", "theirs.db")
    code = (
        "import os, signal; from tt_history import exchange; from tt_history.cli import run\n"
        "part = exchange._Taking.part\n"
        "def die(self, items): part(self, items); os.kill(os.getpid(), signal.SIGKILL)\n"
        "exchange._Taking.part = die\n"
        "run(['import', 'x', '--format', 'jsonl', '--history', 'ours.db'])"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert records() == []
    assert "has 11 of 11" in said(capsys, "import", "x", "--format", "jsonl", "--history", "ours.db")


def test_a_full_disk_is_one_line_and_nothing_is_left(theirs, form):
    with closing(SqliteStore("theirs.db")) as store:
        store.append([Measurement("t", "s", (0,), error="build", why=random.Random(0).randbytes(200_000).hex())])
    code = (
        "import resource, signal, sys; from tt_history.cli import run; from tt_spec import Plugins\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); Plugins().build('format', sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))\n"
        "sys.exit(run(['export', 'x', '--format', sys.argv[1], '--history', 'theirs.db']))"
    )
    done = subprocess.run([sys.executable, "-c", code, form], capture_output=True, text=True)
    assert done.returncode == 6 and len(done.stderr.splitlines()) == 1 and "File too large" in done.stderr
    assert [p.name for p in theirs.iterdir() if not p.name.startswith("theirs")] == []


HEAD = '{"format":"tt-history","version":1}\n'
RECORD = (
    '{"$type":"Measurement","task_key":"t","space_key":"s","config":{"$tuple":[0]},"knobs":{},"seconds":{"$tuple":[1.0]},'
    '"runs":1,"error":null,"why":"","cost":{},"origin":"search","device":"d","versions":{},"at":0.0,"run_id":"","noise":null}\n'
)
MISTAKES = {
    "version": ('{"format":"tt-history","version":2}\n', "line 1: version 2, this tt reads 1"),
    "another's": ('{"a": 1}\n', "line 1: not a history's export"),
    "cut": (HEAD.replace("1}", '1,"records":1000000000}') + RECORD, "ends after 1 of 1,000,000,000 records"),
    "cut line": (HEAD + RECORD[:90], "line 2: not a tt object in JSON"),
    "negative": (HEAD + RECORD + RECORD.replace("[1.0]", "[-1.0]"), "line 3: seconds must be finite and positive"),
    "nan": (HEAD + RECORD.replace("[1.0]", '[{"$float":"nan"}]'), "line 2: seconds must be finite and positive"),
    "text for seconds": (HEAD + RECORD.replace("[1.0]", '["1"]'), "line 2: not a tt object in JSON"),
    "config": (HEAD + RECORD.replace("[0]", "[-1]"), "line 2: config must be integers from 0"),
    "float config": (HEAD + RECORD.replace("[0]", "[0.5]"), "line 2: config must be integers from 0"),
    "device": (HEAD + RECORD.replace('"d"', "7"), "line 2: device must be text"),
    "date": (HEAD + RECORD.replace('"at":0.0', '"at":{"$float":"inf"}'), "line 2: at must be a finite number"),
    "cost": (HEAD + RECORD.replace('"cost":{}', '"cost":{"a":"b"}'), "line 2: cost must be seconds by name"),
    "surrogates": (HEAD + RECORD.replace('"d"', '"\\ud800"'), "line 2: device is no UTF-8"),
    "nested": (HEAD + RECORD.replace('{},"sec', '{"a":' * 3000 + "1" + "}" * 3000 + ',"sec'), "line 2: nested too"),
    "no record": (HEAD + "[1]\n", "line 2: neither a task, a run nor a measurement"),
    "missing": (HEAD + RECORD.replace('"task_key":"t",', ""), "line 2: not a tt object"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(theirs, mistake, capsys):
    text, told = MISTAKES[mistake]
    Path("x.jsonl").write_text(text)
    assert told in said(capsys, "import", "x.jsonl", "--format", "jsonl", "--history", "theirs.db", code=6)
    assert len(records("theirs.db")) == 11


def test_a_row_outside_its_space_is_a_mistake(theirs, capsys):
    with closing(SqliteStore("bad.db")) as store:
        store.remember([TASK])
        store.append([Measurement("t", SPACE.key, (3, 0), {}, error="build")])
    said(capsys, "export", "x", "--format", "csv", "--history", "bad.db")
    assert "line 2: [3, 0] is no row of the space" in said(capsys, "import", "x", "--format", "csv", code=6)


def test_mistakes_in_tables_name_line_or_row_and_column(theirs, capsys):
    said(capsys, "export", "x.csv", "--format", "csv", "--history", "theirs.db")
    good = Path("x.csv").read_text()
    for old, new, told in (
        ("task_key,", "", "line 1: columns are missing: task_key"),
        ("0.001,0.001", "0.001,-1", "line 2: seconds must be finite and positive"),
        (",2,", ",two,", "line 2: column runs: invalid literal"),
        ("0 0", "0 x", "line 2: column config"),
        ("0.0005,0.0005", "0.0005,0.0005 nan", "line 3: seconds must be finite"),
        ('"{""tile""', "{", "line 2: "),
        ("\nt,", "\n", "line 2: 15 cells, at least 16 are wanted"),
    ):
        Path("x.csv").write_text(good.replace(old, new, 1))
        assert told in said(capsys, "import", "x.csv", "--format", "csv", "--history", "ours.db", code=6), old
    assert records() == []


def test_a_packed_bomb_and_a_claim_of_many_rows_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    bomb = gzip.compress(b"\0" * (96 << 20), 9)
    for form in ("jsonl", "csv"):
        Path("x").write_bytes(bomb)
        err = said(capsys, "import", "x", "--format", form, "--history", "ours.db", code=6)
        assert "longer than 32 MB" in err or "unpacks to more than" in err or "field larger" in err or "NUL" in err
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

    pq.write_table(pa.table({"task_key": pa.array(["t"] * 5_000_000)}), "x", row_group_size=5_000_000)
    assert "claims to unpack to 160,000,000 bytes" in said(capsys, "import", "x", "--format", "parquet", code=6)


def test_a_device_and_an_unknown_format_are_refused(theirs, capsys):
    for form in FORMATS:
        needs(form)
        assert "a file is wanted" in said(capsys, "import", "/dev/zero", "--format", form, code=6)
    assert "did you mean 'jsonl'" in said(capsys, "import", "x", "--format", "json", code=2)


# -- damage -----------------------------------------------------------------------------------------------------------


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file with one of the things that happen to files: bytes changed, lost, doubled, cut off or from elsewhere."""
    data, n = bytearray(content), len(content)
    a, b = sorted((rng.randrange(n), rng.randrange(n)))
    kind = rng.randrange(7)
    if kind == 0:
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(n)] = rng.randrange(256)
    elif kind == 1:
        del data[a : min(b, a + 64)]
    elif kind == 2:
        data[a:a] = data[a : min(b, a + 500)]
    elif kind == 3:
        del data[a:]
    elif kind == 4:
        data[a:a] = rng.choice([b"\0", b"\xff", b'"', b"\n", b",", b"{", b"[" * 5000, b"1e999", b"-", b"NaN", b"null"])
    elif kind == 5:
        data[a] ^= 1 << rng.randrange(8)
    else:
        at = [i for i in range(n) if 48 <= data[i] < 58] or [a]
        i = rng.choice(at)
        data[i : i + 1] = rng.choice([b"", b"-1", b"99999999999999999999999", b"0.5", b"true", b'"x"'])
    return bytes(data)


@pytest.mark.slow
def test_200_damaged_files_end_in_one_line_or_an_import(theirs, form, capsys, monkeypatch):
    piece = build(form)
    monkeypatch.setattr(commands, "_format", lambda name: piece)
    said(capsys, "export", "x", "--format", form, "--history", "theirs.db")
    content, rng, refused = Path("x").read_bytes(), random.Random(form), 0
    store = SqliteStore("ours.db")
    store.append([])
    for n in range(200):
        Path("bad").write_bytes(damaged(content, rng))
        code = run(["import", "bad", "--format", form, "--history", "ours.db"])
        out, err = capsys.readouterr()
        assert code in (0, 6), (n, err)
        if code:
            refused += 1
            assert len(err.splitlines()) == 1 and "bad" in err and not out, (n, err)
            assert list(store.query()) == [], (n, "nothing is written")
        elif " 0 of" not in out:
            maintenance.prune(store, maintenance.Unwanted(origin="import"))
    store.close()
    assert refused > 50
    with closing(sqlite3.connect("ours.db")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


BOUNDED = """
import resource, sys
from dataclasses import replace
from pathlib import Path
from tt_history import SqliteStore, exchange
from tt_spec import Content, Measurement, Plugins

n, path, form = int(sys.argv[1]), Path(sys.argv[2]), Plugins().build("format", sys.argv[3])
one = Measurement("t", "s", (0,), {"k": "v" * 500}, (1.0,), why="w" * 300)
form.write(path, Content([], [], (replace(one, config=(i,)) for i in range(n)), n))
print(exchange.take(SqliteStore(f"{path}.db"), form, path)["added"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    held = []
    for n in (10_000, 40_000):
        asked = [sys.executable, "-c", BOUNDED, str(n), str(tmp_path / f"x{n}"), "csv"]
        added, memory = map(int, subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
        assert added == n
        held.append(memory)
    assert held[1] < held[0] + 20_000, f"30 MB of records more took so many kB more: {held}"
