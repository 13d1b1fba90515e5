"""A model's operators in several modules."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.deploy import kernels, library
from tt_core.errors import ModelError
from tt_core_fakes import with_space
from tvm import relax

SIZES = range(2, 12)


@pytest.fixture(scope="module")
def lowered():
    """Ten products, each of another size."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 2), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for n in SIZES:
                weight = np.full((n, n + 1), 0.5, "float32")
                y = builder.emit(relax.op.matmul(y, relax.const(weight)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return lower(builder.get(), target.resolve("native"), with_space(), "fake")


def wanted():
    y = np.ones((3, 2))
    for n in SIZES:
        y = y @ np.full((n, n + 1), 0.5)
    return y


def runs(root):
    vm = relax.VirtualMachine(root, tvm.cpu())
    np.testing.assert_allclose(vm["main"](tvm.runtime.tensor(np.ones((3, 2), "float32"))).numpy(), wanted(), rtol=1e-5)


def code(executable):
    """Its modules with machine code but for that of the CPU's check, which is for the oldest CPU."""
    about = [m["_get_target_string"]() for m in kernels.compiled(executable.mod)]
    return [t for t in about if '"x86-64"' not in t]


@pytest.mark.parametrize(("threads", "modules"), [(1, 1), (2, 2), (3, 3)])
def test_as_many_modules_as_threads(lowered, tmp_path, monkeypatch, threads, modules):
    monkeypatch.setattr(kernels, "threads", lambda: threads)
    made = library.compile_library(lowered, {}, with_space())
    assert len(code(made)) == modules
    runs(made)
    library.write(made, tmp_path / "m.so", {})
    runs(tvm.runtime.load_module(str(tmp_path / "m.so")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.so", "m.so.json"]


def test_what_another_thread_cannot_compile_is_told(lowered, monkeypatch):
    monkeypatch.setattr(kernels, "threads", lambda: 2)
    build = tvm.tirx.build

    def failing(mod, *args, **options):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no such instruction")
        return build(mod, *args, **options)

    monkeypatch.setattr("tvm.tirx.build", failing)
    with pytest.raises(ModelError, match="TVM cannot compile the model: no such instruction"):
        library.compile_library(lowered, {}, with_space())
