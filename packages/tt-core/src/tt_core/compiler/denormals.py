"""Denormal numbers as zero while a model or a candidate runs.

Many CPUs take several times as long for an operation on a denormal number. Trained recurrent and mobile models
meet them, and nothing depends on them. On x86-64 two bits of the control register MXCSR make them zero, as results
(FTZ) and as operands (DAZ), in the thread that sets them: so every thread of TVM's pool is told. A deployed library
holds the functions that do it, and needs only TVM's runtime.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3.3 and 10.2.3.4.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tt_core.compiler import mode

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["MODE", "flush", "flushed", "restore", "wanted"]

MODE = relax.TensorType((1,), "int32")
"""A thread's control register."""

_BITS = 0x8040

_FLUSH = f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(before: T.Buffer((1,), "int32")):
    T.func_attr({{"tirx.noalias": True, "tirx.is_scheduled": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        with T.sblock("caller"):
            T.reads()
            T.writes(before[0])
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(before[0])))
        with T.attr(0, "pragma_parallel_launch_point", 1):
            with T.sblock("thread"):
                T.reads()
                T.writes()
                mode = T.sblock_alloc_buffer((1,), "int32", scope="local")
                T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(mode[0])))
                mode[0] = T.bitwise_or(mode[0], {_BITS})
                T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.ldmxcsr", T.address_of(mode[0])))
                for i in T.parallel(2):
                    T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(mode[0])))
"""
"""The caller's mode is kept; then each thread of the pool runs once what is launched, the caller too. TVM wants a
parallel loop of two trips in what it launches: it does nothing that matters."""

_RESTORE = """
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(before: T.Buffer((1,), "int32"), after: T.Buffer((1,), "int32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
    with T.sblock("root"):
        T.reads()
        T.writes()
        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.ldmxcsr", T.address_of(before[0])))
        after[0] = before[0]
"""


def wanted(target: Target) -> bool:
    """Whether programs of a target flush denormals: on x86-64, unless they are to be kept (`mode`)."""
    if mode.denormals() == "keep" or str(target.kind.name) != "llvm":
        return False
    triple = str(target.attrs.get("mtriple", "")) or tvm.target.codegen.llvm_get_system_triple()
    return triple.split("-")[0] in ("x86_64", "amd64")


@contextmanager
def flushed(target: str) -> Iterator[None]:
    """Denormals are zero in this thread meanwhile; in the threads of this process's pool from now on.

    Args:
        target: JSON of one that is `wanted`.
    """
    flush, back = _compiled(target)
    before = tvm.runtime.empty((1,), "int32")
    flush(before)
    try:
        yield
    finally:
        back(before, before)


@lru_cache(maxsize=8)
def _compiled(target: str) -> tuple[Callable[..., object], Callable[..., object]]:
    """The function that flushes and the one that restores, for a target's JSON."""
    found = []
    for source in (_FLUSH, _RESTORE):
        func = tvm.script.from_source(source).with_attr("global_symbol", "main")
        found.append(tvm.tirx.build(tvm.IRModule({"main": func}), target=tvm.target.Target(json.loads(target)))["main"])
    return found[0], found[1]


def flush(builder: relax.BlockBuilder) -> relax.Expr:
    """Emit what makes denormals zero on every thread, of which the pool's stay so; returns the caller's mode."""
    return builder.emit(relax.call_tir(_added(builder, _FLUSH, "flush_denormals"), [], out_ty=MODE))


def restore(builder: relax.BlockBuilder, before: relax.Expr) -> None:
    """Emit what gives the caller its mode back."""
    builder.emit(relax.call_tir(_added(builder, _RESTORE, "restore_denormals"), [before], out_ty=MODE))


def _added(builder: relax.BlockBuilder, source: str, name: str) -> tvm.ir.GlobalVar:
    return builder.add_func(tvm.script.from_source(source).without_attr("global_symbol"), name)
