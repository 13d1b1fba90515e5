"""Files of weights: what is written is read; everything else is one line."""

from __future__ import annotations

import dataclasses
import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_spec import UserError
from tt_surrogate import weights
from tt_surrogate.weights import Weights, WeightsError, read, write

KEPT = Weights(
    "atformer",
    {"width": 8, "layers": 2},
    {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "trees": weights.from_bytes(b"booster"), "n": np.array(3)},
    {"data": "abc", "cpus": ["AMD EPYC"], "metrics": {"pairs": 0.8}},
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    write(path, KEPT)
    return path


def refused(path, *words, **options):
    with pytest.raises(WeightsError) as e:
        read(path, **options)
    text = str(e.value)
    assert str(path) in text and "\n" not in text and all(w in text for w in words), text
    assert isinstance(e.value, UserError) and e.value.exit_code == 2


def test_what_is_written_is_read(path, tmp_path):
    found = read(path, "atformer")
    assert dataclasses.replace(found, tensors={}) == dataclasses.replace(KEPT, tensors={})
    assert set(found.tensors) == set(KEPT.tensors)
    for name, value in KEPT.tensors.items():
        assert np.array_equal(found.tensors[name], value) and found.tensors[name].dtype == value.dtype
    assert found.tensors["trees"].tobytes() == b"booster"
    write(tmp_path / "again", found)
    assert (tmp_path / "again").read_bytes() == path.read_bytes(), "the same weights give the same bytes"
    assert os.listdir(tmp_path) == ["again"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_every_flipped_bit_and_every_cut_is_noticed(path, tmp_path_factory, data):
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del raw[at:]
    other = tmp_path_factory.mktemp("bad") / "w"
    other.write_bytes(raw)
    refused(other)


def changed(path, tmp_path, tensors=None, **header):
    """A file whose header says something else, with the SHA-256 that fits."""
    from safetensors.numpy import load, save

    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    found = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["tt"])
    found = {k: v for k, v in found.items() if k != "sha256"} | header
    tensors = load(raw) | (tensors or {})
    found["sha256"] = weights._digest(found, tensors)
    (tmp_path / "w").write_bytes(save(tensors, {"tt": json.dumps(found)}))
    return tmp_path / "w"


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"format": 2}, ["format 2", "reads 1"]),
        ({"format": None}, ["format None"]),
        ({"features": 7}, ["version 7", "train them again"]),
        ({"width": 200}, ["200 columns", "174"]),
        ({"width": 164}, ["164 columns", "174"]),
        ({"model": "lstm"}, ["of 'lstm', not of 'atformer'"]),
        ({"model": 3}, ["lack one of model"]),
        ({"card": []}, ["lack one of model"]),
    ],
)
def test_weights_for_something_else_are_refused(path, tmp_path, header, words):
    refused(changed(path, tmp_path, **header), *words, model="atformer")


def test_values_that_are_not_finite_are_neither_read_nor_written(path, tmp_path):
    bad = {"a": np.array([1.0, np.nan], dtype=np.float32)}
    refused(changed(path, tmp_path, bad), "a has values that are not finite")
    with pytest.raises(WeightsError, match="a is not"):
        write(tmp_path / "new", dataclasses.replace(KEPT, tensors=bad))
    assert not (tmp_path / "new").exists()


def test_what_is_no_file_of_weights_is_one_line(tmp_path):
    from safetensors.numpy import save

    refused(tmp_path / "none", "no weights", "tt train")
    refused(tmp_path, "no weights")
    refused("/dev/zero", "no weights")
    refused(str(tmp_path / "x") + "\0", "no weights")
    (tmp_path / "foreign").write_bytes(save({"a": np.zeros(3)}))
    refused(tmp_path / "foreign", "another program")
    (tmp_path / "pickle").write_bytes(b"\x80\x04K\x01.")
    refused(tmp_path / "pickle", "damaged, or no safetensors")
    with pytest.raises(WeightsError, match="cannot be written"):
        write(tmp_path / "nowhere" / "w", KEPT)


def test_trees_may_read_either_width(path, tmp_path):
    assert read(changed(path, tmp_path, width=164), widths=(164, 174)).width == 164


def test_the_library_is_asked_for_by_its_extra(path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    refused(path, "pip install 'tt-surrogate[pretrained]'")
