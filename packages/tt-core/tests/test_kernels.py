"""A model's operators in several modules."""

from __future__ import annotations

import re
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
    return [m for m in kernels.compiled(executable.mod) if '"x86-64"' not in m["_get_target_string"]()]


@pytest.mark.parametrize(("threads", "modules"), [(1, 1), (2, 2), (3, 2)])
def test_modules_for_threads_with_four_operators_each(lowered, tmp_path, monkeypatch, threads, modules):
    monkeypatch.setattr(kernels, "threads", lambda: threads)
    made = library.compile_library(lowered, {}, with_space())
    assert len(code(made)) == 1 + modules, "what flushes denormals is apart"
    runs(made)
    library.write(made, tmp_path / "m.so", {})
    runs(tvm.runtime.load_module(str(tmp_path / "m.so")))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.so", "m.so.json"]


def test_a_tuned_operator_has_all_of_llvm_and_an_untuned_one_less(lowered, monkeypatch):
    monkeypatch.setattr(kernels, "threads", lambda: 1)
    task = lowered.tasks[0]
    row = next(iter(task.space.sample(1, np.random.default_rng(0))))
    for rows, tuned in (({}, []), ({task.key: row}, lowered.functions[task.key])):
        made = library.compile_library(lowered, rows, with_space())
        of_level = {'"opt-level":2' in m["_get_target_string"](): m.inspect_source("ll") for m in code(made)}
        for name in (name for names in lowered.functions.values() for name in names):
            assert re.search(rf"^define .*@__tvm_ffi_{name}\(", of_level[name not in tuned], re.M), name


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
