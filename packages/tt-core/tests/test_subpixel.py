"""Transposed convolutions as convolutions: against the definition, and in a model."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_core.compiler.subpixel import Axis, subpixel, subpixel_weights
from tvm import relax


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


def model(make, *shapes):
    builder = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", xs):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(builder, *xs)))
        builder.emit_func_output(out)
    return builder.get()


def operators(mod):
    found = []

    def visit(e):
        if isinstance(e, relax.Call):
            found.append(getattr(e.op, "name", ""))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def run(mod, *arrays):
    vm = relax.VirtualMachine(relax.build(mod, "llvm"), tvm.cpu())
    return vm["main"](*(tvm.runtime.tensor(a) for a in arrays)).numpy()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_what_follows_stays_with_the_convolution(stride):
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((4, 3, 3, 3)), rng.standard_normal((1, 3, 1, 1))

    def make(builder, x):
        w, b = (relax.const(a.astype("float32")) for a in (weight, bias))
        y = builder.emit(relax.op.nn.conv2d_transpose(x, w, strides=stride, padding=1))
        y = builder.emit(relax.op.multiply(relax.const(np.float32(0.5)), y))
        return relax.op.nn.relu(builder.emit(relax.op.subtract(y, b)))

    before = model(make, (1, 4, 5, 6))
    after = subpixel(before)
    found = operators(after)
    assert "relax.nn.conv2d_transpose" not in found and found.count("relax.nn.conv2d") == 1
    places = [found.index(f"relax.{name}") for name in ("nn.conv2d", "multiply", "subtract", "nn.relu")]
    assert places == sorted(places) and (stride == 1 or places[-1] < found.index("relax.permute_dims"))
    x = rng.standard_normal((1, 4, 5, 6)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-4, atol=1e-5)


def test_a_constant_that_is_not_one_per_channel_comes_after_the_shuffle():
    mask = np.arange(8, dtype="float32").reshape(1, 1, 1, 8)
    weight = np.ones((2, 2, 2, 2), "float32")

    def make(builder, x):
        y = builder.emit(relax.op.nn.conv2d_transpose(x, relax.const(weight), strides=2))
        return relax.op.add(y, relax.const(mask))

    before = model(make, (1, 2, 4, 4))
    found = operators(subpixel(before))
    assert found.index("relax.permute_dims") < found.index("relax.add")
    x = np.ones((1, 2, 4, 4), "float32")
    np.testing.assert_allclose(run(subpixel(before), x), run(before, x))


def test_groups_and_computed_weights_are_left():
    grouped = model(
        lambda _, x: relax.op.nn.conv2d_transpose(
            x, relax.const(np.ones((4, 1, 2, 2), "float32")), strides=2, groups=2
        ),
        (1, 4, 3, 3),
    )
    computed = model(lambda _, x, w: relax.op.nn.conv2d_transpose(x, w, strides=2), (1, 4, 3, 3), (4, 1, 2, 2))
    for mod in (grouped, computed):
        assert operators(subpixel(mod)) == ["relax.nn.conv2d_transpose"]
