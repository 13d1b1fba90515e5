"""float16 in ONNX models: float32 inside, the same at the borders, the same values."""

from __future__ import annotations

import numpy as np
import pytest
from tt_core.models.load import load
from tt_core.models.model import FLOAT16_NOTE
from tt_core_fakes import CORE

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tt_core.models.sources import half  # noqa: E402

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float16")


def network(given: int = HALF, found: int = HALF) -> onnx.ModelProto:
    """Two layers; the first one's output is an output too, and a branch holds a weight of its own."""
    branch = [
        helper.make_graph(
            [
                helper.make_node("Constant", [], [f"{side}_scale"], value=numpy_helper.from_array(weights(4))),
                helper.make_node("Mul", ["hidden", f"{side}_scale"], [side]),
            ],
            side,
            [],
            [helper.make_tensor_value_info(side, HALF, (2, 4))],
        )
        for side in ("then", "else")
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=FLOAT),
        helper.make_node("Cast", ["wide"], ["narrow"], to=HALF),
        helper.make_node("MatMul", ["narrow", "w"], ["hidden"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    if found == FLOAT:
        nodes[-1].output[0] = "y_half"
        nodes.append(helper.make_node("Cast", ["y_half"], ["y"], to=FLOAT))
    x = [helper.make_tensor_value_info("x", given, (2, 8)), helper.make_tensor_value_info("flag", TensorProto.BOOL, ())]
    y = [helper.make_tensor_value_info("y", found, (2, 4)), helper.make_tensor_value_info("hidden", HALF, (2, 4))]
    graph = helper.make_graph(nodes, "g", x, y, [numpy_helper.from_array(weights(8, 4), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray, flag: bool) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "flag": np.array(flag)})


@pytest.mark.parametrize("given", [FLOAT, HALF])
@pytest.mark.parametrize("found", [FLOAT, HALF])
@pytest.mark.parametrize("flag", [True, False])
def test_the_model_computes_the_same_with_the_same_borders(given, found, flag):
    model = network(given, found)
    before = model.SerializeToString()
    wide = half.to_float32(model)
    onnx.checker.check_model(wide, full_check=True)
    assert model.SerializeToString() == before
    x = np.random.default_rng(1).standard_normal((2, 8)).astype("float16" if given == HALF else "float32")
    for a, b in zip(run(wide, x, flag), run(model, x, flag), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), rtol=5e-3, atol=5e-3)


def test_no_float16_is_left_between_the_borders():
    wide = half.to_float32(network())
    assert {t.data_type for t in wide.graph.initializer} == {FLOAT}
    inferred = onnx.shape_inference.infer_shapes(wide)
    assert HALF not in {v.type.tensor_type.elem_type for v in inferred.graph.value_info}


def test_models_without_float16_are_left_alone():
    x = helper.make_tensor_value_info("x", FLOAT, (2,))
    y = helper.make_tensor_value_info("y", FLOAT, (2,))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert not half.present(model)
    assert load(model, plugins=CORE).notes == ()


def test_the_user_is_told_once():
    x = helper.make_tensor_value_info("x", HALF, (2, 8))
    y = helper.make_tensor_value_info("y", HALF, (2, 4))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights(8, 4), "w")])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), plugins=CORE)
    assert model.notes == (FLOAT16_NOTE.format("g"),)
    assert model.inputs[0].dtype == "float16"
    assert str(model.mod["main"].ret_ty.dtype) == "float16"
    assert 'R.Tensor((2, 4), dtype="float32") = R.matmul' in model.mod.script()
