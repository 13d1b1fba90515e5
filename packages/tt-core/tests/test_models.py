"""Models in: what is accepted, and that every refusal says what came and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core.errors import ModelError
from tt_core.models.load import load
from tt_core.models.model import Input
from tt_core_fakes import CORE
from tvm import relax

pytest.importorskip("onnx")
import onnx
from onnx import TensorProto, helper, numpy_helper


def relu(*shape: int | str | None, shapeless: bool = False) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("data", TensorProto.FLOAT, None if shapeless else shape)
    y = helper.make_tensor_value_info("out", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph([helper.make_node("Relu", ["data"], ["out"])], "relu", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def message(source: object, **shapes: tuple[int, ...]) -> str:
    with pytest.raises(ModelError) as e:
        load(source, shapes, CORE)
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
        model = load(source, plugins=CORE)
        assert model.inputs == (Input("data", (2, 3), "float32"),)
        assert model.outputs == ("out",)
        assert model.peer is not None and model.peer.name == "onnxruntime"
    assert load(path, plugins=CORE).name == "net"


def test_a_zoo_model_has_its_name_and_inputs():
    model = load("bert-tiny", plugins=CORE)
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
    assert load(relu("n", 3, "h", "w"), {"data": shape}, CORE).inputs == (Input("data", shape, "float32"),)


def test_an_input_without_a_shape_is_not_taken_for_a_scalar():
    assert "--shape data=" in message(relu(shapeless=True))
    assert load(relu(shapeless=True), {"data": (2, 5)}, CORE).inputs[0].shape == (2, 5)


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


def test_a_weight_of_other_bytes_than_its_shape_says_is_no_usable_model(tmp_path):
    model = relu(2, 3)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((4, 3), np.float32), "w"))
    model.graph.initializer[0].dims[0] = 1
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert f"{tmp_path / 'net.onnx'} is not a usable ONNX model" in message(tmp_path / "net.onnx")


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
    assert "'.pt'" in message(other) and "torch.export.save" in message(other)
    other = other.rename(tmp_path / "net.h5")
    assert all(kind in message(other) for kind in ("'.h5'", ".onnx", ".pt2", ".py"))


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
    assert "acme.Nonsense at node 0" in text and "\n" not in text


def test_an_unsupported_operator_is_found_in_the_users_file(tmp_path):
    """Every kind that TVM lacks, its first node: index, name and outputs as in the file, before it was simplified."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 4, 4))
    ys = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 4, 4)) for n in ("y", "z")]
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], name="dropped"),
        helper.make_node("Relu", ["same"], ["a"], name="first"),
        helper.make_node("RandomNormalLike", ["a"], ["y"], name="the noise"),
        helper.make_node("RandomNormalLike", ["x"], ["z"], name="second"),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], ys), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = tmp_path / "noise.onnx"
    onnx.save(model, str(path))
    text = message(path)
    assert f"operator of {path}: RandomNormalLike at node 2 'the noise' -> y;" in text
    assert "second" not in text
    assert "tt split" in text


