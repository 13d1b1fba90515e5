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


@pytest.mark.parametrize("shape", [(1,), (4, 1, 1), (1, 4, 1, 1)])
@pytest.mark.parametrize("name", ["multiply", "add", "maximum", "subtract", "divide"])
def test_a_constant_that_comes_first_or_is_flat_does_not_stop_a_layout(name, shape):
    """A layout follows a constant of fewer dimensions, and of two operands with as many the first."""
    rng = np.random.default_rng(0)
    weight, number = rng.standard_normal((4, 3, 3, 3)).astype("float32"), np.full(shape, 0.5, "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    behind = name in ("subtract", "divide")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=1))
            pair = (y, relax.const(number)) if behind else (relax.const(number), y)
            y = builder.emit(getattr(relax.op, name)(*pair))
            out = builder.emit_output(relax.op.nn.conv2d(y, relax.const(weight[:, :1]), groups=4))
        builder.emit_func_output(out)
    before = builder.get()
    wanted = {"relax.nn.conv2d": ["NHWC", "OHWI"]}

    def transposes(mod):
        laid = relax.transform.FoldConstant()(relax.transform.ConvertLayout(wanted)(mod))
        found = []

        def visit(e):
            found.extend([e] if isinstance(e, relax.Call) and e.op == tvm.ir.Op.get("relax.permute_dims") else [])

        relax.analysis.post_order_visit(laid["main"], visit)
        return len(found)

    assert transposes(passed(before)) == 2, "the model's input and output alone"
    data = rng.standard_normal((1, 3, 8, 8)).astype("float32")

    def run(mod):
        built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
        return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()

    np.testing.assert_array_equal(run(passed(before)), run(before))


def test_numbers_and_other_ranks_stay_as_they_are():
    for shapes in ([(2, 3, 4), (4,)], [(2, 3, 4, 5), ()]):
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType(shapes[0], "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                out = builder.emit_output(relax.op.multiply(relax.const(np.ones(shapes[1], "float32")), x))
            builder.emit_func_output(out)
        assert tvm_ffi.structural_equal(passed(builder.get()), builder.get())
