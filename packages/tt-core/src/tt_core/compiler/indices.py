"""Integers that index something: below what they must stay, so that random ones are valid."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

__all__ = ["input_bounds"]

_SAME_VALUES = ("astype", "broadcast_to", "expand_dims", "flatten", "permute_dims", "reshape", "squeeze")
_LOOKUPS = ("take", "gather_elements")


def input_bounds(main: relax.Function) -> dict[str, int]:
    """For each input of a Relax function that looks up rows of something, how many rows that has.

    Follows an input through casts and changes of shape, and through `where(i < 0, i + rows, i)`, which is how ONNX's
    negative indices are imported.
    """
    origin: dict[relax.Var, str] = {p: str(p.name) for p in main.params}
    bounds: dict[str, int] = {}

    def visit(block: relax.BindingBlock) -> None:
        for binding in block.bindings:
            call: Any = getattr(binding, "value", None)
            if isinstance(call, relax.Var) and call in origin:
                origin[binding.var] = origin[call]
            if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
                continue
            name = call.op.name.removeprefix("relax.")
            if name in _SAME_VALUES and call.args[0] in origin:
                origin[binding.var] = origin[call.args[0]]
            elif name == "where" and call.args[2] in origin:
                origin[binding.var] = origin[call.args[2]]
            elif name in _LOOKUPS and call.args[1] in origin:
                rows = _extent(call)
                if rows is not None:
                    who = origin[call.args[1]]
                    bounds[who] = min(rows, bounds.get(who, rows))

    for block in main.body.blocks:
        visit(block)
    return bounds


def _extent(call: relax.Call) -> int | None:
    axis = call.attrs.axis if call.attrs is not None else None
    dims: Any = getattr(call.args[0].ty.shape, "values", None)
    try:
        sizes = [int(d) for d in dims]
    except TypeError:
        return None
    if axis is None:
        return sizes[0] if len(sizes) == 1 else None
    return sizes[int(axis)]
