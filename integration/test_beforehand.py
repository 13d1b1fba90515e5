"""A model that learned beforehand, in a run of tt: it chooses the first batch; a file that is damaged is one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tt_spec import labels
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing.examples import statements
from tt_surrogate import ATFormer, LightGBM

from .conftest import events

TUNE = ("tune", "op:matmul:64,64,64", "--trials", "8", "--set", "batch=8", "--json")


def chosen(name):
    return "--set", f"surrogate={name}", "--set", f"surrogate.weights={name}.st"


def write(folder, model):
    rng = np.random.default_rng(0)
    tasks = [replace(synthetic_task(f"school-{i}", knobs=3), op="matmul") for i in range(3)]
    model.pretrain([(t, statements(40, rng), labels(rng.random(40))) for t in tasks], rng, lambda p: True)
    model.save(folder / f"{model.name}.st", {"device": "a toy"})


@pytest.mark.parametrize("model", [ATFormer(width=8, epochs=2), LightGBM(rounds=10)], ids=lambda m: m.name)
def test_weights_choose_the_first_batch(model, tmp_path, here):
    write(tmp_path, model)
    told = events(here(*TUNE, *chosen(model.name)).stdout)
    first = next(e for e in told if e["event"] == "batch_measured")
    assert first["info"]["weights"] == "a toy"
    assert "weights" in {row["origin"] for row in first["results"]}
    assert told[-1]["trials"] == 8


@pytest.mark.parametrize("model", [ATFormer(width=8, epochs=2), LightGBM(rounds=10)], ids=lambda m: m.name)
def test_damaged_weights_end_a_run_before_anything_is_measured(model, tmp_path, here):
    write(tmp_path, model)
    file = tmp_path / f"{model.name}.st"
    raw = bytearray(file.read_bytes())
    raw[-3] ^= 4
    for content, words in ((raw[:-9], "damaged"), (raw, "SHA-256"), (b"", "damaged")):
        file.write_bytes(content)
        done = here(*TUNE, *chosen(model.name), code=2)
        lines = [line for line in done.stderr.splitlines() if line]
        assert len(lines) == 1 and words in lines[0] and f"weights {model.name}.st" in lines[0]
        assert "batch_measured" not in done.stdout
    file.unlink()
    assert "no weights" in here(*TUNE, *chosen(model.name), code=2).stderr
