"""Constants folded by numpy: TVM's own `FoldConstant` compiles a function for every one of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax

from tt_core.compiler.values import constant

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


def _taken(a: np.ndarray, indices: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """None where an index lies outside, which TVM's modes treat differently."""
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    inside = a.ndim and indices.size and indices.min() >= 0 and indices.max() < a.shape[axis]
    return np.take(a, indices, axis) if inside else None


def _widened(a: np.ndarray, call: relax.Call) -> np.ndarray | None:
    """Integers only, and only to a type that holds them all."""
    wanted = np.dtype(str(call.ty.dtype))
    return a.astype(wanted) if wanted.kind in "iu" and a.dtype.kind in "iu" and np.can_cast(a.dtype, wanted) else None


_OPERATORS: dict[str, Callable[..., np.ndarray | None]] = {
    "relax.add": lambda call, a, b: a + b,
    "relax.subtract": lambda call, a, b: a - b,
    "relax.multiply": lambda call, a, b: a * b,
    "relax.divide": lambda call, a, b: a / b if a.dtype.kind == "f" else None,
    "relax.less": lambda call, a, b: a < b,
    "relax.take": lambda call, a, i: _taken(a, i, call),
    "relax.astype": lambda call, a: _widened(a, call),
    "relax.sqrt": lambda call, a: np.sqrt(a),
    "relax.isnan": lambda call, a: np.isnan(a),
    "relax.where": lambda call, c, a, b: np.where(c, a, b),
    "relax.permute_dims": lambda call, a: _permuted(a, call),
    "relax.reshape": lambda call, a, *_: _shaped(a, call),
    "relax.expand_dims": lambda call, a: _shaped(a, call),
    "relax.squeeze": lambda call, a: _shaped(a, call),
}
"""Value of a call on constant arguments, None where it is left to TVM. Only floats are divided, so that no rounding
rule of integers matters; indices that come from shapes are integers."""


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(getattr(call, "op", None), "name", None)
        if name == "relax.shape_to_tensor":
            return self._shape(call)
        if name not in _OPERATORS:
            return call
        values = [constant(a, self.lookup_binding) for a in call.args if not isinstance(a, relax.ShapeExpr)]
        if any(v is None or v.dtype.kind not in "fbiu" for v in values):
            return call
        with np.errstate(all="ignore"):
            value = _OPERATORS[name](call, *values)
        if value is None:
            return call
        dtype = str(call.ty.dtype)  # without it relax.const makes int64 int32
        return relax.const(np.array(value, order="C").astype(dtype), dtype)  # ascontiguousarray makes scalars vectors

    def _shape(self, call: relax.Call) -> relax.Expr:
        """A known shape as a tensor."""
        dims = getattr(call.args[0].ty, "values", None)
        if dims is None or not all(isinstance(d, tvm.tirx.IntImm) for d in dims):
            return call
        return relax.const(np.array([int(d) for d in dims], np.int64), "int64")
