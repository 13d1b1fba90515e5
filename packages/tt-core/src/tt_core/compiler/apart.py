"""Parts of a module that a pass is to leave alone: their constants are hidden behind opaque calls meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import tvm
from tvm import relax

from tt_core.compiler.steps import PassesFor, count_calls

__all__ = ["batch_norm", "calls_apart", "counted", "foldable", "functions", "functions_apart"]

_OPAQUE = 8
"""TVM's pattern of functions that nothing is fused with."""
_HIDDEN = "tt.hidden"

Rule = Callable[[relax.Call], bool]


def batch_norm(call: relax.Call) -> bool:
    """Whether a call is a batch norm."""
    return call.op == tvm.ir.Op.get("relax.nn.batch_norm")


def foldable(call: relax.Call) -> bool:
    """Whether a call has constants only; those that depend on it alone are folded with it."""
    if _hides(call):
        return False
    operands = [o for a in call.args for o in (a.fields if isinstance(a, relax.Tuple) else [a])]
    constants = [isinstance(o, tvm.ir.GenericConst) for o in operands]
    return any(constants) and not any(isinstance(o, relax.Var | relax.Call) for o in operands)


def counted(rule: Rule) -> Callable[[tvm.IRModule], int]:
    """How many calls of a module a rule accepts."""
    return lambda mod: count_calls(mod, rule)


def calls_apart(rule: Rule, *passes: tvm.transform.Pass) -> PassesFor:
    """Passes that do not see the constants of some of the calls that a rule accepts."""

    def of(left: frozenset[int]) -> Sequence[tvm.transform.Pass]:
        if not left:
            return passes

        def hide(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            return _rewritten(_Hider(mod, rule, left))

        def show(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            return relax.transform.CanonicalizeBindings()(_rewritten(_Shower(mod)))

        made = tvm.transform.module_pass
        return [made(hide, opt_level=0, name="Hide"), *passes, made(show, opt_level=0, name="Show")]

    return of


def functions(mod: tvm.IRModule) -> int:
    """Number of functions that a pass may be kept from."""
    return len(_names(mod))


def functions_apart(*passes: tvm.transform.Pass) -> PassesFor:
    """Passes to which some functions are opaque."""

    def of(left: frozenset[int]) -> Sequence[tvm.transform.Pass]:
        def opaque(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            changed = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
            for name in (name for i, name in enumerate(_names(mod)) if i in left):
                changed[name] = mod[name].with_attr("op_pattern", _OPAQUE)
            return changed

        first = [tvm.transform.module_pass(opaque, opt_level=0, name="FunctionsApart")] if left else []
        return [*first, *passes]

    return of


def _names(mod: tvm.IRModule) -> list[str]:
    return sorted(v.name_hint for v, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc))


def _rewritten(mutator: _Hider | _Shower) -> tvm.IRModule:
    for var, func in mutator.mod.functions.items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(var, mutator.visit_expr(func))
    return mutator.builder_.get()


def _hides(call: relax.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], relax.ExternFunc) and call.args[0].global_symbol == _HIDDEN


@relax.expr_functor.mutator
class _Hider(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, rule: Rule, left: frozenset[int]) -> None:
        super().__init__(mod)
        self.mod, self._rule, self._left, self._count = mod, rule, left, itertools.count()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        chosen = self._rule(call) and next(self._count) in self._left
        call = self.visit_expr_post_order(call)
        if not chosen or not isinstance(call, relax.Call):
            return call
        return relax.Call(call.op, [self._hidden(a) for a in call.args], call.attrs, call.ty_args)

    def _hidden(self, operand: relax.Expr) -> relax.Expr:
        if isinstance(operand, relax.Tuple):
            return relax.Tuple([self._hidden(o) for o in operand.fields])
        if not isinstance(operand, tvm.ir.GenericConst):
            return operand
        return self.builder_.emit(relax.call_dps_packed(_HIDDEN, [operand], out_ty=operand.ty))


@relax.expr_functor.mutator
class _Shower(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        return call.args[1].fields[0] if _hides(call) else self.visit_expr_post_order(call)
