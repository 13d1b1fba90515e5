"""A deployed model's calling thread, off the processors of TVM's pool.

TVM binds the threads of its pool to processors, all but the calling thread, which Linux may leave on one of those for
seconds: each then waits for the other in every operator while a processor idles, and the model takes up to twice as
long. So a model's entrance moves the thread away where it finds it there, and gives back what it may use on return.

Source: sched_getcpu(3), sched_setaffinity(2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tt_core.compiler.target import threads_of

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["go", "stay", "wanted"]

BYTES = 128
"""Of a mask of processors: 1,024 of them, as glibc has it."""

LOOK = 256
"""Calls from one look at the pool's processors to the next."""

_FRESH = -7077  # constants of one value are one constant, and no model's has this one


def wanted(target: Target) -> bool:
    """Whether programs of a target run on several threads under Linux."""
    if str(target.kind.name) != "llvm" or threads_of(target) < 2:
        return False
    return "linux" in (str(target.attrs.get("mtriple", "")) or tvm.target.codegen.llvm_get_system_triple())


def go(builder: relax.BlockBuilder, target: Target) -> relax.Expr:
    """Emit what moves the calling thread if need be; returns the mask that it had, and whether it was moved."""
    threads = threads_of(target)
    function = builder.add_func(tvm.script.from_source(_go(threads)).without_attr("global_symbol"), "go_aside")
    pool = relax.const([0] + [_FRESH] * threads, "int32")  # the function writes to it
    return builder.emit(relax.call_tir(function, [pool], out_ty=relax.TensorType((BYTES + 1,), "uint8")))


def stay(builder: relax.BlockBuilder, before: relax.Expr) -> None:
    """Emit what lets the thread use again what it might before; it stays where it is."""
    function = builder.add_func(tvm.script.from_source(_STAY).without_attr("global_symbol"), "come_back")
    builder.emit(relax.call_tir(function, [before], out_ty=relax.TensorType((1,), "int32")))


def _go(threads: int) -> str:
    """`pool` holds the number of calls, then each thread's processor, the calling thread's first."""
    return f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(pool: T.Buffer(({threads + 1},), "int32"), before: T.Buffer(({BYTES + 1},), "uint8")):
    T.func_attr({{"tirx.noalias": True, "tirx.is_scheduled": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        left = T.sblock_alloc_buffer(({BYTES},), "uint8", scope="local")
        found = T.sblock_alloc_buffer((2,), "int32", scope="local")
        if pool[0] == 0:
            for i in T.parallel({threads}):
                with T.sblock("thread"):
                    vi = T.axis.opaque({threads}, i)
                    T.reads()
                    T.writes(pool[vi + 1])
                    pool[vi + 1] = T.call_extern("int32", "sched_getcpu")
        pool[0] = (pool[0] + 1) % {LOOK}
        before[{BYTES}] = T.uint8(0)
        found[0] = 0
        found[1] = T.call_extern("int32", "sched_getcpu")
        for i in range({threads - 1}):
            if pool[i + 2] == found[1]:
                found[0] = 1
        if found[0] == 1:
            if T.call_extern("int32", "sched_getaffinity", 0, T.int64({BYTES}), T.address_of(before[0])) == 0:
                for i in range({BYTES}):
                    left[i] = before[i]
                for i in range({threads - 1}):
                    if pool[i + 2] >= 0 and pool[i + 2] < {8 * BYTES}:
                        left[pool[i + 2] // 8] = T.bitwise_and(
                            left[pool[i + 2] // 8],
                            T.bitwise_not(T.shift_left(T.uint8(1), T.Cast("uint8", pool[i + 2] % 8))))
                found[0] = 0
                for i in range({BYTES}):
                    found[0] = T.bitwise_or(found[0], T.Cast("int32", left[i]))
                if found[0] != 0:
                    if T.call_extern("int32", "sched_setaffinity", 0, T.int64({BYTES}), T.address_of(left[0])) == 0:
                        before[{BYTES}] = T.uint8(1)
"""


_STAY = f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(before: T.Buffer(({BYTES + 1},), "uint8"), after: T.Buffer((1,), "int32")):
    T.func_attr({{"tirx.noalias": True, "tirx.is_scheduled": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        if before[{BYTES}] == T.uint8(1):
            T.evaluate(T.call_extern("int32", "sched_setaffinity", 0, T.int64({BYTES}), T.address_of(before[0])))
        after[0] = 1
"""
