"""What a deployed file needs beside it."""

from __future__ import annotations

import hashlib
import json

import pytest
from tt_core.compiler.runtime import Runner, read_sidecar, sidecar_path
from tt_core.errors import ModelError

NOT_ELF = b"not an ELF file"
GOOD = {
    "inputs": [{"name": "x", "shape": [1, 4], "dtype": "float32"}],
    "target": '{"kind": "llvm"}',
    "threads": 1,
    "sha256": hashlib.sha256(NOT_ELF).hexdigest(),
}


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "model.so"
    path.write_bytes(NOT_ELF)
    sidecar_path(path).write_text(json.dumps(GOOD))
    return path


def message(path) -> str:
    with pytest.raises(ModelError) as e:
        read_sidecar(path)
    assert "\n" not in str(e.value)
    return str(e.value)


def test_the_sidecar_lies_beside_the_library(library):
    assert sidecar_path(library).name == "model.so.json"
    assert sidecar_path(str(library)) == sidecar_path(library)
    assert read_sidecar(library) == GOOD


def test_a_missing_library_says_how_to_make_one(tmp_path):
    text = message(tmp_path / "none.so")
    assert "none.so" in text and "tt tune MODEL --out" in text


def test_a_missing_sidecar_is_named(library):
    sidecar_path(library).unlink()
    assert "model.so.json is missing" in message(library)


@pytest.mark.parametrize("dtype", [{"a": {"b": None}}, None, "float33", [["a"]], {"names": [1]}])
def test_an_input_of_no_dtype_is_named(library, dtype):
    content = json.loads(sidecar_path(library).read_text())
    content["inputs"][0]["dtype"] = dtype
    sidecar_path(library).write_text(json.dumps(content))
    assert "model.so.json is not a sidecar of tt: input 0 needs" in message(library)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", "{}", '{"inputs": []}', '{"target": "{}"}'])
def test_a_damaged_sidecar_is_named(library, content):
    sidecar_path(library).write_text(content)
    assert "model.so.json is not a sidecar of tt" in message(library)


def test_a_sidecar_that_is_not_text_is_named(library):
    sidecar_path(library).write_bytes(b"\xff\xfe\x00")
    assert "is not a sidecar of tt" in message(library)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threads": 0}, "'threads'"),
        ({"threads": 10**9}, "'threads'"),
        ({"threads": "2"}, "'threads'"),
        ({"sha256": None}, "'sha256'"),
        ({"target": "native"}, "'target'"),
        ({"target": '{"mcpu": "x"}'}, "'target'"),
        ({"inputs": [{"name": "x", "shape": [1, 4]}]}, "input 0"),
        ({"inputs": [*GOOD["inputs"], {"name": "y", "shape": [-1], "dtype": "float32"}]}, "input 1"),
        ({"inputs": [{"name": "x", "shape": [1.5], "dtype": "float32"}]}, "input 0"),
        ({"inputs": [{"name": "x", "shape": [1], "dtype": "float33"}]}, "input 0"),
        ({"inputs": [{"name": "x", "shape": [1], "dtype": None}]}, "input 0"),
        ({"inputs": [{"name": "x", "shape": [1], "dtype": "object"}]}, "input 0"),
        ({"inputs": [{"name": "x", "shape": [10**12, 10**12], "dtype": "float32"}]}, "cannot hold"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(library, change, says):
    sidecar_path(library).write_text(json.dumps({**GOOD, **change}))
    assert says in message(library)


def test_a_library_that_changed_is_not_loaded(library, monkeypatch):
    import tvm

    monkeypatch.setattr(tvm.runtime, "load_module", lambda path: pytest.fail("it was loaded"))
    library.write_bytes(NOT_ELF + b"!")
    with pytest.raises(ModelError, match="sha256"):
        Runner(library)


def test_a_damaged_library_is_one_line(library):
    with pytest.raises(ModelError, match="TVM cannot load") as e:
        Runner(library)
    assert "model.so" in str(e.value) and "\n" not in str(e.value)
