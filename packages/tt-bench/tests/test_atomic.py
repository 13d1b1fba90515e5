"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tt_bench.atomic import read_json, write, write_json
from tt_bench.errors import BenchError


def test_there_and_back_in_a_new_folder(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_json(path, {"seconds": [0.1, None], "name": "µ"})
    assert read_json(path) == {"seconds": [0.1, None], "name": "µ"}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write(path, "old")
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(BenchError, match=r"x\.txt: No space left on device; all runs are kept"):
        write(path, "new", "all runs are kept")
    assert path.read_text() == "old"


def test_infinity_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", [float("inf")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [None, b'{"a": 1', b"\xff"])
def test_a_missing_or_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=r"x\.json: .*; delete it and repeat the command"):
        read_json(path)
