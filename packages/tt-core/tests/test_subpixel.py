"""Weights of convolutions that take the place of transposed ones: against the definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_core.compiler.subpixel import Axis, subpixel_weights


def transposed(x, w, stride, before, out):
    """Output o of each channel sums x[i] w[o + before - i * stride], both axes: the definition."""
    made = np.zeros((w.shape[1], *out))
    for i, j in np.ndindex(*x.shape[1:]):
        for k, m in np.ndindex(*w.shape[2:]):
            y, z = i * stride[0] + k - before[0], j * stride[1] + m - before[1]
            if 0 <= y < out[0] and 0 <= z < out[1]:
                made[:, y, z] += x[:, i, j] @ w[:, :, k, m]
    return made


def by_convolution(x, w, axes):
    """The same by a convolution of `subpixel_weights`, shuffled."""
    y, x_axis = axes
    weight, channels = subpixel_weights(w, y, x_axis), w.shape[1]
    padded = np.pad(x, ((0, 0), y.padding, x_axis.padding))
    conv = np.zeros((len(weight), y.steps, x_axis.steps))
    for i, j in np.ndindex(y.steps, x_axis.steps):
        window = padded[:, i : i + y.taps, j : j + x_axis.taps]
        conv[:, i, j] = np.tensordot(weight, window, 3)
    apart = conv.reshape(y.stride, x_axis.stride, channels, y.steps, x_axis.steps)
    whole = apart.transpose(2, 3, 0, 4, 1).reshape(channels, y.steps * y.stride, x_axis.steps * x_axis.stride)
    return whole[:, : y.out, : x_axis.out]


@st.composite
def an_axis(draw):
    size, kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    before, after = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    more = draw(st.integers(0, stride - 1))
    return Axis(size, kernel, stride, before, max(1, (size - 1) * stride + kernel - before - after + more))


@settings(deadline=None, max_examples=150)
@given(y=an_axis(), x=an_axis(), seed=st.integers(0, 2**31))
def test_a_convolution_computes_what_the_definition_says(y, x, seed):
    if min(*y.padding, *x.padding) < 0:
        return  # inputs without effect: the pass leaves such a one as it is
    rng = np.random.default_rng(seed)
    image, weight = rng.standard_normal((2, y.size, x.size)), rng.standard_normal((2, 3, y.kernel, x.kernel))
    want = transposed(image, weight, (y.stride, x.stride), (y.before, x.before), (y.out, x.out))
    np.testing.assert_allclose(by_convolution(image, weight, (y, x)), want, atol=1e-12)


def test_a_kernel_as_large_as_its_stride_has_one_tap():
    """The upsampling of detectors: 2 x 2 pixels of each input pixel, and no multiplication by zero."""
    axis = Axis(80, 2, 2, 0, 160)
    assert (axis.taps, axis.steps, axis.padding) == (1, 80, (0, 0))
    assert [axis.weight(phase, 0) for phase in range(2)] == [0, 1]
    assert Axis(9, 4, 2, 1, 18).taps == 3 and Axis(9, 4, 2, 1, 18).padding == (1, 1)
