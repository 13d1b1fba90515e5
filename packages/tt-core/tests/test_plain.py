"""Sums and extremes of several tensors, and batch norms, as ONNX has them, are elementwise operators."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tt_core import models
from tt_core.compiler.plain import plain_operators
from tvm import relax

onnx = pytest.importorskip("onnx")

KINDS = {
    "Sum": (lambda *a: sum(a[1:], a[0]), {"add"}),
    "Mean": (lambda *a: sum(a[1:], a[0]) / np.float32(len(a)), {"add", "divide"}),
    "Max": (lambda *a: np.maximum.reduce(np.broadcast_arrays(*a)), {"maximum"}),
    "Min": (lambda *a: np.minimum.reduce(np.broadcast_arrays(*a)), {"minimum"}),
}
SHAPES = {"alike": [(2, 3), (2, 3)], "three": [(2, 3), (2, 3), (2, 3)], "broadcast": [(3,), (2, 1)], "one": [(2, 3)]}


def passed(mod: tvm.IRModule) -> tvm.IRModule:
    return plain_operators(mod)  # pyright: ignore[reportCallIssue]  # TVM's decorator is not seen


def module(kind, shapes):
    helper = onnx.helper
    names = [f"x{i}" for i in range(len(shapes))]
    given = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, shapes, strict=True)]
    out = helper.make_tensor_value_info("out", 1, np.broadcast_shapes(*shapes))
    graph = helper.make_graph([helper.make_node(kind, names, ["out"])], "g", given, [out])
    return models.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])).mod


def operators(mod):
    found = set()

    def visit(e):
        if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op):
            found.add(str(e.op.name).removeprefix("relax."))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_several_tensors_become_elementwise_operators(kind, shapes):
    compute, wanted = KINDS[kind]
    mod = passed(module(kind, shapes))
    found = operators(mod)
    assert not found & {"stack", "broadcast_to", "sum", "mean", "max", "min"}
    assert len(shapes) == 1 or wanted <= found
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("float32") for s in shapes]
    built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
    got = relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    np.testing.assert_allclose(got, compute(*inputs), rtol=1e-6)


def norm(shape, *, given):
    """A batch norm of such an input; which of its statistics are inputs, too."""
    helper, rng = onnx.helper, np.random.default_rng(1)
    values = {
        "scale": rng.uniform(-2, 2, shape[1]),
        "shift": rng.uniform(-2, 2, shape[1]),
        "mean": rng.uniform(-2, 2, shape[1]),
        "variance": rng.uniform(0.1, 2, shape[1]),
    }
    values = {k: v.astype("float32") for k, v in values.items()}
    node = helper.make_node("BatchNormalization", ["x", *values], ["out"], epsilon=0.25)
    inputs = [helper.make_tensor_value_info("x", 1, shape)]
    inputs += [helper.make_tensor_value_info(n, 1, values[n].shape) for n in given]
    fixed = [onnx.numpy_helper.from_array(v, n) for n, v in values.items() if n not in given]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("out", 1, shape)], fixed)
    mod = models.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])).mod
    return passed(relax.transform.FoldConstant()(mod)), values


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_a_batch_norm_that_stands_alone_is_a_product_and_a_sum(shape):
    mod, values = norm(shape, given=())
    assert operators(mod) == {"multiply", "add"}
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    of = {k: v.astype("float64").reshape(1, 3, *[1] * (len(shape) - 2)) for k, v in values.items()}
    wanted = (x - of["mean"]) / np.sqrt(of["variance"] + 0.25) * of["scale"] + of["shift"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_batch_norm_whose_statistics_are_computed_stays():
    mod, _ = norm((2, 3, 4, 5), given=("variance",))
    assert "nn.batch_norm" in operators(mod)


def stacked(axis, keepdims):
    builder = relax.BlockBuilder()
    x, y = (relax.Var(n, relax.TensorType((2, 3), "float32")) for n in "xy")
    with builder.function("main", [x, y]):
        with builder.dataflow():
            both = builder.emit(relax.op.stack([x, y], axis=0))
            out = builder.emit_output(relax.op.sum(both, axis=axis, keepdims=keepdims))
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize(("axis", "keepdims"), [(1, False), ([0, 1], False), (None, False), (0, True)])
def test_another_reduction_of_what_was_stacked_stays(axis, keepdims):
    assert operators(passed(stacked(axis, keepdims))) == {"stack", "sum"}


def between(middle, given=((1, 3, 8, 8),)):
    """What `middle` makes of a convolution's result and of further inputs, and another convolution of that."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype("float32")
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(given)]
    with builder.function("main", inputs):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(inputs[0], relax.const(weight), padding=1))
            y = builder.emit(middle(y, *inputs[1:]))
            out = builder.emit_output(relax.op.nn.conv2d(y, relax.const(weight[:, :1]), groups=4))
        builder.emit_func_output(out)
    return builder.get()


def transposes(mod):
    """How many there are once convolutions have their layout."""
    wanted = {"relax.nn.conv2d": ["NHWC", "OHWI"]}
    laid = relax.transform.FoldConstant()(relax.transform.ConvertLayout(wanted)(mod))
    found = []

    def visit(e):
        found.extend([e] if isinstance(e, relax.Call) and e.op == tvm.ir.Op.get("relax.permute_dims") else [])

    relax.analysis.post_order_visit(laid["main"], visit)
    return len(found)


def run(mod, *inputs):
    built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()


