"""Models in: what is accepted, and that every refusal says what came and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import tt_core.hooks
import tvm
from tt_core.errors import ModelError
from tt_core.models import Input, load
from tt_spec import Plugins
from tvm import relax

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

PLUGINS = Plugins(installed=False, extra=[("tt-core", tt_core.hooks)])


def relu(*shape: int | str | None, shapeless: bool = False) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("data", TensorProto.FLOAT, None if shapeless else shape)
    y = helper.make_tensor_value_info("out", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph([helper.make_node("Relu", ["data"], ["out"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def message(source: object, **shapes: tuple[int, ...]) -> str:
    with pytest.raises(ModelError) as e:
        load(source, shapes, PLUGINS)
    return str(e.value)


def relax_module(make, *shapes) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", xs):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(*xs)))
        builder.emit_func_output(out)
    return builder.get()


def test_a_fixed_model_needs_no_shapes(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(relu(2, 3), str(path))
    for source in (path, str(path), relu(2, 3)):
        model = load(source, plugins=PLUGINS)
        assert model.inputs == (Input("data", (2, 3), "float32"),)
        assert model.outputs == ("out",)
        assert model.onnx is not None
    assert load(path, plugins=PLUGINS).name == "net"


def test_a_zoo_model_has_its_name_and_inputs():
    model = load("bert-tiny", plugins=PLUGINS)
    assert model.name == "bert-tiny"
    assert [(i.name, i.shape, i.dtype) for i in model.inputs] == [
        ("input_ids", (1, 128), "int64"),
        ("attention_mask", (1, 128), "int64"),
    ]
    assert model.outputs == ("last_hidden_state", "pooler_output")


@pytest.mark.parametrize("first", ["batch", None])
def test_a_dynamic_dimension_names_the_input_and_shows_the_option(first):
    text = message(relu(first, 3, 224, 224))
    assert "'data'" in text
    assert "--shape data=1,3,224,224" in text
    if first:
        assert "[batch,3,224,224]" in text


def test_the_option_that_the_error_shows_is_accepted():
    shown = message(relu("n", 3, "h", "w")).rsplit("--shape data=", 1)[1]
    shape = tuple(int(d) for d in shown.split(","))
    assert load(relu("n", 3, "h", "w"), {"data": shape}, PLUGINS).inputs == (Input("data", shape, "float32"),)


def test_an_input_without_a_shape_is_not_taken_for_a_scalar():
    assert "--shape data=" in message(relu(shapeless=True))
    assert load(relu(shapeless=True), {"data": (2, 5)}, PLUGINS).inputs[0].shape == (2, 5)


def test_a_shape_of_another_rank_shows_both():
    text = message(relu("n", 3), data=(1, 3, 4))
    assert "--shape data=1,3,4 has 3 dimensions" in text
    assert "the input has 2: [n,3]" in text


def test_a_shape_that_contradicts_the_file_shows_what_is_fixed():
    text = message(relu("n", 3), data=(1, 4))
    assert "--shape data=1,4 contradicts" in text
    assert "[n,3]" in text


def test_dimensions_must_be_positive():
    assert "positive" in message(relu("n", 3), data=(0, 3))


def test_an_unknown_input_name_shows_the_nearest():
    text = message(relu("n", 3), data=(1, 3), dta=(1, 3))
    assert "'dta'" in text
    assert "did you mean 'data'?" in text


@pytest.mark.parametrize("content", [b"", b"This is not a model.", b"\x00" * 64])
def test_a_file_of_something_else_is_no_onnx_model(tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    text = message(path)
    assert str(path) in text and "ONNX" in text
    assert "\n" not in text


def test_a_truncated_file_is_no_onnx_model(tmp_path):
    path = tmp_path / "net.onnx"
    data = relu(2, 3).SerializeToString()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert f"{path} is not a usable ONNX model" in message(path)


def test_a_model_without_operators_is_refused(tmp_path):
    model = relu(2, 3)
    del model.graph.node[:]
    model.graph.output[0].name = "data"
    model.graph.output[0].type.CopyFrom(model.graph.input[0].type)
    path = tmp_path / "empty.onnx"
    path.write_bytes(model.SerializeToString())
    assert str(path) in message(path)


def test_a_folder_and_another_kind_of_file_say_so(tmp_path):
    assert "is a folder" in message(tmp_path)
    other = tmp_path / "net.pt"
    other.write_bytes(b"x")
    assert "'.pt'" in message(other) and ".onnx" in message(other)


def test_a_missing_file_shows_the_nearest_models():
    text = message("resnet-18")
    assert "'resnet-18'" in text
    assert "did you mean 'resnet18'" in text
    assert "bert-tiny" in text and "op:" in text


def test_a_missing_package_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "onnxslim", None)
    assert "pip install 'tt-core[onnx]'" in message(relu(2, 3))


@pytest.mark.filterwarnings("ignore:Field")
def test_an_operator_onnx_has_and_tvm_has_not_is_one_line():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4,))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4,))
    graph = helper.make_graph([helper.make_node("Nonsense", ["x"], ["y"], domain="acme")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    text = message(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    assert "x=4" in text and "\n" not in text


def test_relax_modules_come_in_with_all_their_outputs():
    model = load(relax_module(relax.op.nn.relu, (2, 4)))
    assert model.inputs == (Input("x0", (2, 4), "float32"),)
    assert model.outputs == ("output",)
    assert load(relax_module(lambda x: relax.op.split(x, 2, 1), (2, 4))).outputs == ("output_0", "output_1")


def test_relax_modules_need_a_main_of_fixed_shapes():
    assert '"main"' in message(tvm.IRModule())
    text = message(relax_module(relax.op.nn.relu, (tvm.tirx.Var("n", "int64"), 4)))
    assert "'x0'" in text and "no fixed shape" in text


def test_anything_else_is_named_by_its_type():
    assert "cannot import a ndarray" in message(np.zeros(3))


def test_operators_keep_their_shape_in_their_name():
    assert "leave --shape out" in message("op:matmul:4,4,4", x=(4, 4))
