"""Denormals are zero on every thread while a model runs, the caller's mode comes back, and a switch keeps them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler import denormals, mode
from tt_core.compiler.arrays import compare
from tt_core.compiler.lower import lower
from tt_core.deploy.library import compile_library
from tt_core.request import Request
from tt_core_fakes import with_space
from tt_spec.errors import OptionError
from tvm import relax

NATIVE = target.resolve("native")
pytestmark = pytest.mark.skipif(not denormals.wanted(NATIVE), reason="the mode is that of x86-64")
TINY = np.float32(1e-39)

MODES = """
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(modes: T.Buffer((2,), "int32")):
    T.func_attr({"tirx.noalias": True})
    for i in T.parallel(2):
        with T.sblock("thread"):
            vi = T.axis.spatial(2, i)
            T.reads()
            T.writes(modes[vi])
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(modes[vi])))
"""


def compiled(kept, monkeypatch):
    """x * 1e-39 * 1e30, whose product with the constant is denormal."""
    monkeypatch.setenv(mode.VARIABLE, "keep" if kept else "")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            small = builder.emit(relax.op.multiply(x, relax.const(TINY)))
            out = builder.emit_output(relax.op.multiply(small, relax.const(np.float32(1e30))))
        builder.emit_func_output(out)
    plugins = with_space()
    library = compile_library(lower(builder.get(), NATIVE, plugins, "fake"), {}, plugins)
    return relax.VirtualMachine(library, tvm.cpu())["main"]


def test_a_model_computes_with_zeros_and_its_caller_does_not(monkeypatch):
    run, x = compiled(False, monkeypatch), tvm.runtime.tensor(np.ones((4, 8), np.float32))
    assert (run(x).numpy() == 0).all()
    assert TINY * np.float32(0.5) > 0


def test_the_switch_keeps_denormals(monkeypatch):
    run, x = compiled(True, monkeypatch), tvm.runtime.tensor(np.ones((4, 8), np.float32))
    np.testing.assert_allclose(run(x).numpy(), 1e-9, rtol=1e-4)


@pytest.mark.parametrize(("switch", "bits"), [("", 0x8040), ("keep", 0)])
def test_every_thread_of_the_pool_is_told(switch, bits):
    code = f"""
import numpy as np, tvm
from tt_core import target
from tt_core.compiler.denormals import flushed
native = target.resolve("native")
func = tvm.script.from_source({MODES!r}).with_attr("global_symbol", "main")
modes = tvm.runtime.tensor(np.full(2, -1, np.int32))
main = tvm.tirx.build(tvm.IRModule({{"main": func}}), target=native)["main"]
from contextlib import nullcontext
from tt_core.compiler.denormals import wanted
with flushed(str(native)) if wanted(native) else nullcontext():
    main(modes)
print(*(int(m) & 0x8040 for m in modes.numpy()))
"""
    env = {**os.environ, mode.VARIABLE: switch, "TVM_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(bits)] * 2


def test_a_run_sets_the_mode_for_itself_and_its_workers_alone(monkeypatch):
    monkeypatch.delenv(mode.VARIABLE, raising=False)
    with mode.denormals_as("keep"):
        assert not denormals.wanted(NATIVE)
        with mode.denormals_as(None):
            assert mode.denormals() == os.environ[mode.VARIABLE] == "keep"
        with mode.denormals_as("flush"):
            assert denormals.wanted(NATIVE)
        assert not denormals.wanted(NATIVE)
    assert mode.VARIABLE not in os.environ and denormals.wanted(NATIVE)


def test_an_unknown_mode_is_refused():
    with pytest.raises(OptionError, match="--denormals is flush or keep, got 'zero'"):
        Request("resnet18", denormals="zero")


def test_what_is_flushed_is_no_difference():
    want = np.array([3e-37, 1e-40], np.float32)
    assert compare(np.zeros(2, np.float32), want) is None
    assert compare(np.zeros(2, np.float32), np.array([1e-20, 0], np.float32)) is not None
    assert compare(np.zeros(2), np.array([1e-35, 0])) is not None
