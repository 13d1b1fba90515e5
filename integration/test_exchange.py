"""T4 and Kernel Tuner's files through `tt history import` and `export`."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest
from tt_history import SqliteStore, exchange
from tt_history.cli import run
from tt_spec import Plugins
from tt_spec.errors import FormatError

from .test_damaged_files import damaged

RECORDING = Path(__file__).parents[1] / "recordings" / "mobilenet-dw-96-sketch.json.gz"
CACHE = {
    "device_name": "GPU X",
    "kernel_name": "gemm",
    "problem_size": [64, 64],
    "tune_params_keys": ["block", "unroll"],
    "tune_params": {"block": [16, 32, 64], "unroll": [True, False]},
    "cache": {
        "16,True": {"block": 16, "unroll": True, "time": 0.02, "times": [0.03, 0.02], "compile_time": 400.0},
        "32,False": {"block": 32, "unroll": False, "time": 0.01, "timestamp": "2026-11-22 10:00:00+00:00"},
        "64,False": {"block": 64, "unroll": False, "time": "CompilationFailedConfig"},
    },
}
T4 = {
    "results": [
        {"configuration": {"block": b}, "times": {"runtimes": t}, "invalidity": w, "correctness": 1, "measurements": []}
        for b, t, w in ((8, [0.5, 0.25], "correct"), (16, [], "compile"), (32, [1.0], "correct"))
    ],
    "schema_version": "1.0.0",
    "metadata": {"timeunit": "milliseconds"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with files of two other tuners."""
    monkeypatch.chdir(tmp_path)
    Path("cache.json").write_text(json.dumps(CACHE, indent=""))
    Path("t4.json").write_text(json.dumps(T4))
    return tmp_path


def taken(capsys, file: Path | str, form: str, *more: str) -> dict:
    assert run(["import", str(file), "--format", form, "--json", *more]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_what_others_measured_is_taken_once_and_goes_again(folder, capsys):
    wanted = {"cache.json": ("kernel-tuner", 3, 1), "t4.json": ("t4", 3, 1), str(RECORDING): ("t4", 502, 3)}
    for file, (form, records, tasks) in wanted.items():
        first = taken(capsys, file, form)
        assert (first["records"], first["added"], first["tasks"]) == (records, records, tasks)
        again = taken(capsys, file, form)
        assert (again["added"], again["known"]) == (0, first["added"])
    with closing(SqliteStore("tt.db")) as store:
        found = {s["name"]: s for s in store.summary()}
        (task,) = [t for t in store.tasks() if t["name"] == "gemm"]
        best = store.best(task["key"])
    assert found["gemm"]["best_s"] == pytest.approx(1e-5) and found["t4"]["best_s"] == pytest.approx(3.75e-4)
    assert best is not None and best.knobs == {"block": 32, "unroll": False} and best.imported
    assert run(["export", "all.json.gz", "--format", "t4"]) == 0
    capsys.readouterr()
    first = taken(capsys, "all.json.gz", "t4", "--history", "theirs.db")
    with closing(SqliteStore("tt.db")) as ours, closing(SqliteStore("theirs.db")) as theirs:
        assert first["left_out"] == {} and first["added"] == len(list(theirs.query())) == len(list(ours.query()))
        assert [m.seconds for m in theirs.query()] == [m.seconds for m in ours.query()]
    assert run(["prune", "--origin", "import", "--yes"]) == 0
    with closing(SqliteStore("tt.db")) as store:
        assert list(store.query()) == []
    capsys.readouterr()
    assert run(["export", "x", "--format", "kernel-tuner"]) == 6
    assert capsys.readouterr().err == "tt-history: format 'kernel-tuner' can be read, not written\n"


@pytest.mark.parametrize(("file", "form"), [("cache.json", "kernel-tuner"), ("t4.json", "t4"), ("ours.json", "t4")])
def test_200_damaged_files_end_in_one_line_or_an_import(folder, file, form, capsys):
    if file == "ours.json":
        taken(capsys, "cache.json", "kernel-tuner", "--history", "from.db")
        assert run(["export", file, "--format", "t4", "--history", "from.db"]) == 0
        capsys.readouterr()
    rng, sound = random.Random(file), Path(file).read_text()
    document, piece, refused = json.loads(sound), Plugins().build("format", form), 0
    with closing(SqliteStore("tt.db")) as store:
        for n in range(200):
            if n % 2:
                data = json.dumps(damaged(document, rng)).encode()
            else:
                at, junk = (
                    rng.randrange(len(sound)),
                    rng.choice([b"", b"\0", b"\xff", b"[" * 5000, b"1e999", b"-", b","]),
                )
                rest = sound[at + rng.randrange(40) :] if junk else ""
                data = sound[:at].encode() + junk + rest.encode()
            Path("bad").write_bytes(data)
            try:
                exchange.take(store, piece, Path("bad"), dry_run=True)
            except FormatError as e:
                refused += 1
                assert str(e).startswith("bad") and "\n" not in str(e), (n, e)
    assert 100 < refused < 200


def test_a_text_of_a_file_does_not_act_in_the_terminal(folder, capsys):
    Path("bad").write_text(json.dumps({**T4, "schema_version": "\x1b[2J\ud800"}))
    assert run(["import", "bad", "--format", "t4"]) == 6
    assert capsys.readouterr().err == "tt-history: bad: T4 schema [2J , this tt-bench reads 1.0.0\n"
