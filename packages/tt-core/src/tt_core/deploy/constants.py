"""Constants of a deployed model in the form that its tuned programs take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tvm
from tvm import relax

if TYPE_CHECKING:
    from tt_core.compiler.backend import Repacked

__all__ = ["PACKED", "repack_constants"]

PACKED = "_packed"
"""What a function's name ends with that takes a constant in another form."""


def repack_constants(mod: tvm.IRModule, repacked: Mapping[str, tuple[tvm.tirx.PrimFunc, Repacked]]) -> tvm.IRModule:
    """Replace some functions, and remake a constant argument of the calls to each.

    Args:
        repacked: The function and its `tt_space.Repacked`, by name of the function that it replaces.
    """
    if not repacked:
        return mod
    rewriter = _Constants(mod, repacked)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@relax.expr_functor.mutator
class _Constants(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, repacked: Mapping[str, tuple[tvm.tirx.PrimFunc, Repacked]]) -> None:
        super().__init__(mod)
        # a function whose parameters changed needs a variable of its own: the old one keeps the old type
        self._calls = {
            name: (self.builder_.add_func(func, name + PACKED), how) for name, (func, how) in repacked.items()
        }

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call) or call.op != tvm.ir.Op.get("relax.call_tir"):
            return call
        if call.args[0].name_hint not in self._calls:
            return call
        function, how = self._calls[call.args[0].name_hint]
        arguments = list(call.args[1])
        arguments[how.position] = relax.const(how.make(arguments[how.position].value.numpy()))
        return relax.call_tir(function, arguments, call.ty)
