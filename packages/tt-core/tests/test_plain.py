"""Sums and extremes of several tensors, as ONNX has them, are elementwise operators."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
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