def test_what_tvm_fails_at_is_found_in_the_users_file(capfd):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 4))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 4))
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Elu", ["a"], ["y"], name="odd elu"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    import tvm.relax.frontend.onnx.onnx_frontend as frontend

    class Fails(frontend.Elu):
        @classmethod
        def get_converter(cls, opset):
            def fail(*args):
                raise ValueError("first line\nsecond line")

            return fail

    with pytest.MonkeyPatch.context() as patch:
        table = {**frontend._get_convert_map(), "Elu": Fails}
        patch.setattr(frontend, "_get_convert_map", lambda: table)
        text = message(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert "at the Elu, node 1 'odd elu' -> y: ValueError: first line" in text
    assert capfd.readouterr().out == ""  # TVM prints what it fails at


def two_inputs() -> onnx.ModelProto:
    """Rows of a table of 50 looked up by ids, added to features; a third input is not used."""
    float_, int_ = TensorProto.FLOAT, TensorProto.INT64
    table = numpy_helper.from_array(np.ones((50, 8), "float32"), "table")
    nodes = [
        helper.make_node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "narrow"], ["rows"]),
        helper.make_node("Add", ["rows", "features"], ["sum"]),
        helper.make_node("ArgMax", ["sum"], ["best"], axis=1, keepdims=0),
    ]
    given = [("features", float_, ["batch", 8]), ("ids", int_, ["batch"]), ("flag", int_, [1])]
    found = [("sum", float_, ["batch", 8]), ("best", int_, ["batch"])]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info(*v) for v in given],
        [helper.make_tensor_value_info(*v) for v in found],
        [table],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_several_inputs_and_outputs_share_a_batch():
    model = load(two_inputs(), {"features": (4, 8), "ids": (4,)}, CORE)
    assert model.inputs == (Input("features", (4, 8), "float32"), Input("ids", (4,), "int64", below=50))
    assert model.outputs == ("sum", "best")
    assert model.notes == ("input 'flag' of two has no use and is left out",)
    text = message(two_inputs(), features=(4, 8), ids=(3,))
    assert "'batch' is 4 in input 'features' and 3 in 'ids'" in text


def test_the_peer_of_an_onnx_model_computes_it():
    model = load(two_inputs(), {"features": (2, 8), "ids": (2,)}, CORE)
    features = np.arange(16, dtype="float32").reshape(2, 8)
    assert model.peer is not None
    for total, best in model.peer.run({"features": features, "ids": np.array([0, 49])}):
        np.testing.assert_array_equal(total, features + 1)
        np.testing.assert_array_equal(best, [7, 7])


def test_weights_beside_the_file_are_read_and_missed(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save_model(two_inputs(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    shapes = {"features": (1, 8), "ids": (1,)}
    assert load(path, shapes, CORE).inputs[1].below == 50
    (tmp_path / "weights.bin").unlink()
    text = message(path, **shapes)
    assert "weights.bin" in text and "\n" not in text


def test_a_zoo_model_takes_its_batch_behind_an_at_sign():
    model = load("bert-tiny@3", plugins=CORE)
    assert {i.shape for i in model.inputs} == {(3, 128)}
    assert model.name == "bert-tiny@3"
    for batch in ("0", "-1", "x", "", "1.5"):
        assert "bert-tiny@8" in message(f"bert-tiny@{batch}")
    assert "bert-tiny@8" in message("bert-tiny", input_ids=(4, 128))


def test_relax_modules_come_in_with_all_their_outputs():
    model = load(relax_module(relax.op.nn.relu, (2, 4)))
    assert model.inputs == (Input("x0", (2, 4), "float32"),)
    assert model.outputs == ("output",)
    assert load(relax_module(lambda x: relax.op.split(x, 2, 1), (2, 4))).outputs == ("output_0", "output_1")


def test_symbolic_dimensions_of_relax_modules_are_bound():
    n = tvm.tirx.Var("n", "int64")
    mod = relax_module(relax.op.add, (n, 4), (n, 4))
    model = load(mod, {"x0": (3, 4), "x1": (3, 4)})
    assert [i.shape for i in model.inputs] == [(3, 4), (3, 4)]
    assert "'n' is 3 in input 'x0' and 2 in 'x1'" in message(mod, x0=(3, 4), x1=(2, 4))
    assert "--shape x1=1,4" in message(mod, x0=(3, 4))


def test_relax_modules_need_a_main_of_fixed_shapes():
    assert '"main"' in message(tvm.IRModule())
    text = message(relax_module(relax.op.nn.relu, (tvm.tirx.Var("n", "int64"), 4)))
    assert "'x0'" in text and "no fixed shape" in text


def test_anything_else_is_named_by_its_type():
    assert "cannot import a ndarray" in message(np.zeros(3))


def test_operators_keep_their_shape_in_their_name():
    assert "omit --shape" in message("op:matmul:4,4,4", x=(4, 4))
