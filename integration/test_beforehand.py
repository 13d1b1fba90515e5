"""A model that learned beforehand, in a run of tt: it chooses the first batch; a file that is damaged is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tt_bench.lessons import data_hash
from tt_bench.lessons import read as lessons
from tt_spec import labels
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing.examples import statements
from tt_surrogate import ATFormer, LightGBM
from tt_surrogate.weights import SHIPPED, read

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


@pytest.mark.parametrize("recipe", ["tt", "atformer"])
def test_recipes_with_shipped_weights_say_where_their_first_batch_was_learned(recipe, here):
    told = events(here("tune", "op:matmul:64,64,64", "--recipe", recipe, "--trials", "4", "--json").stdout)
    first = next(e for e in told if e["event"] == "batch_measured")
    assert "cores" in first["info"]["weights"] and {row["origin"] for row in first["results"]} == {"weights"}
    notes = [e["text"] for e in told if e["event"] == "note"]
    assert sum("chosen by the weights that ship with tt, learned beforehand on" in n for n in notes) == 1
    role = "draft" if recipe == "tt" else "surrogate"
    plain = ("--recipe", recipe, "--set", f"{role}.weights=none", "--history", "other.db", "--json")
    blind = events(here("tune", "op:matmul:64,64,64", "--trials", "4", *plain).stdout)
    first = next(e for e in blind if e["event"] == "batch_measured")
    assert "weights" not in first["info"] and {row["origin"] for row in first["results"]} == {"random"}


def test_what_ships_was_learned_from_the_committed_data_but_for_the_cpu_that_judges_it():
    folders = sorted(p for p in (Path(__file__).parents[1] / "datasets").iterdir() if p.is_dir())
    card = read(SHIPPED / "knobs.safetensors", widths=(0,)).card
    known = lessons(folders, "knobs")
    taught = card["data"]["cpus"]
    assert {x.device for x in known} - set(taught) == {"emeraldrapids/Intel(R) Xeon(R) Processor/2 cores"}
    assert data_hash([x for x in known if x.device in taught]) == card["data"]["sha256"]
