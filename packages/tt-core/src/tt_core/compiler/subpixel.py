"""Transposed convolutions as convolutions of the image as it is, whose results are put in their places.

TVM writes zeros between the pixels and convolves those: of a stride s it multiplies s^2 times as often as it must, in a
layout that no template has. The results of one input position are s^2 pixels, so that a convolution with s^2 times the
filters computes them, and a copy shuffles them.

Source: Shi et al. (2016), Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional
Neural Network, CVPR, arXiv:1609.05158.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tt_core.compiler.values import constant, dimensions

__all__ = ["Axis", "subpixel", "subpixel_weights"]

_ACTIVATIONS = ("relax.nn.relu", "relax.sigmoid", "relax.tanh", "relax.nn.silu", "relax.nn.gelu", "relax.exp")
_EITHER = ("relax.add", "relax.multiply")
_BY_CHANNEL = (*_EITHER, "relax.subtract", "relax.divide")


@tvm.transform.module_pass(opt_level=0, name="Subpixel")
def subpixel(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite transposed convolutions without groups and dilation whose weights are constant."""
    rewriter = _Rewriter(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@dataclass(frozen=True)
class Axis:
    """One axis of a transposed convolution: output o sums input i times weight o + `before` - i * `stride`.

    Args:
        size: Inputs.
        kernel: Weights.
        before: Padding in front, which shortens the output.
        out: Outputs.
    """

    size: int
    kernel: int
    stride: int
    before: int
    out: int

    @property
    def first(self) -> int:
        """The input's offset from o // stride that comes first."""
        return -((self.kernel - 1 - self.before) // self.stride)

    @property
    def last(self) -> int:
        return (self.stride - 1 + self.before) // self.stride

    @property
    def taps(self) -> int:
        """Weights of the convolution that takes its place."""
        return self.last - self.first + 1

    @property
    def steps(self) -> int:
        """Its outputs, of `stride` each."""
        return -(-self.out // self.stride)

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros before and after the inputs; negative where inputs have no effect."""
        return -self.first, self.steps + self.last - self.size

    def weight(self, phase: int, tap: int) -> int | None:
        """The weight that output `phase` of a step takes at a tap, if any."""
        at = phase + self.before - self.stride * (self.first + tap)
        return at if 0 <= at < self.kernel else None


def subpixel_weights(weight: np.ndarray, y: Axis, x: Axis) -> np.ndarray:
    """Weights `(phases of y * phases of x * O, I, taps of y, taps of x)` of the convolution, from `(I, O, h, w)`."""
    inputs, outputs = weight.shape[:2]
    made = np.zeros((y.stride, x.stride, outputs, inputs, y.taps, x.taps), weight.dtype)
    for a, b, s, t in np.ndindex(y.stride, x.stride, y.taps, x.taps):
        i, j = y.weight(a, s), x.weight(b, t)
        if i is not None and j is not None:
            made[a, b, :, :, s, t] = weight[:, :, i, j].T
    return made.reshape(-1, inputs, y.taps, x.taps)


@dataclass(frozen=True)
class _Shuffle:
    """A convolution's result `(n, phases * channels, steps of y, steps of x)` before it is shuffled."""

    value: relax.Expr
    batch: int
    channels: int
    y: Axis
    x: Axis

    @property
    def phases(self) -> int:
        return self.y.stride * self.x.stride


@relax.expr_functor.mutator
class _Rewriter(relax.PyExprMutator):
    """Arithmetic with a constant per channel and activations stay with the convolution, to be fused into it."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._known: dict[relax.Var, _Shuffle] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if not isinstance(call, relax.Call):
            return call
        name = str(getattr(call.op, "name", ""))
        found = None
        if name == "relax.nn.conv2d_transpose":
            found = self._convolved(call)
        elif name in _ACTIVATIONS:
            found = self._activated(call)
        elif name in _BY_CHANNEL:
            found = self._with_constant(name, call)
        return call if found is None else self._shuffled(found)

    def _convolved(self, call: relax.Call) -> _Shuffle | None:
        a, shape, out = call.attrs, dimensions(call.args[0]), dimensions(call)
        weight = constant(call.args[1], self.lookup_binding)
        plain = (a.data_layout, a.kernel_layout, a.out_layout) == ("NCHW", "IOHW", "NCHW")
        alone = int(a.groups) == 1 and all(int(d) == 1 for d in a.dilation)
        if shape is None or out is None or weight is None or weight.dtype != np.float32 or not (plain and alone):
            return None
        padding = [int(p) for p in a.padding]
        y, x = (Axis(shape[i], weight.shape[i], int(a.strides[i - 2]), padding[i - 2], out[i]) for i in (2, 3))
        pads = (y.padding[0], x.padding[0], y.padding[1], x.padding[1])
        if min(pads) < 0:
            return None
        made = relax.const(subpixel_weights(weight, y, x), "float32")
        conv = self.builder_.emit(relax.op.nn.conv2d(call.args[0], made, padding=pads))
        return _Shuffle(conv, out[0], out[1], y, x)

    def _activated(self, call: relax.Call) -> _Shuffle | None:
        before = self._behind(call.args[0])
        if before is None:
            return None
        return replace(before, value=self.builder_.emit(relax.Call(call.op, [before.value], call.attrs)))

    def _with_constant(self, name: str, call: relax.Call) -> _Shuffle | None:
        mine, other = call.args
        if (before := self._behind(mine)) is None and name in _EITHER:
            mine, other = other, mine
            before = self._behind(mine)
        value = None if before is None else constant(other, self.lookup_binding)
        if before is None or value is None or value.size not in (1, before.channels):
            return None
        if value.size > 1:
            if (1, *value.shape)[-4:] != (1, before.channels, 1, 1):
                return None
            value = np.tile(value.reshape(-1), before.phases).reshape(1, -1, 1, 1)
        made = relax.Call(call.op, [before.value, relax.const(value, str(value.dtype))], call.attrs)
        return replace(before, value=self.builder_.emit(made))

    def _behind(self, expr: Any) -> _Shuffle | None:
        while isinstance(expr, relax.Var) and expr not in self._known:
            expr = self.lookup_binding(expr)
        return self._known.get(expr) if isinstance(expr, relax.Var) else None

    def _shuffled(self, s: _Shuffle) -> relax.Expr:
        """The pixels in their places: each step's phases beside each other."""
        n, c, (y, x) = s.batch, s.channels, (s.y, s.x)
        value: relax.Expr = s.value
        if s.phases > 1:
            apart = self.builder_.emit(relax.op.reshape(value, (n, y.stride, x.stride, c, y.steps, x.steps)))
            placed = self.builder_.emit(relax.op.permute_dims(apart, [0, 3, 4, 1, 5, 2]))
            value = self.builder_.emit(relax.op.reshape(placed, (n, c, y.steps * y.stride, x.steps * x.stride)))
        if (y.out, x.out) != (y.steps * y.stride, x.steps * x.stride):
            value = self.builder_.emit(relax.op.strided_slice(value, [2, 3], [0, 0], [y.out, x.out]))
        var = value if isinstance(value, relax.Var) else self.builder_.emit(value)
        self._known[var] = s
        return var
