"""A model for another CPU raises an error that names the missing feature, at every call."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.compiler.target import needed_flags
from tt_core.deploy import library
from tt_core.deploy.entrance import checker
from tt_core_fakes import with_space
from tvm import relax

NATIVE = target.resolve("native")
pytestmark = pytest.mark.skipif(not needed_flags(NATIVE), reason="the flags are those of x86-64 under Linux")


def exported(path, monkeypatch, flags=None):
    builder, plugins = relax.BlockBuilder(), with_space()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(out)
    if flags is not None:
        monkeypatch.setattr(library, "checker", lambda of: checker(of, flags))
    library.compile_library(lower(builder.get(), NATIVE, plugins, "fake"), {}, plugins).export_library(str(path))
    return relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]


def test_a_file_runs_where_it_was_compiled(tmp_path, monkeypatch):
    run, x = exported(tmp_path / "m.so", monkeypatch), tvm.runtime.tensor(np.zeros((4, 8), np.float32))
    for _ in range(3):
        np.testing.assert_allclose(run(x).numpy(), 1, rtol=1e-5)


def test_a_file_for_another_cpu_says_what_is_missing(tmp_path, monkeypatch):
    run = exported(tmp_path / "m.so", monkeypatch, ["sse4_2", "no_such_flag"])
    x = tvm.runtime.tensor(np.zeros((4, 8), np.float32))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"this CPU does not have no_such_flag; .*sse4_2, no_such_flag"):
            run(x)


def test_a_flag_is_a_whole_word():
    """`avx51` is the beginning of a flag of many CPUs, and no flag."""
    flags = needed_flags(NATIVE)
    part = next(f for f in flags if not any(other == f[:-1] for other in flags))[:-1]
    check = checker(NATIVE, [part])
    assert check is not None
    done, after = (tvm.runtime.tensor(np.zeros(1, np.int32)) for _ in range(2))
    with pytest.raises(RuntimeError, match=part):
        check["tt_check_cpu"](done, after)


def test_only_known_flags_are_asked_for():
    wanted = needed_flags(target.resolve({"kind": "llvm", "mcpu": "skylake", "num-cores": 2}))
    assert "avx2" in wanted and "avx512f" not in wanted
    assert needed_flags(tvm.target.Target({"kind": "c"})) == []
    assert platform.machine() in ("x86_64", "AMD64")
