"""Denormal numbers as zero while a model or a candidate runs.

A CPU takes up to a hundred times as long for an operation on a denormal number. Trained recurrent and mobile models meet
them, and nothing depends on them. On x86-64 two bits of the control register MXCSR make them zero, as results (FTZ) and
as operands (DAZ), in the thread that sets them: so every thread of TVM's pool is told. A deployed library holds the
functions that do it, and needs only TVM's runtime.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3.3 and 10.2.3.4.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import tvm
from tvm import relax

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["VARIABLE", "flush_here", "flushed", "wanted"]

VARIABLE = "TT_DENORMALS"
"""Environment variable; "keep" leaves denormals as they are."""

_BITS = 0x8040
_MOST_THREADS = 1024

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
        for i in T.parallel({_MOST_THREADS}):
            with T.sblock("thread"):
                vi = T.axis.opaque({_MOST_THREADS}, i)
                T.reads()
                T.writes()
                mode = T.sblock_alloc_buffer((1,), "int32", scope="local")
                T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.stmxcsr", T.address_of(mode[0])))
                mode[0] = T.bitwise_or(mode[0], {_BITS})
                T.evaluate(T.call_llvm_intrin("void", "llvm.x86.sse.ldmxcsr", T.address_of(mode[0])))
"""
"""The caller's mode is kept; then each thread of the pool gets some of the iterations, the caller the first of them."""

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
    """Whether programs of a target flush denormals: on x86-64, unless `VARIABLE` says "keep"."""
    if os.environ.get(VARIABLE) == "keep" or str(target.kind.name) != "llvm":
        return False
    triple = str(target.attrs.get("mtriple", "")) or tvm.target.codegen.llvm_get_system_triple()
    return triple.split("-")[0] in ("x86_64", "amd64")


def flush_here(target: Target) -> None:
    """Denormals are zero from now on in this thread of this process and in the threads of its pool."""
    if wanted(target):
        func = tvm.script.from_source(_FLUSH).with_attr("global_symbol", "main")
        library = tvm.tirx.build(tvm.IRModule({"main": func}), target=target)
        library["main"](tvm.runtime.empty((1,), "int32"))


def flushed(mod: tvm.IRModule) -> tvm.IRModule:
    """A model whose "main" flushes denormals on all threads of the pool, and restores its caller's mode on return.

    The pool's other threads are TVM's own and stay as they are set.
    """
    main = mod["main"]
    inner = relax.utils.copy_with_new_vars(main.without_attr("global_symbol"))
    others = {v: f for v, f in mod.functions_items() if v.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others, attrs=mod.attrs))
    model = builder.add_func(inner, "model")
    flush = builder.add_func(tvm.script.from_source(_FLUSH).without_attr("global_symbol"), "flush_denormals")
    restore = builder.add_func(tvm.script.from_source(_RESTORE).without_attr("global_symbol"), "restore_denormals")
    params = [relax.Var(p.name, p.ty) for p in main.params]
    mode = relax.TensorType((1,), "int32")
    attrs = {k: v for k, v in (main.attrs or {}).items() if k != "global_symbol"}
    with builder.function("main", params, attrs=attrs):
        before = builder.emit(relax.call_tir(flush, [], out_ty=mode))
        result = builder.emit(relax.Call(model, params))
        builder.emit(relax.call_tir(restore, [before], out_ty=mode))
        builder.emit_func_output(result)
    return builder.get()
