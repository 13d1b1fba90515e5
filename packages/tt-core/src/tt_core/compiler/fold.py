"""Constants folded by numpy: TVM's own `FoldConstant` compiles a function for every one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

__all__ = ["fold_constants"]


@tvm.transform.module_pass(opt_level=0, name="FoldConstantsByNumpy")
def fold_constants(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Replace the frequent operators on constants by their value; the rest is left to `FoldConstant`."""
    folder = _Folder(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            folder.builder_.update_func(var, folder.visit_expr(func))
    return relax.transform.DeadCodeElimination()(folder.builder_.get())


def _shaped(a: np.ndarray, call: relax.Call) -> np.ndarray:
    return a.reshape([int(d) for d in call.ty.shape.values])


def _permuted(a: np.ndarray, call: relax.Call) -> np.ndarray:
    return a.transpose(None if call.attrs.axes is None else [int(i) for i in call.attrs.axes])


_OPERATORS: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": lambda call, a, b: a + b,
    "relax.subtract": lambda call, a, b: a - b,
    "relax.multiply": lambda call, a, b: a * b,
    "relax.divide": lambda call, a, b: a / b,
    "relax.sqrt": lambda call, a: np.sqrt(a),
    "relax.isnan": lambda call, a: np.isnan(a),
    "relax.where": lambda call, c, a, b: np.where(c, a, b),
    "relax.permute_dims": lambda call, a: _permuted(a, call),
    "relax.reshape": lambda call, a, *_: _shaped(a, call),
    "relax.expand_dims": lambda call, a: _shaped(a, call),
    "relax.squeeze": lambda call, a: _shaped(a, call),
}
"""Value of a call on constant arguments. Only floats are divided, so that no rounding rule of integers matters."""


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(getattr(call, "op", None), "name", None)
        if name not in _OPERATORS:
            return call
        values = [self._value(a) for a in call.args if not isinstance(a, relax.ShapeExpr)]
        if any(v is None or v.dtype.kind not in "fb" for v in values):
            return call
        with np.errstate(all="ignore"):
            value = np.array(_OPERATORS[name](call, *values), order="C")  # ascontiguousarray makes scalars vectors
        return relax.const(value.astype(str(call.ty.dtype)))

    def _value(self, expr: relax.Expr) -> np.ndarray | None:
        """Of a constant, or of a variable bound to one."""
        bound = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return bound.value.numpy() if isinstance(bound, tvm.ir.GenericConst) else None
