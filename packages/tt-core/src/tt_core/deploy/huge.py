"""A deployed model's weights on huge pages, where the kernel has them.

Weights are read once per execution, in order, and prefetchers stop at the end of each page of 4 kB. At its first call a
model's entrance asks Linux to put its large constants on pages of 2 MB: madvise with MADV_HUGEPAGE, which lets the
kernel do so in time, and MADV_COLLAPSE (Linux 6.1), which does it now. A kernel that offers neither answers with an
error, and nothing changes. Pages that large constants share with other memory of the process become large too.

Source: madvise(2); Linux, Documentation/admin-guide/mm/transhuge.rst.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.ir import GenericConst

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["LEAST_BYTES", "MOST", "advise", "large", "wanted"]

LEAST_BYTES = 1 << 18
"""Size of a constant that deserves it."""

MOST = 128
"""Constants, the largest ones, that are asked for: each is an argument."""

PAGE = 1 << 21
_HUGEPAGE, _COLLAPSE = 14, 25
_FRESH = 2  # not 0: constants of one value are one constant, and the CPU's check has the 0


def wanted(target: Target) -> bool:
    """Whether programs of a target run on Linux and have a pointer's bits where LLVM masks them."""
    if str(target.kind.name) != "llvm":
        return False
    triple = str(target.attrs.get("mtriple", "")) or tvm.target.codegen.llvm_get_system_triple()
    return "linux" in triple and triple.split("-")[0] in ("x86_64", "amd64", "aarch64")


def large(mod: tvm.IRModule) -> list[GenericConst]:
    """The large constants of a model, the largest first."""
    found: dict[int, GenericConst] = {}

    def visit(e: relax.Expr) -> None:
        if isinstance(e, GenericConst) and _bytes(e) >= LEAST_BYTES:
            found[hash(e.value)] = e

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return sorted(found.values(), key=lambda c: -_bytes(c))[:MOST]


def advise(builder: relax.BlockBuilder, constants: list[GenericConst]) -> None:
    """Emit what asks for the pages, once in the life of the loaded model."""
    function = builder.add_func(tvm.script.from_source(_source(constants)).without_attr("global_symbol"), "huge_pages")
    done = relax.const([_FRESH], "int32")  # the function writes to it
    builder.emit(relax.call_tir(function, [*constants, done], out_ty=relax.TensorType((1,), "int32")))


def _bytes(constant: GenericConst) -> int:
    kind = constant.value.dtype
    return math.prod(constant.value.shape) * tvm.DataType(str(kind)).itemsize


def _source(constants: list[GenericConst]) -> str:
    """The function as TVMScript."""
    params = [f'c{i}: T.Buffer({tuple(map(int, c.value.shape))}, "{c.value.dtype}")' for i, c in enumerate(constants)]
    asks = []
    for i, c in enumerate(constants):
        first = ", ".join("0" for _ in c.value.shape)
        start = f'T.call_llvm_intrin("handle", "llvm.ptrmask", T.address_of(c{i}[{first}]), T.int64({-PAGE}))'
        size = -(-_bytes(c) // PAGE) * PAGE + PAGE
        for advice in (_HUGEPAGE, _COLLAPSE):
            asks.append(f'T.evaluate(T.call_extern("int32", "madvise", {start}, T.int64({size}), {advice}))')
    lines = "\n".join(f"            {ask}" for ask in asks)
    return f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main({", ".join(params)}, done: T.Buffer((1,), "int32"), after: T.Buffer((1,), "int32")):
    T.func_attr({{"tirx.noalias": True, "tirx.is_scheduled": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        if done[0] == {_FRESH}:
{lines}
            done[0] = 1
        after[0] = 1
"""
