"""Reshapes out of the way of fusion.

A matrix product of a batch of rows, as ONNX and its optimizers write it, has a reshape before and behind it, and what
follows it (a bias, an activation, a sum with what came before) cannot be fused into it any more. Elementwise operators
commute with such a reshape, and so do norms of rows: they are applied first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from tt_core.compiler.elementwise import ELEMENTWISE
from tt_core.compiler.permutation import Digits
from tt_core.compiler.values import constant, dimensions, operator

__all__ = ["elementwise_first", "without_reshape"]

_PRODUCTS = frozenset(
    f"relax.{n}" for n in ("matmul", *(f"nn.conv{d}d{t}" for d in (1, 2, 3) for t in ("", "_transpose")))
)
"""Operators into which TVM fuses the elementwise ones behind them."""

_OF_ROWS = frozenset(f"relax.nn.{n}" for n in ("layer_norm", "log_softmax", "rms_norm", "softmax"))
_RESHAPES = frozenset(f"relax.{n}" for n in ("expand_dims", "flatten", "reshape", "squeeze"))


@tvm.transform.module_pass(opt_level=0, name="ElementwiseFirst")
def elementwise_first(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Apply elementwise operators behind the reshape of a product before it, and make one reshape of several."""
    rewriter = _First(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


def without_reshape(source: Sequence[int], result: Sequence[int], operand: Sequence[int]) -> list[int] | None:
    """The shape in which an operand that is broadcast to a reshape's result is broadcast to its source alike.

    None where there is none: some dimensions of the result are one of the source's, and the operand has not all of
    them, or not none; or there are no elements.
    """
    if 0 in source:
        return None
    operand = [1] * (len(result) - len(operand)) + list(operand)
    found: list[int] = []
    i = j = 0
    while i < len(source) or j < len(result):
        first, start = i, j
        if i < len(source):
            i += 1
        if j < len(result):
            j += 1
        while (mine := math.prod(source[first:i])) != (theirs := math.prod(result[start:j])):
            if mine < theirs:
                i += 1
            else:
                j += 1
        if operand[start:j] == list(result[start:j]):
            found += source[first:i]
        elif math.prod(operand[start:j]) == 1:
            found += [1] * (i - first)
        else:
            return None
    return found


@relax.expr_functor.mutator
class _First(relax.PyExprMutator):
    """Works by what a variable is bound to in the module as rewritten so far."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._fused: dict[relax.Expr, bool] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call):
            return call
        if _keeps_order(call):
            return self._joined(call)
        if operator(call) in _OF_ROWS:
            return self._of_rows(call)
        return self._first(call) if operator(call) in ELEMENTWISE else call

    def _joined(self, call: relax.Call) -> relax.Expr:
        """One reshape of what a chain of them started from; nothing where the shape is that one's."""
        source, shape = self._source(call.args[0]), dimensions(call)
        source = call.args[0] if source is None else source
        return source if dimensions(source) == shape else relax.op.reshape(source, shape)

    def _first(self, call: relax.Call) -> relax.Expr:
        """An elementwise operator on what one of its operands was reshaped from, then the reshape."""
        whole = dimensions(call)
        for operand in call.args:
            source = self._source(operand)
            if source is None or whole is None or dimensions(operand) != whole or not self._takes_in(source):
                continue
            shape = dimensions(source) or []
            operands = [self._without(a, shape, whole) for a in call.args]
            if all(o is not None for o in operands):
                made = self.builder_.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
                return relax.op.reshape(made, whole)
        return call

    def _of_rows(self, call: relax.Call) -> relax.Expr:
        """A norm or softmax of rows, however they are stacked: of what they were reshaped from, then the reshape."""
        source, whole = self._source(call.args[0]), dimensions(call)
        shape = None if source is None else dimensions(source)
        if source is None or not shape or not whole or not self._takes_in(source):
            return call
        if shape[-1] != whole[-1] or not _last(call, len(whole)):
            return call
        attrs, (_, *weights) = call.attrs, call.args
        name = operator(call)
        op = getattr(relax.op.nn, name.removeprefix("relax.nn."))
        if name.endswith("softmax"):
            made = op(source, axis=-1)
        elif name == "relax.nn.rms_norm":
            made = op(source, *weights, axes=[-1], epsilon=attrs.epsilon)
        else:
            made = op(source, *weights, axes=[-1], epsilon=attrs.epsilon, center=attrs.center, scale=attrs.scale)
        return relax.op.reshape(self.builder_.emit(made), whole)

    def _without(self, operand: relax.Expr, source: list[int], result: list[int]) -> relax.Expr | None:
        """An operand of the result's shape, or broadcast to it, as it is of the source's; None where it cannot be."""
        if not isinstance(operand.ty, relax.TensorType):
            return operand
        before, own = self._source(operand), dimensions(operand)
        if own == []:
            return operand
        if before is not None and own == result and dimensions(before) == source:
            return before
        shape = None if own is None else without_reshape(source, result, own)
        if shape is None or shape == own:
            return None if shape is None else operand
        value = constant(operand, self.lookup_binding)
        if value is not None:
            return relax.const(value.reshape(shape), str(value.dtype))
        return self.builder_.emit(relax.op.reshape(before if before is not None else operand, shape))

    def _source(self, expr: relax.Expr) -> relax.Expr | None:
        """What a reshape takes, if an expression is one."""
        call = self._behind(expr)
        return call.args[0] if call is not None and operator(call) == "relax.reshape" else None

    def _takes_in(self, expr: relax.Expr) -> bool:
        """Whether a value is that of a product, or of elementwise operators that are fused into one."""
        if (call := self._behind(expr)) is None or operator(call) in _PRODUCTS:
            return call is not None
        if expr not in self._fused:
            alike = [a for a in call.args if isinstance(a, relax.Var) and dimensions(a) == dimensions(call)]
            self._fused[expr] = operator(call) in ELEMENTWISE and any(self._takes_in(a) for a in alike)
        return self._fused[expr]

    def _behind(self, expr: relax.Expr) -> relax.Call | None:
        """The call whose result a variable is."""
        value: Any = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        return value if isinstance(value, relax.Call) else None


def _last(call: relax.Call, rank: int) -> bool:
    """Whether a norm or softmax is one of the last dimension alone."""
    axes = [call.attrs.axis] if operator(call).endswith("softmax") else call.attrs.axes
    return [int(a) % rank for a in axes] == [rank - 1]


def _keeps_order(call: relax.Call) -> bool:
    """Whether a call changes the shape of its first operand alone, not the order of its elements."""
    if operator(call) not in _RESHAPES and operator(call) != "relax.permute_dims":
        return False
    shape, source = dimensions(call), dimensions(call.args[0])
    if shape is None or source is None:
        return False
    if operator(call) in _RESHAPES:
        return True
    digits = Digits.of(source)
    digits.permute([int(a) for a in call.attrs.axes] if call.attrs.axes else range(len(source))[::-1])
    return digits.plain
