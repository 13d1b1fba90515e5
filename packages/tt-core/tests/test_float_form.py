"""A quantised model in float32: no rounding, the same ranges, as near to the model as rounding is, and said so."""

from __future__ import annotations

import numpy as np
import pytest
from tt_core import models, target
from tt_core.compiler.arrays import difference
from tt_core.compiler.lower import lower
from tt_core.deploy.verification import verify, wanted
from tt_core.errors import ModelError
from tt_core_fakes import with_space

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tt_core.models.sources import onnx_peer  # noqa: E402
from tt_core.models.sources.float_form import in_float32  # noqa: E402
from tt_core_quantised import by_onnxruntime, deep, image, recurrent, series  # noqa: E402
from tt_core_running import outputs  # noqa: E402

PLUGINS = with_space()
MODELS = {
    "convolutions, dynamic": (deep, "dynamic", image, {}),
    "convolutions, QDQ": (deep, "qdq", image, {}),
    "convolutions, QDQ per channel": (deep, "qdq", image, {"per_channel": True}),
    "convolutions, QLinear operators": (deep, "operators", image, {}),
    "LSTM, dynamic": (recurrent, "dynamic", series, {}),
    "product, dynamic per channel": (
        recurrent, "dynamic", series, {"per_channel": True, "op_types_to_quantize": ["MatMul"]}),
    "product, QDQ": (recurrent, "qdq", series, {}),
}  # fmt: skip
QUANTISED = {"QuantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul",
             "DynamicQuantizeLSTM", "DequantizeLinear"}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_quantised_model_in_float32(name, tmp_path):
    make, kind, sample, options = MODELS[name]
    quantised, inputs = by_onnxruntime(make(), tmp_path, kind, **options), sample()
    form = in_float32(quantised)
    assert form is not None
    onnx.checker.check_model(form)
    assert not QUANTISED & {n.op_type for n in form.graph.node}
    (exact,) = onnx_peer.peer(quantised, {}).run(inputs)[-1]
    (floats,) = onnx_peer.peer(form, {}).run(inputs)[-1]
    assert 0 < difference(floats, exact) < 0.05
    (plain,) = onnx_peer.peer(make(), {}).run(inputs)[-1]
    assert difference(floats, plain) < 0.05

    model = models.load(quantised, plugins=PLUGINS, precision="float32")
    got = outputs(model, inputs, PLUGINS)
    assert model.peer.roundings is None
    assert verify(wanted(model, inputs, got), got)["onnxruntime"] == "equal within 1.0e-03 of the largest magnitude"
    change = model.change["y"]
    assert model.precision == "float32" and 0 < change.mean < change.largest < 0.1
    assert any(f"by {change.largest:.1e} of its largest magnitude at most" in n for n in model.notes)


def test_a_dynamically_quantised_model_in_float32_has_the_tasks_of_the_float_model(tmp_path):
    """So it is as fast, and both have one history."""
    quantised = models.load(by_onnxruntime(deep(), tmp_path, "dynamic"), plugins=PLUGINS, precision="float32")
    keys = [
        {t.key: t.weight for t in lower(m.mod, target.resolve("native"), PLUGINS, "fake").tasks}
        for m in (quantised, models.load(deep(), plugins=PLUGINS))
    ]
    assert keys[0] == keys[1]


def test_a_relu_that_the_quantiser_dropped_stays():
    """Its bound is that of the integers: zero point 0 of bytes."""
    weights = {"s": np.array(0.1, "float32"), "z": np.array(0, "uint8")}
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        "bounds",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (got,) = onnx_peer.peer(in_float32(model), {}).run({"x": np.array([-1, 0.123, 99], "float32")})[-1]
    np.testing.assert_allclose(got, [0, 0.123, 25.5], rtol=1e-6)


def test_integers_that_somebody_wants_are_still_there():
    """An output of bytes behind a rounding, and a scale that is an output itself."""
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
         helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]),
         helper.make_node("DequantizeLinear", ["y", "s", "z"], ["f"])],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("q", TensorProto.UINT8, [4]),
         helper.make_tensor_value_info("scale", TensorProto.FLOAT, []),
         helper.make_tensor_value_info("y", TensorProto.UINT8, [4]),
         helper.make_tensor_value_info("f", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.array(0.1, "float32"), "s"), numpy_helper.from_array(np.array(9, "uint8"), "z")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = {"x": np.array([-0.5, 0.0, 1.26, 2.0], "float32")}
    exact, form = (onnx_peer.peer(m, {}).run(x)[-1] for m in (model, in_float32(model)))
    for i in range(3):
        np.testing.assert_array_equal(form[i], exact[i])
    np.testing.assert_allclose(form[3], x["x"], rtol=1e-6)


def test_a_float_model_stays_as_it_is_and_is_told_so():
    assert in_float32(deep()) is None
    model = models.load(deep(), plugins=PLUGINS, precision="float32")
    assert model.precision == "exact"
    assert model.notes == ("deep has nothing quantised: --precision float32 changes nothing",)


@pytest.mark.parametrize(
    ("source", "precision", "says"),
    [("op:matmul:8,8,8", "float32", "only a quantised ONNX model"), (deep(), "int4", "exact or float32, got 'int4'")],
)
def test_what_has_no_such_precision_is_refused(source, precision, says):
    with pytest.raises(ModelError, match=says):
        models.load(source, plugins=PLUGINS, precision=precision)
