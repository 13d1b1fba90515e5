"""A deployed model's weights lie on huge pages where the kernel offers them."""

from __future__ import annotations

import ctypes
import mmap
import sys

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.deploy import huge, library
from tt_core_fakes import with_space
from tvm import relax

NATIVE = target.resolve("native")


def model(*weights):
    """One product with each of the weights, on an input as wide as the first has rows."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, weights[0].shape[0]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for w in weights:
                y = builder.emit(relax.op.matmul(y, relax.const(w)))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def huge_kb():
    """This process's memory on huge pages, kB."""
    with open("/proc/self/smaps_rollup") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("AnonHugePages"))


def offered():
    """Whether this kernel makes huge pages of a process's memory when asked."""
    if not sys.platform.startswith("linux"):
        return False
    size, before = 4 * huge.PAGE, huge_kb()
    with mmap.mmap(-1, size) as block:
        block.write(b"x" * size)
        buffer = (ctypes.c_char * size).from_buffer(block)
        start = -(-ctypes.addressof(buffer) // huge.PAGE) * huge.PAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(2 * huge.PAGE), 25)
        found = huge_kb() - before
        del buffer
    return found >= 2 * huge.PAGE // 1024


def test_weights_lie_on_huge_pages_after_the_first_call(tmp_path):
    weights, plugins = np.random.default_rng(0).random((1024, 4096), np.float32), with_space()
    lowered = lower(model(weights), NATIVE, plugins, "fake")
    library.compile_library(lowered, {}, plugins).export_library(str(tmp_path / "m.so"))
    assert (tmp_path / "m.so").stat().st_size < 1.5 * weights.nbytes, "the weights are in it once"
    main = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "m.so")), tvm.cpu())["main"]
    x, before = np.random.default_rng(1).random((1, 1024), np.float32), huge_kb()
    for _ in range(2):
        np.testing.assert_allclose(main(tvm.runtime.tensor(x)).numpy(), x @ weights, rtol=1e-4)
    gained = 1024 * (huge_kb() - before)
    if huge.wanted(NATIVE) and offered():
        assert gained >= weights.nbytes - huge.PAGE
    else:
        assert gained >= 0


def test_only_large_weights_are_asked_for_the_largest_first():
    side = int((huge.LEAST_BYTES // 4) ** 0.5)
    small, large = (np.ones((side, n), np.float32) for n in (side - 1, side))
    mod = model(np.ones((8, side), np.float32), np.tile(large, 2), np.ones((2 * side, 2 * side), np.float32))
    assert [tuple(c.value.shape) for c in huge.large(mod)] == [(2 * side, 2 * side), (side, 2 * side)]
    assert huge.large(model(small)) == []


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ({"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu"}, True),
        ({"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}, True),
        ({"kind": "llvm", "mtriple": "x86_64-apple-darwin"}, False),
        ({"kind": "c"}, False),
        ({"kind": "cuda"}, False),
    ],
)
def test_only_linux_on_known_processors_is_asked(kind, wanted):
    assert huge.wanted(tvm.target.Target(kind)) is wanted
