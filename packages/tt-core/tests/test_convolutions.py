"""Convolutions of all kinds as two-dimensional ones, in a model."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core.compiler.convolutions import as_conv2d
from tvm import relax


def passed(mod: tvm.IRModule) -> tvm.IRModule:
    return as_conv2d(mod)  # pyright: ignore[reportCallIssue]  # TVM's decorator is not seen


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
    after = passed(before)
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
    found = operators(passed(before))
    assert found.index("relax.permute_dims") < found.index("relax.add")
    x = np.ones((1, 2, 4, 4), "float32")
    np.testing.assert_allclose(run(passed(before), x), run(before, x))


def test_groups_and_computed_weights_are_left():
    grouped = model(
        lambda _, x: relax.op.nn.conv2d_transpose(
            x, relax.const(np.ones((4, 1, 2, 2), "float32")), strides=2, groups=2
        ),
        (1, 4, 3, 3),
    )
    computed = model(lambda _, x, w: relax.op.nn.conv2d_transpose(x, w, strides=2), (1, 4, 3, 3), (4, 1, 2, 2))
    for mod in (grouped, computed):
        assert operators(passed(mod)) == ["relax.nn.conv2d_transpose"]


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        (1, {"padding": [1, 1]}),
        (1, {"strides": 2, "padding": [2, 0]}),
        (1, {"dilation": 2}),
        (4, {"padding": [1, 1]}),
    ],
)
def test_a_sequence_is_an_image_one_pixel_high(groups, options):
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((8, 4 // groups, 3)), rng.standard_normal((1, 8, 1))

    def make(builder, x):
        w, b = (relax.const(a.astype("float32")) for a in (weight, bias))
        y = builder.emit(relax.op.nn.conv1d(x, w, groups=groups, **options))
        return relax.op.nn.relu(builder.emit(relax.op.add(y, b)))

    before = model(make, (2, 4, 9))
    found = operators(passed(before))
    assert found == ["relax.reshape", "relax.nn.conv2d", "relax.add", "relax.nn.relu", "relax.reshape"]
    x = rng.standard_normal((2, 4, 9)).astype("float32")
    np.testing.assert_allclose(run(passed(before), x), run(before, x), rtol=1e-5, atol=1e-5)


def test_sequences_stay_images_from_one_convolution_to_the_next():
    """A residual block: nothing but the ends is reshaped."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((4, 4, 3)).astype("float32") for _ in range(3)]

    def make(builder, x):
        first, second, third = (relax.const(w) for w in weights)
        y = builder.emit(relax.op.nn.conv1d(x, first, padding=[1, 1]))
        z = builder.emit(relax.op.sigmoid(builder.emit(relax.op.nn.conv1d(y, second, padding=[1, 1]))))
        z = builder.emit(relax.op.add(builder.emit(relax.op.multiply(y, z)), y))
        return relax.op.nn.conv1d(z, third)

    before = model(make, (1, 4, 12))
    found = operators(passed(before))
    assert found.count("relax.nn.conv2d") == 3 and found.count("relax.reshape") == 2
    assert found[0] == found[-1] == "relax.reshape"
    x = rng.standard_normal((1, 4, 12)).astype("float32")
    np.testing.assert_allclose(run(passed(before), x), run(before, x), rtol=1e-4, atol=1e-4)


def test_a_transposed_convolution_of_a_sequence_and_weights_that_are_computed():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 3, 4)).astype("float32")
    up = model(lambda _, x: relax.op.nn.conv1d_transpose(x, relax.const(weight), strides=2, padding=1), (1, 4, 6))
    computed = model(lambda _, x, w: relax.op.nn.conv1d(x, w), (1, 4, 6), (2, 4, 3))
    inputs = [(1, 4, 6)], [(1, 4, 6), (2, 4, 3)]
    for mod, shapes in zip((up, computed), inputs, strict=True):
        assert operators(passed(mod)).count("relax.nn.conv2d") == 1
        arrays = [rng.standard_normal(s).astype("float32") for s in shapes]
        np.testing.assert_allclose(run(passed(mod), *arrays), run(mod, *arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_gelu_written_out_stays_with_the_convolution_of_a_sequence(transposed):
    """x / 2 * (1 + erf(x / sqrt 2)), with a clip and a constant minus the value behind it."""
    rng = np.random.default_rng(0)
    weight = relax.const(rng.standard_normal((4, 4, 3)).astype("float32"))

    def make(builder, x):
        op, emit = relax.op, builder.emit
        y = emit(op.nn.conv1d_transpose(x, weight, strides=2) if transposed else op.nn.conv1d(x, weight))
        half = emit(op.divide(y, relax.const(np.float32(2**0.5))))
        z = emit(op.multiply(y, emit(op.add(emit(op.erf(half)), relax.const(np.float32(1))))))
        z = emit(op.clip(emit(op.multiply(z, relax.const(np.float32(0.5)))), -0.1, 2.0))
        return op.subtract(relax.const(rng.standard_normal((4, 1)).astype("float32")), z)

    before = model(make, (1, 4, 12))
    after = passed(before)
    found = operators(after)
    following = ("divide", "erf", "add", "multiply", "clip", "subtract")
    start = found.index("relax.nn.conv2d")
    places = [found.index(f"relax.{name}") for name in following]
    assert start < min(places) and max(places) < found.index("relax.reshape", start)
    x = rng.standard_normal((1, 4, 12)).astype("float32")
    np.testing.assert_allclose(run(after, x), run(before, x), rtol=1e-4, atol=1e-5)
