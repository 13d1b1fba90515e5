"""Parts of a module that a pass is to leave alone: their constants are hidden behind opaque calls meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import tvm
from tvm import relax

from tt_core.compiler.steps import PassesFor, count_calls

__all__ = ["batch_norm", "calls_apart", "counted", "foldable", "functions", "functions_apart", "kinds", "kinds_apart"]

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
    operands = [o for a in call.args for o in _operands(a)]
    constants = [isinstance(o, tvm.ir.GenericConst) for o in operands]
    return any(constants) and not any(isinstance(o, relax.Var | relax.Call) for o in operands)


def _operands(operand: relax.Expr) -> Sequence[relax.Expr]:
    return list(operand.fields) if isinstance(operand, relax.Tuple) else [operand]


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


def kinds(mod: tvm.IRModule) -> int:
    """Number of kinds of operators, by name and rank, that may be hidden from a conversion of layouts."""
    return len(_kinds(mod))


def kinds_apart(*passes: tvm.transform.Pass) -> PassesFor:
    """Passes that do not see operators of some kinds, which take and give what they did."""

    def of(left: frozenset[int]) -> Sequence[tvm.transform.Pass]:
        hidden: list[relax.Call] = []

        def hide(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            return _rewritten(_KindHider(mod, {k for i, k in enumerate(_kinds(mod)) if i in left}, hidden))

        def show(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
            return _rewritten(_KindShower(mod, hidden))

        made = tvm.transform.module_pass
        return [made(hide, opt_level=0, name="HideKinds"), *passes, made(show, opt_level=0, name="ShowKinds")]

    return of


def _kinds(mod: tvm.IRModule) -> list[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    count_calls(mod, lambda call: bool((kind := _kind(call)) and found.add(kind)))
    return sorted(found)


def _kind(call: relax.Call) -> tuple[str, int] | None:
    """Name and rank of an operator on tensors with one tensor as its result; None for all else and convolutions."""
    if not isinstance(call.op, tvm.ir.Op) or not isinstance(call.ty, relax.TensorType):
        return None
    name = str(call.op.name).removeprefix("relax.")
    return None if name.startswith(("call_", "nn.conv")) else (name, int(call.ty.ndim))


def _names(mod: tvm.IRModule) -> list[str]:
    return sorted(v.name_hint for v, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc))


def _rewritten(mutator: _Hider | _Shower | _KindHider | _KindShower) -> tvm.IRModule:
    for var, func in mutator.mod.functions.items():
        if isinstance(func, relax.Function):
            mutator.builder_.update_func(var, mutator.visit_expr(func))
    return mutator.builder_.get()


def _hides(call: relax.Call) -> bool:
    return _symbol(call) == _HIDDEN


def _symbol(call: relax.Call) -> str:
    """The name of the foreign function that a call calls, else nothing."""
    of = call.args[0] if call.args else None
    return str(getattr(of, "global_symbol", "")) if isinstance(of, relax.ExternFunc) else ""


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


@relax.expr_functor.mutator
class _KindHider(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, chosen: set[tuple[str, int]], hidden: list[relax.Call]) -> None:
        super().__init__(mod)
        self.mod, self._chosen, self._hidden = mod, chosen, hidden

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        chosen, out = _kind(call) in self._chosen, call.ty
        call = self.visit_expr_post_order(call)
        if not chosen or not isinstance(call, relax.Call):
            return call
        self._hidden.append(call)
        tensors = [o for a in call.args for o in _operands(a) if isinstance(o.ty, relax.TensorType)]
        return relax.call_dps_packed(f"{_HIDDEN}.{len(self._hidden) - 1}", tensors, out_ty=out)


@relax.expr_functor.mutator
class _KindShower(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, hidden: list[relax.Call]) -> None:
        super().__init__(mod)
        self.mod, self._hidden = mod, hidden

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        symbol = _symbol(call) if isinstance(call, relax.Call) else ""
        if not symbol.startswith(f"{_HIDDEN}."):
            return call
        was, tensors = self._hidden[int(symbol.rsplit(".", 1)[1])], iter(call.args[1].fields)

        def again(operand: relax.Expr) -> relax.Expr:
            if isinstance(operand, relax.Tuple):
                return relax.Tuple([again(o) for o in operand.fields])
            return next(tensors) if isinstance(operand.ty, relax.TensorType) else operand

        args = [again(a) for a in was.args]
        return relax.Call(was.op, args, was.attrs, was.ty_args)
