"""The entrance of a deployed model: may this CPU run it, in which mode, and with its weights on which pages.

A library that was compiled for another CPU would end the process with SIGILL. Its entrance is compiled for any CPU of
the architecture; at the first call it looks for the CPU features, by Linux's names for them, and raises an error that
names the one that is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tt_core.compiler import denormals
from tt_core.compiler.target import needed_flags
from tt_core.deploy import huge

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["checker", "with_entrance"]

_CHECK = "tt_check_cpu"
_TEXT_BYTES = 1 << 14  # the first processor's flags stand within 2 kB


def checker(target: Target, flags: Sequence[str] | None = None) -> tvm.runtime.Module | None:
    """A library with the check, compiled for the oldest CPU; None where there is nothing to check.

    Args:
        flags: As `/proc/cpuinfo` has them; None is what the target's code needs.
    """
    flags = needed_flags(target) if flags is None else flags
    if not flags:
        return None
    func = tvm.script.from_source(_source(flags)).with_attr("global_symbol", _CHECK)
    oldest = {"kind": "llvm", "mcpu": "x86-64", "num-cores": int(target.attrs.get("num-cores", 1))}
    if "mtriple" in target.attrs:
        oldest["mtriple"] = str(target.attrs["mtriple"])
    return tvm.tirx.build(tvm.IRModule({_CHECK: func}), target=tvm.target.Target(oldest))


def with_entrance(mod: tvm.IRModule, target: Target, check: bool) -> tvm.IRModule:
    """The model behind an entrance that checks the CPU, asks for huge pages for its weights, makes denormals zero, and
    restores its caller's mode on return.

    Args:
        check: Whether the function of `checker` will be there.
    """
    flush = denormals.wanted(target)
    weights = huge.large(mod) if huge.wanted(target) else []
    if not (check or flush or weights):
        return mod
    main = mod["main"]
    inner = relax.utils.copy_with_new_vars(main.without_attr("global_symbol"))
    others = {v: f for v, f in mod.functions_items() if v.name_hint != "main"}
    builder = relax.BlockBuilder(tvm.IRModule(others, attrs=mod.attrs))
    model = builder.add_func(inner, "model")
    params = [relax.Var(p.name, p.ty) for p in main.params]
    attrs = {k: v for k, v in (main.attrs or {}).items() if k != "global_symbol"}
    with builder.function("main", params, attrs=attrs):
        if check:
            done = relax.const([0], "int32")  # the check writes to it: it is made once
            builder.emit(relax.call_dps_packed(_CHECK, [done], out_ty=denormals.MODE))
        if weights:
            huge.advise(builder, weights)
        before = denormals.flush(builder) if flush else None
        result = builder.emit(relax.Call(model, params))
        if before is not None:
            denormals.restore(builder, before)
        builder.emit_func_output(result)
    return builder.get()


def _source(flags: Sequence[str]) -> str:
    """The check as TVMScript; the flags of a processor stand between spaces, the last one before the line's end."""

    def absent(flag: str) -> str:
        found = (
            f'T.call_extern("handle", "strstr", T.address_of(text[0]), {json.dumps(f" {flag}{e}")})' for e in " \n"
        )
        return " and ".join(f"T.isnullptr({f})" for f in found)

    needs, most = ", ".join(flags), _TEXT_BYTES - 1
    checks = "\n".join(
        f"                assert T.Not({absent(f)}),"
        f' "this CPU does not have {f}; the file was compiled for one that has {needs}: tune it here, or with --target"'
        for f in flags
    )
    return f"""
# from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def main(done: T.Buffer((1,), "int32"), after: T.Buffer((1,), "int32")):
    T.func_attr({{"tirx.noalias": True, "tirx.is_scheduled": True}})
    with T.sblock("root"):
        T.reads()
        T.writes()
        text = T.sblock_alloc_buffer(({_TEXT_BYTES},), "uint8")
        if done[0] == 0:
            file = T.call_extern("handle", "fopen", "/proc/cpuinfo", "r")
            if T.Not(T.isnullptr(file)):
                size = T.call_extern("int64", "fread", T.address_of(text[0]), T.int64(1), T.int64({most}), file)
                text[size] = T.uint8(0)
                T.evaluate(T.call_extern("int32", "fclose", file))
{checks}
            done[0] = 1
        after[0] = 1
"""
