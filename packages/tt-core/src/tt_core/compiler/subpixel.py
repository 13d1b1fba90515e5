"""Transposed convolutions as convolutions of the image as it is: the weights.

TVM writes zeros between the pixels and convolves those: of a stride s it multiplies s^2 times as often as it must, in a
layout that no template has. The results of one input position are s^2 pixels, so that a convolution with s^2 times the
filters computes them, and a copy shuffles them (`tt_core.compiler.convolutions`).

Source: Shi et al. (2016), Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional
Neural Network, CVPR, arXiv:1609.05158.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Axis", "subpixel_weights"]


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
