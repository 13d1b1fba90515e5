"""Signed weights in the reference: the sums that whole numbers have, on CPUs without VNNI, too."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tt_core.models.sources import onnx_peer  # noqa: E402
from tt_core.models.sources.unsigned_weights import unsigned_weights  # noqa: E402

TERMS = 40
X = np.full((2, TERMS), 255, np.uint8)  # two products of 255 and 127 are more than 16 bits hold
W = np.full((TERMS, 3), 127, np.int8)
W[:, 1], W[:, 2] = -128, np.arange(-20, 20)
SUMS = X.astype(int) @ W.astype(int)


def model(nodes, weights, inputs=(("x", TensorProto.UINT8, X.shape),), kind=TensorProto.INT32):
    return helper.make_model(
        helper.make_graph(
            nodes,
            "products",
            [helper.make_tensor_value_info(*i) for i in inputs],
            [helper.make_tensor_value_info("y", kind, [None] * len(inputs[0][2]))],
            [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )


def quantised(zero, **weights):
    """Scales and zero points of what is multiplied; the sums' scale leaves 120 of the largest."""
    scale = np.float32(SUMS.max() / 120)
    return {"xs": np.float32(1), "xz": zero, "ws": np.float32(1), "ys": scale, "yz": np.array(128, np.uint8), **weights}


def by_scale(sums):
    return np.clip(np.round(sums / np.float32(SUMS.max() / 120)) + 128, 0, 255).astype(np.uint8)


ZERO, SIGNED_ZERO, ACROSS = np.array(0, np.uint8), np.array(3, np.int8), np.array([3, -5, 0], np.int8)
QLINEAR = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
IMAGE = (1, TERMS, 3, 3)


def product(weights, zero=""):
    return [helper.make_node("MatMulInteger", ["x", weights, "", zero][: 4 if zero else 2], ["y"])]


def branches(plus=None):
    """The product in a branch, whose weights are the outer graph's, as what is added to it is."""
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["inner"])]
    nodes += [helper.make_node("Add", ["inner", plus], ["sum"])] if plus else []
    made = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.INT32, [None, None])
    branch = helper.make_graph(nodes, "branch", [], [made])
    return [helper.make_node("If", ["which"], ["y"], then_branch=branch, else_branch=branch)]


def dequantised(zero, scale):
    """Bytes, weights and result each as floats."""
    return [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", scale, *zero], ["wf"], axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
    ]


UINT8 = {"kind": TensorProto.UINT8}
CASES = {
    "a product": (model(product("w"), {"w": W}), SUMS),
    "a zero point": (model(product("w", "wz"), {"w": W, "wz": SIGNED_ZERO}), X.astype(int) @ (W.astype(int) - 3)),
    "zero points": (model(product("w", "wz"), {"w": W, "wz": ACROSS}), X.astype(int) @ (W.astype(int) - ACROSS)),
    "a constant": (
        model([helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W)), *product("w")], {}), SUMS),
    "in a branch": (model(branches(), {"w": W, "which": np.array(True)}), SUMS),
    "in a branch and before it": (
        model([helper.make_node("MatMulInteger", ["x", "w"], ["outside"]), *branches("outside")],
              {"w": W, "which": np.array(True)}), 2 * SUMS),
    "QLinearMatMul": (
        model([helper.make_node("QLinearMatMul", QLINEAR, ["y"])],
              quantised(ZERO, w=W, wz=np.array(0, np.int8)), **UINT8), by_scale(SUMS)),
    "QLinearConv": (
        model([helper.make_node("QLinearConv", QLINEAR, ["y"])],
              quantised(ZERO, w=W.T.reshape(3, TERMS, 1, 1), wz=np.array(0, np.int8)),
              (("x", TensorProto.UINT8, IMAGE),), **UINT8),
        np.broadcast_to(by_scale(SUMS)[0].reshape(1, 3, 1, 1), (1, 3, 3, 3))),
    "floats, no zero point": (
        model(dequantised([], "ws"), quantised(ZERO, w=W), **UINT8), by_scale(SUMS)),
    "floats, a scale per column": (
        model(dequantised([], "wss"), quantised(ZERO, w=W, wss=np.array([1, 0.5, 2], np.float32)), **UINT8),
        by_scale(SUMS * [1, 0.5, 2])),
    "floats, a zero point per column": (
        model(dequantised(["wz"], "wss"),
              quantised(ZERO, w=W, wss=np.array([1, 0.5, 2], np.float32), wz=ACROSS), **UINT8),
        by_scale(X.astype(int) @ (W.astype(int) - ACROSS) * [1, 0.5, 2])),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_whole_numbers_with_and_without_optimisations(name):
    source, want = CASES[name]
    assert unsigned_weights(source) is not source
    onnx.checker.check_model(unsigned_weights(source))
    x = np.full([d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim], 255, np.uint8)
    ways = onnx_peer.peer(source, {}).run({"x": x})
    assert len(ways) == 2
    for (got,) in ways:
        np.testing.assert_array_equal(got, want)


def test_weights_that_are_an_input_are_shifted_as_they_come():
    source = model(product("w"), {}, (("x", TensorProto.UINT8, X.shape), ("w", TensorProto.INT8, W.shape)))
    for (got,) in onnx_peer.peer(source, {}).run({"x": X, "w": W}):
        np.testing.assert_array_equal(got, SUMS)


SIGNED = np.array(0, np.int8)
LEFT = {
    "signed activations": model(
        [helper.make_node("QLinearMatMul", QLINEAR, ["y"])],
        quantised(SIGNED, w=W, wz=SIGNED) | {"yz": SIGNED},
        (("x", TensorProto.INT8, X.shape),),
        TensorProto.INT8,
    ),
    "signed activations as floats": model(
        dequantised([], "ws"), quantised(SIGNED, w=W), (("x", TensorProto.INT8, X.shape),), TensorProto.UINT8
    ),
    "unsigned weights": model(product("w"), {"w": (W.astype(int) + 128).astype(np.uint8)}),
    "a convolution": model(
        [helper.make_node("ConvInteger", ["x", "w"], ["y"])],
        {"w": W.T.reshape(3, TERMS, 1, 1)},
        (("x", TensorProto.UINT8, IMAGE),),
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_does_not_saturate_stays_as_it_is(name):
    assert unsigned_weights(LEFT[name]) is LEFT[name]
    x = np.ones([d.dim_value for d in LEFT[name].graph.input[0].type.tensor_type.shape.dim], np.uint8)
    kind = np.int8 if "activations" in name else np.uint8
    one, two = onnx_peer.peer(LEFT[name], {}).run({"x": x.astype(kind)})
    np.testing.assert_array_equal(one[0], two[0])
