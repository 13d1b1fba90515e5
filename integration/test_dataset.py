"""A data set of real programs: recorded, joined with a history, its statements computed, shown, each by the command."""

from __future__ import annotations

import json

import numpy as np
import pytest


@pytest.mark.slow
def test_record_add_features_and_show(here, tmp_path):
    (tmp_path / "list.txt").write_text("op:matmul:24,32,48\nop:batch_matmul:2,16,24,32  # sketches alone\n")
    here("dataset", "record", "list.txt", "--out", "set", "--rows", "16")
    again = here("dataset", "record", "list.txt", "--out", "set", "--rows", "16")
    assert "0 new rows" in again.stdout, "a finished recording measures nothing"
    here("tune", "op:matmul:24,32,40", "--trials", "8", "--recipe", "random", "--set", "batch=8", "--history", "h.db")
    assert "8 new rows" in here("dataset", "add", "h.db", "--to", "set").stdout
    assert "40 rows have statements" in here("dataset", "features", "set").stdout
    assert "of 40 rows" not in here("dataset", "features", "set").stdout, "what is computed stays"
    shown = json.loads(here("dataset", "show", "set", "--json").stdout)
    assert shown["total"]["operators"] == 3 and shown["total"]["rows"] == 40 and not shown["held_out"]
    assert {p["name"] for p in shown["parts"]} == {"template", "sketch"}
    assert 0 <= shown["total"]["twins"] <= 1 and shown["total"]["pairs"] > 100

    from tt_bench.dataset import load_all
    from tt_bench.statements import groups

    (data,) = load_all(tmp_path / "set")
    for operator, (task, values, labels) in zip(data.operators, groups(tmp_path / "set"), strict=True):
        assert task.key == operator.task.key and len(values) == len(labels) == len(operator)
        assert values.values.shape[1] == 164 and np.isfinite(values.values).all() and labels.max() == 1.0
        assert len(np.unique(values.values[values.offsets[:-1]], axis=0)) > 1, "programs differ"

    (path,) = (tmp_path / "set").glob("*.json.gz")
    path.write_bytes(path.read_bytes()[:-9])
    for command in ("features", "show"):
        wrong = here("dataset", command, "set", code=6)
        assert "copy it again" in wrong.stderr and wrong.stderr.count("\n") == 1
