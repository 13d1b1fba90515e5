"""Quantise and dequantise as arithmetic: TVM's own operators stop layouts, and nothing is computed around them.

Source: ONNX QuantizeLinear-21 and DequantizeLinear-21: saturate(round(x / scale) + zero), (x - zero) * scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tt_core.compiler.steps import count_calls

__all__ = ["as_arithmetic", "numbers_as_operands", "present"]

_BINARY = {f"relax.{name}" for name in ("add", "divide", "maximum", "minimum", "multiply", "subtract")}
_USUAL = {-128.0, 0.0, 127.0, 255.0}
"""Numbers that every quantised operator has."""


def present(mod: tvm.IRModule) -> bool:
    """Whether a module quantises or dequantises anything."""
    ops = [tvm.ir.Op.get(f"relax.{name}") for name in ("quantize", "dequantize")]
    return count_calls(mod, lambda call: call.op in ops) > 0


@tvm.transform.module_pass(opt_level=0, name="QuantizationAsArithmetic")
def as_arithmetic(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Replace `relax.quantize` and `relax.dequantize` between float32 and integers of 8 bits."""
    rewriter = _Arithmetic(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()


@tvm.transform.module_pass(opt_level=0, name="NumbersAsOperands")
def numbers_as_operands(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Scales, which differ from layer to layer, as constants of one element in place of numbers, which TVM writes into
    a function: so that operators of one shape are one task."""
    rewriter = _Numbers(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return rewriter.builder_.get()


@relax.expr_functor.mutator
class _Numbers(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op) or call.op.name not in _BINARY:
            return call
        numbers = [_number(a) for a in call.args]
        if (numbers[0] is None) == (numbers[1] is None):
            return call
        other = call.args[0 if numbers[0] is None else 1]
        args = [
            a if n is None else relax.const(np.array([n], "float32")) for a, n in zip(call.args, numbers, strict=True)
        ]
        made = relax.Call(call.op, args, call.attrs)
        return made if int(other.ty.ndim) else relax.op.squeeze(self.builder_.emit(made), [0])


def _number(x: Any) -> float | None:
    """The value of a float32 scalar that is not usual, else None."""
    if not isinstance(x, tvm.ir.GenericConst) or str(x.ty.dtype) != "float32" or tuple(x.value.shape):
        return None
    return None if (value := float(x.value.numpy())) in _USUAL else value


@relax.expr_functor.mutator
class _Arithmetic(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            return call
        kind, emit = call.op.name, self.builder_.emit
        if kind not in ("relax.quantize", "relax.dequantize") or str(call.args[1].ty.dtype) != "float32":
            return call
        dtypes = str(call.args[0].ty.dtype), str(call.attrs.out_dtype)
        if dtypes[kind == "relax.dequantize"] != "float32" or dtypes[kind == "relax.quantize"] not in ("int8", "uint8"):
            return call
        x, scale, zero = call.args
        scale, zero = (self._along(v, x, int(call.attrs.axis)) for v in (scale, zero))
        if kind == "relax.dequantize":
            wide = emit(relax.op.astype(x, "int32"))
            zero = emit(relax.op.astype(zero, "int32"))
            centred = emit(relax.op.astype(emit(relax.op.subtract(wide, zero)), "float32"))
            return relax.op.multiply(centred, scale)
        ends = np.iinfo(dtypes[1])
        rounded = emit(relax.op.round(emit(relax.op.divide(x, scale))))
        moved = emit(relax.op.add(rounded, emit(relax.op.astype(zero, "float32"))))
        low, high = (relax.const(float(e), "float32") for e in (ends.min, ends.max))
        return relax.op.astype(emit(relax.op.minimum(emit(relax.op.maximum(moved, low)), high)), dtypes[1])

    def _along(self, value: Any, x: Any, axis: int) -> Any:
        """A vector along an axis of x; one number as a scalar."""
        shape, rank = [int(d) for d in value.ty.shape.values], int(x.ty.ndim)
        if not shape:
            return value
        wanted = [1] * rank
        if shape != [1]:
            wanted[axis % rank] = shape[0]
        else:
            wanted = []
        if isinstance(value, tvm.ir.GenericConst):
            return relax.const(value.value.numpy().reshape(wanted), str(value.ty.dtype))
        return self.builder_.emit(relax.op.reshape(value, wanted))
