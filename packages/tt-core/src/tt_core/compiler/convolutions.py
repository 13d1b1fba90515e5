"""Convolutions of all kinds as two-dimensional ones, for which there are layouts and templates.

One of a sequence is one of an image that is one pixel high. A transposed one is one with more filters, whose results
are shuffled (`tt_core.compiler.subpixel`). Arithmetic with a constant per channel, activations and sums of two results
stay with the convolution, where they are fused into it; the results are put in their places after them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tt_core.compiler.elementwise import OF_SEVERAL, UNARY
from tt_core.compiler.subpixel import Axis, subpixel_weights
from tt_core.compiler.values import constant, dimensions, operator

__all__ = ["as_conv2d"]

_ONE = Axis(1, 1, 1, 0, 1)
"""The height of a sequence."""


@tvm.transform.module_pass(opt_level=0, name="AsConv2d")
def as_conv2d(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite convolutions of sequences, and transposed ones without groups and dilation whose weights are constant."""
    rewriter = _Rewriter(mod)
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@dataclass(frozen=True)
class _Places:
    """Where a convolution's results `(batch, phases * channels, steps of y, steps of x)` belong.

    Args:
        sequence: They are of a sequence, and have no height.
    """

    batch: int
    channels: int
    y: Axis
    x: Axis
    sequence: bool

    @property
    def phases(self) -> int:
        return self.y.stride * self.x.stride


@dataclass(frozen=True)
class _Result:
    value: relax.Expr
    places: _Places


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._known: dict[relax.Var, _Result] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call):
            return call
        name, found = operator(call), None
        if name == "relax.nn.conv1d":
            found = self._of_a_sequence(call)
        elif name in ("relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose"):
            found = self._transposed(call)
        elif name in UNARY:
            found = self._activated(call)
        elif name in OF_SEVERAL:
            found = self._of_several(call)
        return call if found is None else self._placed(found)

    # -- convolutions ----------------------------------------------------------------------------------------------

    def _of_a_sequence(self, call: relax.Call) -> _Result | None:
        a, out, shape = call.attrs, dimensions(call), dimensions(call.args[1])
        plain = (a.data_layout, a.kernel_layout, a.out_layout) == ("NCW", "OIW", "NCW")
        if out is None or shape is None or dimensions(call.args[0]) is None or not plain:
            return None
        weight, tall = constant(call.args[1], self.lookup_binding), (*shape[:2], 1, shape[2])
        if weight is None:
            made = self.builder_.emit(relax.op.reshape(call.args[1], tall))
        else:
            made = relax.const(weight.reshape(tall), str(weight.dtype))
        before, after = (int(p) for p in a.padding)
        conv = relax.op.nn.conv2d(
            self._image(call.args[0]),
            made,
            strides=(1, int(a.strides[0])),
            padding=(0, before, 0, after),
            dilation=(1, int(a.dilation[0])),
            groups=int(a.groups),
            out_dtype=None if a.out_dtype is None else str(a.out_dtype),
        )
        along = Axis(out[2], 1, 1, 0, out[2])
        return _Result(self.builder_.emit(conv), _Places(out[0], out[1], _ONE, along, True))

    def _transposed(self, call: relax.Call) -> _Result | None:
        a, shape, out = call.attrs, dimensions(call.args[0]), dimensions(call)
        weight = constant(call.args[1], self.lookup_binding)
        plain = (a.data_layout, a.kernel_layout) in (("NCHW", "IOHW"), ("NCW", "IOW")) and a.out_layout == a.data_layout
        alone = int(a.groups) == 1 and all(int(d) == 1 for d in a.dilation)
        if shape is None or out is None or weight is None or weight.dtype != np.float32 or not (plain and alone):
            return None
        given = zip(shape[2:], weight.shape[2:], a.strides, a.padding, out[2:], strict=False)
        axes = [Axis(size, kernel, int(stride), int(pad), end) for size, kernel, stride, pad, end in given]
        y, x = axes if len(axes) == 2 else (_ONE, *axes)
        pads = (y.padding[0], x.padding[0], y.padding[1], x.padding[1])
        if min(pads) < 0:  # some inputs have no effect
            return None
        tall = weight.reshape(*weight.shape[:2], y.kernel, x.kernel)
        made = relax.const(subpixel_weights(tall, y, x), "float32")
        conv = self.builder_.emit(relax.op.nn.conv2d(self._image(call.args[0]), made, padding=pads))
        return _Result(conv, _Places(out[0], out[1], y, x, len(axes) == 1))

    def _image(self, data: relax.Expr) -> relax.Expr:
        """A sequence as an image, or the image that it came from; an image as it is."""
        shape = dimensions(data) or []
        if len(shape) != 3:
            return data
        before = self._behind(data)
        if before is not None and before.places.phases == 1:
            return before.value
        return self.builder_.emit(relax.op.reshape(data, (*shape[:2], 1, shape[2])))

    # -- what follows ----------------------------------------------------------------------------------------------

    def _activated(self, call: relax.Call) -> _Result | None:
        before = self._behind(call.args[0])
        if before is None:
            return None
        made = relax.Call(call.op, [before.value, *call.args[1:]], call.attrs)
        return replace(before, value=self.builder_.emit(made))

    def _of_several(self, call: relax.Call) -> _Result | None:
        """Arithmetic of results that belong in the same places, and of constants that are one value per channel."""
        results = [self._behind(a) for a in call.args]
        first = next((r for r in results if r is not None), None)
        if first is None or any(r is not None and r.places != first.places for r in results):
            return None
        operands = [
            self._of_channels(a, first.places) if r is None else r.value
            for a, r in zip(call.args, results, strict=True)
        ]
        if any(o is None for o in operands):
            return None
        return replace(first, value=self.builder_.emit(relax.Call(call.op, operands, call.attrs)))

    def _of_channels(self, operand: relax.Expr, places: _Places) -> relax.Expr | None:
        """A constant that is broadcast along all but the channels, for a result of all phases."""
        value, spatial = constant(operand, self.lookup_binding), 1 if places.sequence else 2
        if value is None or value.ndim > spatial + 2:
            return None
        if value.size > 1:
            if (1, *value.shape)[-spatial - 2 :] != (1, places.channels, *[1] * spatial):
                return None
            value = np.tile(value.reshape(-1), places.phases).reshape(1, -1, 1, 1)
        return relax.const(value, str(value.dtype))

    def _behind(self, expr: Any) -> _Result | None:
        while isinstance(expr, relax.Var) and expr not in self._known:
            expr = self.lookup_binding(expr)
        return self._known.get(expr) if isinstance(expr, relax.Var) else None

    def _placed(self, result: _Result) -> relax.Expr:
        """The results in their places: each step's phases beside each other."""
        emit, value, places = self.builder_.emit, result.value, result.places
        n, c, (y, x) = places.batch, places.channels, (places.y, places.x)
        if places.phases > 1:
            apart = emit(relax.op.reshape(value, (n, y.stride, x.stride, c, y.steps, x.steps)))
            beside = emit(relax.op.permute_dims(apart, [0, 3, 4, 1, 5, 2]))
            value = emit(relax.op.reshape(beside, (n, c, y.steps * y.stride, x.steps * x.stride)))
        if (y.out, x.out) != (y.steps * y.stride, x.steps * x.stride):
            value = emit(relax.op.strided_slice(value, [2, 3], [0, 0], [y.out, x.out]))
        if places.sequence:
            value = emit(relax.op.reshape(value, (n, c, x.out)))
        var = value if isinstance(value, relax.Var) else emit(value)
        self._known[var] = result
        return var
