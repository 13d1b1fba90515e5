"""A model with an operator that nobody knows, in parts: run one after the other they compute the whole."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tt_core import models
from tt_core.cli import app as command
from tt_core.errors import ModelError
from tt_core.models.split import split
from tt_core_fakes import with_space
from tt_core_running import outputs

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from tt_core.models.sources import onnx_peer  # noqa: E402

PLUGINS = with_space()
RNG = np.random.default_rng(0)
WEIGHTS = {n: RNG.standard_normal((8, 8)).astype("float32") for n in "ab"}
X = {"x": RNG.standard_normal((4, 8)).astype("float32")}


def swirl(h: np.ndarray) -> np.ndarray:
    return np.flip(h, 1) * 2


def model(path, *, known: bool = False, shape: bool = True) -> None:
    """Product, the unknown operator, and a sum with what came before it."""
    strange = helper.make_node("Swirl", ["h"], ["s"], "strange", domain="acme")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["m"]),
            helper.make_node("Relu", ["m"], ["h"]),
            helper.make_node("Neg", ["h"], ["s"]) if known else strange,
            helper.make_node("MatMul", ["s", "b"], ["t"]),
            helper.make_node("Add", ["t", "h"], ["y"]),
        ],
        "whole",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(a, n) for n, a in WEIGHTS.items()],
        value_info=[helper.make_tensor_value_info("s", TensorProto.FLOAT, [4, 8])] if shape else [],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), str(path))


def whole() -> np.ndarray:
    h = np.maximum(X["x"] @ WEIGHTS["a"], 0)
    return swirl(h) @ WEIGHTS["b"] + h


def by_onnxruntime(file, inputs):
    return onnx_peer.peer(onnx.load(str(file)), {}).run(inputs)[-1]


def by_tt(file, inputs):
    return outputs(models.load(file, plugins=PLUGINS), inputs, PLUGINS)


@pytest.mark.parametrize("run", [by_onnxruntime, by_tt])
def test_the_parts_and_the_middle_compute_the_whole(run, tmp_path):
    model(tmp_path / "m.onnx")
    found = split(tmp_path / "m.onnx", tmp_path / "parts", plugins=PLUGINS)
    plan = json.loads(found.path.read_text())
    assert plan["order"] == found.order and [("nodes" in s) for s in plan["order"]] == [False, True, False]
    values = dict(X)
    for step in plan["order"]:
        given = {v["name"]: values[v["name"]] for v in step["inputs"]}
        if "nodes" in step:
            (node,) = step["nodes"]
            assert (node["node"], node["operator"], node["name"]) == (2, "acme.Swirl", "strange")
            assert "acme.Swirl" in node["why"]
            results = [swirl(given["h"])]
        else:
            assert "note" not in step
            results = run(tmp_path / "parts" / step["file"], given)
        for v, result in zip(step["outputs"], results, strict=True):
            assert (list(result.shape), str(result.dtype)) == (v["shape"], v["dtype"])
            values[v["name"]] = result
    np.testing.assert_allclose(values["y"], whole(), rtol=1e-4, atol=1e-5)


def test_a_part_behind_an_unknown_shape_is_written_and_says_so(tmp_path):
    model(tmp_path / "m.onnx", shape=False)
    found = split(tmp_path / "m.onnx", tmp_path / "parts", plugins=PLUGINS)
    assert found.order[2]["note"].endswith("--shape s=...")
    assert {v["name"]: v["shape"] for v in found.order[2]["inputs"]} == {"s": None, "h": [4, 8]}
    (got,) = by_onnxruntime(tmp_path / "parts" / found.order[2]["file"], {"s": X["x"], "h": X["x"]})
    np.testing.assert_allclose(got, X["x"] @ WEIGHTS["b"] + X["x"], rtol=1e-4, atol=1e-5)
    found = split(tmp_path / "m.onnx", tmp_path / "again", {"s": (4, 8)}, plugins=PLUGINS)
    assert "note" not in found.order[2] and found.order[2]["inputs"][0]["shape"] == [4, 8]
    with pytest.raises(ModelError, match="--shape z: the model has no such input or value"):
        split(tmp_path / "m.onnx", tmp_path / "again", {"z": (4, 8)}, plugins=PLUGINS)


def test_a_model_that_can_be_imported_is_not_split(tmp_path, capsys):
    model(tmp_path / "m.onnx", known=True)
    assert split(tmp_path / "m.onnx", tmp_path / "parts", plugins=PLUGINS) is None
    assert not (tmp_path / "parts").exists()


def test_the_refusal_names_node_reason_and_the_command(tmp_path):
    model(tmp_path / "m.onnx")
    with pytest.raises(ModelError) as e:
        models.load(tmp_path / "m.onnx", plugins=PLUGINS)
    assert "no import for the operator" in str(e.value) and "acme.Swirl at node 2 'strange' -> s" in str(e.value)
    assert str(e.value).endswith(f"tt split {tmp_path / 'm.onnx'} --out DIR writes the parts that can be imported")


def test_the_command_lists_the_parts(tmp_path, capsys):
    model(tmp_path / "m.onnx")
    assert command.run(["split", str(tmp_path / "m.onnx"), "--out", str(tmp_path / "parts")]) == 0
    said = capsys.readouterr().out
    assert "outside: acme.Swirl" in said and "node 2 'strange' stays outside" in said and "parts.json" in said
    assert command.run(["split", str(tmp_path / "none.onnx"), "--out", str(tmp_path / "parts")]) == 3


def test_an_operator_inside_a_branch_takes_the_branch_out(tmp_path):
    """Import errors count the nodes inside a branch; what stays outside is the node that holds it."""
    inner = [
        helper.make_graph([helper.make_node(op, ["h"], [f"{op}_out"], domain=d)], op, [], [
            helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, [4, 8])])
        for op, d in (("Swirl", "acme"), ("Neg", ""))
    ]  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["h"]),
            helper.make_node("If", ["c"], ["i"], "choice", then_branch=inner[0], else_branch=inner[1]),
            helper.make_node("Exp", ["i"], ["y"]),
        ],
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8), str(tmp_path / "m.onnx"))
    found = split(tmp_path / "m.onnx", tmp_path / "parts", {"i": (4, 8)}, plugins=PLUGINS)
    assert [[n["name"] for n in s.get("nodes", ())] for s in found.order] == [[], ["choice"], []]
    assert [v["name"] for v in found.order[1]["inputs"]] == ["c", "h"]
