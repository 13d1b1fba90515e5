"""onnxruntime and OpenVINO, as benchmarks ask for them: the model's own result, whatever its open dimensions."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tt_bench.runtimes import onnxruntime_call, openvino_call


@pytest.fixture(params=[("rows", 3), ("?", "?")], ids=["one name", "one name for two sizes"])
def scaled(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """y = x * by, of any number of rows."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, request.param)
    by = helper.make_tensor_value_info("by", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, request.param)
    nodes = [helper.make_node("Cast", ["by"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["x", "f"], ["y"])]
    graph = helper.make_graph(nodes, "scaled", [x, by], [y])
    path = tmp_path / "scaled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def test_onnxruntime_computes_the_model_with_open_dimensions_fixed_and_values_given(scaled):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    call = onnxruntime_call(scaled, {"x": x, "folded away": x}, {"by": [3]}, threads=1)
    np.testing.assert_array_equal(call()[0], 3 * x)


def test_a_runtime_that_is_not_installed_or_refuses_the_model_is_left_out(scaled, capsys):
    scaled.write_bytes(b"no model")
    assert openvino_call(scaled, {}, {}, threads=1) is None
    if importlib.util.find_spec("openvino") is not None:
        assert "OpenVINO does not take" in capsys.readouterr().err
