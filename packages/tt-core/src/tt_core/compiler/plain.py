"""What importers write in a roundabout way, as plain operators, which have layouts and are fused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from tt_core.compiler.values import constant, dimensions, operator

__all__ = ["plain_operators"]

_PAIRWISE: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}
"""Reductions over stacked tensors, and what does the same for two of them."""

_EITHER_WAY = frozenset(f"relax.{n}" for n in ("add", "multiply", "maximum", "minimum"))
_ELEMENTWISE = _EITHER_WAY | {f"relax.{n}" for n in ("subtract", "divide", "power")}
IMAGE = 4
"""Dimensions of an image with batch and channels."""


@tvm.transform.module_pass(opt_level=0, name="PlainOperators")
def plain_operators(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Write forms of importers as elementwise operators at which no layout of convolutions stops and all is fused.

    TVM's ONNX importer makes opaque functions of a Clip's bounds, and of Sum, Mean, Max and Min a reduction over
    tensors that were broadcast and stacked. Constants that an image is combined with often have fewer dimensions
    than it, or come first. A batch norm that no convolution takes would be four operators, one of them a division.
    Bounds and ReLUs with a slope are maxima and minima: TVM's own operators for them stop layouts, and a PReLU of one
    slope is not fused. So do choices by a condition, for which `_know_layouts` has TVM's rule. Zeros around an image
    that a convolution takes are its padding.
    """
    _know_layouts()
    rewriter = _Plain(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


def _know_layouts() -> None:
    """Let layouts pass through `relax.where`, by the rule that TVM has for another operator of three operands."""
    rule = "FRelaxInferLayout"
    if tvm.ir.Op.get("relax.where").get_attr(rule) is None:
        tvm.ir.register_op_attr("relax.where", rule, tvm.ir.Op.get("relax.ewise_fma").get_attr(rule))


@relax.expr_functor.mutator
class _Plain(relax.PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call):
            return call
        if call.op == tvm.ir.Op.get("relax.call_tir"):
            return self._bound(call)
        name = operator(call)
        if name in _ELEMENTWISE:
            return self._level(name, call)
        if name == "relax.where":
            return self._chosen(call)
        if name == "relax.nn.conv2d":
            return self._padded(call)
        if name in ("relax.clip", "relax.nn.leakyrelu", "relax.nn.prelu"):
            return self._extremes(name, call)
        return self._pairwise(name, call) if name in _PAIRWISE else call

    def visit_tuple_getitem_(self, item: relax.TupleGetItem) -> relax.Expr:
        item = self.visit_expr_post_order(item)
        call = self._behind(item.tuple_value, "relax.nn.batch_norm")
        found = None if call is None or item.index != 0 else self._normed(call)
        return item if found is None else found

    def _normed(self, call: relax.Call) -> relax.Expr | None:
        """A batch norm with constant statistics as a product and a sum; None where it is not one."""
        x, dtype, shape = call.args[0], str(call.args[0].ty.dtype), dimensions(call.args[0])
        values = [constant(a, self.lookup_binding) for a in call.args[1:]]
        attrs = call.attrs
        if shape is None or any(v is None for v in values) or attrs.training or not dtype.startswith("float"):
            return None
        scale, shift, mean, variance = (np.asarray(v, np.float64) for v in values)
        factor = (scale if attrs.scale else 1.0) / np.sqrt(variance + attrs.epsilon)
        addend = (shift if attrs.center else 0.0) - mean * factor
        along = [1] * len(shape)
        along[int(attrs.axis)] = -1
        factor, addend = (relax.const(v.reshape(along).astype(dtype), dtype) for v in (factor, addend))
        return self.builder_.normalize(relax.op.add(self.builder_.normalize(relax.op.multiply(x, factor)), addend))

    def _padded(self, call: relax.Call) -> relax.Expr:
        """A convolution of an image with zeros around it as one that pads."""
        pad, attrs = self._behind(call.args[0], "relax.nn.pad"), call.attrs
        if pad is None or attrs.data_layout != "NCHW" or pad.attrs.pad_mode != "constant" or pad.attrs.pad_value != 0.0:
            return call
        before, after = ([int(n) for n in pad.attrs.pad_width[i::2]] for i in (0, 1))
        if len(before) != IMAGE or any(before[:2] + after[:2]) or min(before + after) < 0:
            return call
        padding = [int(n) + more for n, more in zip(attrs.padding, before[2:] + after[2:], strict=True)]
        names = ("strides", "dilation", "groups", "data_layout", "kernel_layout", "out_layout", "out_dtype")
        options = {name: getattr(attrs, name) for name in names}
        return relax.op.nn.conv2d(pad.args[0], call.args[1], padding=padding, **options)

    def _extremes(self, name: str, call: relax.Call) -> relax.Expr:
        """Bounds, and ReLUs with a slope, as maxima and minima."""
        x, op, emit = call.args[0], relax.op, self.builder_.normalize
        dtype, shape = str(x.ty.dtype), dimensions(x)
        if not dtype.startswith("float") or shape is None:
            return call
        if name == "relax.clip":
            if not all(isinstance(a, tvm.tirx.FloatImm | tvm.tirx.IntImm) for a in call.args[1:]):
                return call
            low, high = (float(a.value) for a in call.args[1:])
            x = emit(op.maximum(x, relax.const(low, dtype))) if low > -np.inf else x
            return emit(op.minimum(x, relax.const(high, dtype))) if high < np.inf else x
        if name == "relax.nn.leakyrelu":
            alpha = float(call.attrs.alpha)
            return (op.minimum if alpha > 1.0 else op.maximum)(x, emit(op.multiply(x, relax.const(alpha, dtype))))
        slopes = constant(call.args[1], self.lookup_binding)
        if slopes is None:
            return call
        along = [1] * len(shape)
        along[int(call.attrs.axis)] = -1
        zero, slope = relax.const(0.0, dtype), slopes.reshape(along if slopes.size > 1 else ())
        below = emit(op.multiply(emit(op.minimum(x, zero)), relax.const(slope, dtype)))
        return op.add(emit(op.maximum(x, zero)), below)

    def _chosen(self, call: relax.Call) -> relax.Expr:
        """A choice whose operands have as many dimensions, which the rule of its layout takes for granted."""
        shapes, whole = [dimensions(a) for a in call.args], dimensions(call)
        if whole is None or any(s is None for s in shapes):
            return call
        args = []
        for a, shape in zip(call.args, shapes, strict=True):
            value, lacks = constant(a, self.lookup_binding), len(whole) - len(shape or ())
            if value is not None:
                args.append(relax.const(value.reshape((1,) * lacks + value.shape), str(value.dtype)))
            else:
                args.append(self.builder_.normalize(relax.op.expand_dims(a, list(range(lacks)))) if lacks else a)
        return relax.Call(call.op, args, call.attrs)

    def _level(self, name: str, call: relax.Call) -> relax.Expr:
        """Constants beside an image with as many dimensions as it has and, where the order does not matter, behind it:
        a layout follows the operand with fewer dimensions and, of two with as many, the first."""
        if self._fits(narrow := [self._narrow(a) for a in call.args], call):
            call = relax.Call(call.op, narrow, call.attrs)
        ranks = [len(dimensions(a) or ()) for a in call.args]
        if IMAGE not in ranks or 0 in ranks:
            return call
        values = [constant(a, self.lookup_binding) for a in call.args]
        args = [
            a
            if v is None or v.ndim >= IMAGE
            else relax.const(v.reshape((1,) * (IMAGE - v.ndim) + v.shape), str(v.dtype))
            for a, v in zip(call.args, values, strict=True)
        ]
        if values[0] is not None and values[1] is None and name in _EITHER_WAY:
            args.reverse()
        return relax.Call(call.op, args, call.attrs)

    def _bound(self, call: relax.Call) -> relax.Expr:
        name = re.sub(r"\d+$", "", call.args[0].name_hint)
        operands = list(call.args[1])
        if name not in ("maximum", "minimum") or len(operands) != 2:
            return call
        return getattr(relax.op, name)(*operands)

    def _pairwise(self, name: str, call: relax.Call) -> relax.Expr:
        stacked = self._behind(call.args[0], "relax.stack")
        axes = [int(a) for a in call.attrs.axis or ()]
        if stacked is None or axes != [0] or call.attrs.keepdims or int(stacked.attrs.axis or 0) != 0:
            return call
        operands = [self._narrow(o) for o in self._value(stacked.args[0]).fields]
        found = functools.reduce(lambda a, b: self.builder_.normalize(_PAIRWISE[name](a, b)), operands)
        if name == "relax.mean":
            found = relax.op.divide(found, relax.const(len(operands), str(call.ty.dtype)))
        found = self.builder_.normalize(found)
        return found if tvm_ffi.structural_equal(found.ty, call.ty) else call

    def _fits(self, operands: list[relax.Expr], call: relax.Call) -> bool:
        """Whether operands that are no longer broadcast have as many dimensions, and still give the call's shape."""
        whole = dimensions(call)
        shapes = [s for s in map(dimensions, operands) if s is not None and whole is not None and len(s) == len(whole)]
        return len(shapes) == len(operands) and list(np.broadcast_shapes(*shapes)) == whole

    def _narrow(self, operand: relax.Expr) -> relax.Expr:
        """What was broadcast; an elementwise operator does it itself."""
        call = self._behind(operand, "relax.broadcast_to")
        return operand if call is None else call.args[0]

    def _behind(self, operand: relax.Expr, name: str) -> relax.Call | None:
        """The call of that operator that gave an operand."""
        value = self._value(operand)
        return value if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(name) else None

    def _value(self, operand: relax.Expr) -> relax.Expr:
        while isinstance(operand, relax.Var) and (value := self.lookup_binding(operand)) is not None:
            operand = value
        return operand
