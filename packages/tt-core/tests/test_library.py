"""Compiling, linking and writing a library where the machine or the request is not the usual one."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.compiler.mode import denormals_as
from tt_core.deploy import entrance, library
from tt_core.errors import InstallationError
from tt_core_fakes import with_space
from tt_spec.errors import FileError
from tvm import relax

NATIVE = target.resolve("native")


@pytest.fixture(scope="module")
def lowered():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(out)
    return lower(builder.get(), NATIVE, with_space(), "fake")


def runs(path):
    run = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    np.testing.assert_allclose(run(tvm.runtime.tensor(np.zeros((4, 8), np.float32))).numpy(), 1, rtol=1e-5)


def test_a_library_is_linked_where_there_are_no_files_in_memory(lowered, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    library.write(library.compile_library(lowered, {}, with_space()), tmp_path / "m.so", {})
    runs(tmp_path / "m.so")


def test_a_space_that_lowering_did_not_keep_open_is_opened(lowered):
    plugins, rows = with_space(), {t.key: np.zeros(len(t.space.shape), dtype=np.int64) for t in lowered.tasks}
    assert rows
    closed = dataclasses.replace(lowered, opened={})
    kept, opened = (library.compile_library(one, rows, plugins) for one in (lowered, closed))
    assert kept.as_text() == opened.as_text()


def test_an_output_that_is_a_folder_or_cannot_be_linked_is_refused(tmp_path, monkeypatch):
    (tmp_path / "m.so").mkdir()
    with pytest.raises(FileError, match=r"is a folder: give a file name, e\.g\. .*model\.so"):
        library.check_writable(tmp_path / "m.so")
    monkeypatch.setattr("tvm.support.cc.get_cc", lambda: None)
    with pytest.raises(
        InstallationError, match=r"none of g\+\+, clang\+\+, c\+\+ is on PATH; install g\+\+, or omit --out"
    ):
        library.check_writable(tmp_path / "n.so")
    assert [p.name for p in tmp_path.iterdir()] == ["m.so"]


def test_a_model_that_needs_no_entrance_has_none(lowered):
    with denormals_as("keep"):
        assert entrance.with_entrance(lowered.mod, NATIVE, False).same_as(lowered.mod)


def test_the_check_of_the_cpu_is_for_the_targets_system():
    described = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu"})
    assert entrance.checker(described, ["sse4_2"]) is not None
    assert entrance.checker(described, []) is None