@pytest.mark.parametrize("shape", [(1,), (4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize("name", ["multiply", "add", "maximum", "subtract", "divide"])
def test_a_constant_that_comes_first_or_is_flat_does_not_stop_a_layout(name, shape):
    """A layout follows a constant of fewer dimensions, and of two operands with as many the first."""
    number = relax.const(np.full(shape, 0.5, "float32"))

    def middle(y):
        return getattr(relax.op, name)(*((y, number) if name in ("subtract", "divide") else (number, y)))

    before = between(middle)
    assert transposes(passed(before)) == 2, "the model's input and output alone"
    data = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype("float32")
    np.testing.assert_array_equal(run(passed(before), data), run(before, data))


def number(value):
    return relax.const(value, "float32")


SLOPES = np.array([-0.5, 0.0, 0.3, 2.0], "float32")
STOPPING = {
    "clip": lambda y: relax.op.clip(y, -0.25, 0.5),
    "clip below": lambda y: relax.op.clip(y, -0.25, np.inf),
    "leaky": lambda y: relax.op.nn.leakyrelu(y, 0.1),
    "steep leaky": lambda y: relax.op.nn.leakyrelu(y, 1.5),
    "falling leaky": lambda y: relax.op.nn.leakyrelu(y, -0.5),
    "prelu": lambda y: relax.op.nn.prelu(y, relax.const(SLOPES), 1),
    "where": lambda y: relax.op.where(relax.op.greater(y, number(0.0)), y, number(0.5)),
    "where with a row": lambda y: relax.op.where(relax.op.less(y, number(0.0)), relax.const(np.ones(8, "float32")), y),
    "broadcast": lambda y: relax.op.divide(y, relax.op.broadcast_to(relax.op.exp(y), (1, 4, 8, 8))),
    "pad": lambda y: relax.op.nn.pad(y, [0, 0, 0, 0, 1, 0, 2, 3]),
}


@pytest.mark.parametrize("middle", STOPPING.values(), ids=STOPPING)
def test_what_would_stop_a_layout_becomes_operators_that_do_not(middle):
    before = between(middle)
    assert transposes(passed(before)) == 2, "the model's input and output alone"
    data = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype("float32")
    np.testing.assert_allclose(run(passed(before), data), run(before, data), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 8), (8,), (1, 1, 8, 8), (1, 4, 1, 1)], ids=str)
def test_a_choice_by_a_mask_of_fewer_dimensions_keeps_its_meaning(shape):
    before = between(lambda y, m: relax.op.where(relax.op.greater(m, number(0.0)), y, m), ((1, 3, 8, 8), shape))
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(s).astype("float32") for s in ((1, 3, 8, 8), shape)]
    after = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})(passed(before))
    np.testing.assert_allclose(run(after, *data), run(before, *data), rtol=1e-5, atol=1e-6)


def test_a_choice_among_vectors_goes_through_a_layout_of_others():
    """The rule of its layout is asked for every choice of a model, whatever its rank."""
    builder = relax.BlockBuilder()
    x, m = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", (2, 3, 4)), ("m", (3, 1))))
    with builder.function("main", [x, m]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.where(relax.op.greater(m, number(0.0)), number(-1.0), x))
        builder.emit_func_output(out)
    data = [np.random.default_rng(0).standard_normal(s).astype("float32") for s in ((2, 3, 4), (3, 1))]
    after = relax.transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "OHWI"]})(passed(builder.get()))
    np.testing.assert_array_equal(run(after, *data), np.where(data[1] > 0, np.float32(-1), data[0]))


@pytest.mark.parametrize("size", [1, 4])
def test_a_prelu_of_onnx_has_one_slope_or_one_for_each_channel(size):
    helper, slopes = onnx.helper, SLOPES[-size:].reshape(size, 1, 1)
    fixed = [onnx.numpy_helper.from_array(slopes, "slope")]
    given = [helper.make_tensor_value_info("x", 1, (2, 4, 3, 5))]
    out = [helper.make_tensor_value_info("out", 1, (2, 4, 3, 5))]
    graph = helper.make_graph([helper.make_node("PRelu", ["x", "slope"], ["out"])], "g", given, out, fixed)
    mod = models.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)])).mod
    mod = passed(relax.transform.FoldConstant()(mod))
    assert "nn.prelu" not in operators(mod)
    x = np.random.default_rng(0).standard_normal((2, 4, 3, 5)).astype("float32")
    np.testing.assert_allclose(run(mod, x), np.where(x > 0, x, slopes * x), rtol=1e-6)


def test_bounds_of_integers_stay():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.clip(x, 0, 5))
        builder.emit_func_output(out)
    assert operators(passed(builder.get())) == {"clip"}


@pytest.mark.parametrize(
    ("widths", "mode", "value"),
    [
        ([0, 0, 1, 0, 0, 0, 0, 0], "constant", 0.0),
        ([0, 0, 0, 0, 1, 1, 1, 1], "constant", 1.0),
        ([0, 0, 0, 0, 1, 1, 1, 1], "reflect", 0.0),
    ],
    ids=["channels", "ones", "reflected"],
)
def test_what_is_no_padding_of_a_convolution_stays(widths, mode, value):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.pad(x, widths, mode, value))
            weight = relax.const(np.ones((4, int(y.ty.shape[1]), 3, 3), "float32"))
            out = builder.emit_output(relax.op.nn.conv2d(y, weight))
        builder.emit_func_output(out)
    assert "nn.pad" in operators(passed(builder.get()))


def test_numbers_and_other_ranks_stay_as_they_are():
    for shapes in ([(2, 3, 4), (4,)], [(2, 3, 4, 5), ()]):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(shapes[0], "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.multiply(relax.const(np.ones(shapes[1], "float32")), x))
            builder.emit_func_output(out)
        assert tvm_ffi.structural_equal(passed(builder.get()), builder.get())
