"""One PrimFunc: alone in a module, which of its parameters are outputs, and below what its integers must stay."""

from __future__ import annotations

import tvm
import tvm_ffi

__all__ = ["as_module", "floats", "outputs", "parameter_bound", "rounds", "same"]


def as_module(func: tvm.tirx.PrimFunc) -> tvm.IRModule:
    """The function alone in a module, named "main", in the form that schedules and builds expect."""
    func = func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    return tvm.IRModule({"main": func})


def same(a: tvm.IRModule, b: tvm.IRModule) -> bool:
    """Whether two modules' "main" are one workload, whatever things in them are called."""
    return bool(tvm_ffi.structural_equal(a["main"], b["main"], map_free_vars=True))


def outputs(func: tvm.tirx.PrimFunc) -> int:
    """The number of a PrimFunc's last parameters that are its outputs.

    0 if it stores to none or to others too, as one does that hands its buffers to a library: nothing to tune.
    """
    found = _written(func)
    return len(found) if found == list(range(len(func.params) - len(found), len(func.params))) else 0


def parameter_bound(func: tvm.tirx.PrimFunc) -> int | None:
    """Below what all integers given to a PrimFunc must stay: the smallest extent that anything loaded indexes; None if
    nothing does."""
    found: list[int] = []

    def visit(load: tvm.ir.TensorLoad) -> None:
        for index, extent in zip(load.indices, load.source.shape, strict=True):
            if _loads(index):
                found.append(int(extent))

    tvm_ffi.structural_walk(func.body, (tvm.ir.TensorLoad, visit))
    return min(found, default=None)


def rounds(func: tvm.tirx.PrimFunc) -> bool:
    """Whether a PrimFunc turns floats into 8-bit integers."""
    found: list[bool] = []

    def visit(cast: tvm.tirx.Cast) -> None:
        found.append(str(cast.ty.dtype) in ("int8", "uint8") and str(cast.value.ty.dtype).startswith("float"))

    tvm_ffi.structural_walk(func.body, (tvm.tirx.Cast, visit))
    return any(found)


def floats(func: tvm.tirx.PrimFunc) -> set[str]:
    """The floating-point types that a PrimFunc loads or stores."""
    found: set[str] = set()
    tvm_ffi.structural_walk(
        func.body,
        [
            (tvm.ir.TensorLoad, lambda load: found.add(str(load.source.dtype))),
            (tvm.tirx.BufferStore, lambda store: found.add(str(store.buffer.dtype))),
        ],
    )
    return {d for d in found if d.startswith(("float", "bfloat"))}


def _written(func: tvm.tirx.PrimFunc) -> list[int]:
    """Positions of the parameters that a PrimFunc stores to, ascending."""
    found: set[int] = set()

    def visit(store: tvm.tirx.BufferStore) -> None:
        found.update(i for i, p in enumerate(func.params) if p.same_as(store.buffer))

    tvm_ffi.structural_walk(func.body, (tvm.tirx.BufferStore, visit))
    return sorted(found)


def _loads(index: tvm.tirx.PrimExpr) -> bool:
    found: list[tvm.ir.TensorLoad] = []
    tvm_ffi.structural_walk(index, (tvm.ir.TensorLoad, found.append))
    return bool(found)
