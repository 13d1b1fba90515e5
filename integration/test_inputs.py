"""Every kind of input, from a file to a verified library: few trials of one operator, the whole model verified."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tt_core

from .conftest import events

FEW: dict[str, Any] = {"trials": 2, "recipe": "random", "set": ["batch=2"], "history": None}


def tuned(here: Any, model: str, *options: str) -> tuple[dict[str, Any], list[str]]:
    """The result of `tt tune MODEL`, and what was said."""
    few = ("--trials", "2", "--recipe", "random", "--set", "batch=2", "--json")
    found = events(here("tune", model, *few, "--out", "out.so", *options).stdout)
    return found[-1], [e["text"] for e in found if e["event"] == "note"]


def test_a_pytorch_program_is_verified_against_pytorch(tmp_path, kept):
    import torch
    from tt_core.compiler.runtime import Runner

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.out = torch.nn.Embedding(1000, 32), torch.nn.Linear(32, 16)

        def forward(self, ids, features):
            y = self.out(self.rows(ids) + features)
            return y, torch.softmax(y, -1)

    batch = torch.export.Dim("batch", min=1, max=64)
    example = (torch.zeros(2, 8, dtype=torch.int64), torch.zeros(2, 8, 32))
    program = torch.export.export(Net().eval(), example, dynamic_shapes={"ids": {0: batch}, "features": {0: batch}})
    torch.export.save(program, str(tmp_path / "net.pt2"))
    shapes = {"ids": (4, 8), "features": (4, 8, 32)}
    out = tmp_path / "out.so"
    result = tt_core.tune(tmp_path / "net.pt2", shapes=shapes, tasks="matmul*", out=out, **FEW)
    assert set(result.verified) == {"the untuned program", "PyTorch"}
    sidecar = json.loads((tmp_path / "out.so.json").read_text())
    assert sidecar["inputs"] == [
        {"name": "ids", "shape": [4, 8], "dtype": "int64", "below": 1000},
        {"name": "features", "shape": [4, 8, 32], "dtype": "float32"},
    ]
    ids = Runner(out).random_inputs()["ids"]
    assert 500 < ids.max() < 1000


def test_float16_token_ids_a_batch_and_several_outputs_in_one_onnx_file(here, tmp_path):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    half = TensorProto.FLOAT16
    weights = {"table": rng.standard_normal((500, 32)), "w": rng.standard_normal((32, 16)) / 6}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Mul", ["rows", "gate"], ["gated"]),
        helper.make_node("MatMul", ["gated", "w"], ["y"]),
        helper.make_node("Softmax", ["y"], ["p"], axis=-1),
    ]
    inputs = [("ids", TensorProto.INT64, ["n", 8]), ("gate", half, ["n", 8, 32])]
    outputs = [("y", half, ["n", 8, 16]), ("p", half, ["n", 8, 16])]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(*v) for v in inputs],
        [helper.make_tensor_value_info(*v) for v in outputs],
        [numpy_helper.from_array(w.astype("float16"), n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "net.onnx"))
    result, said = tuned(here, "net.onnx", "--shape", "ids=4,8", "--shape", "gate=4,8,32", "--tasks", "matmul*")
    assert set(result["verified"]) == {"the untuned program", "onnxruntime"}
    assert sum("float16" in text for text in said) == 1
    sidecar = json.loads((tmp_path / "out.so.json").read_text())
    assert [(i["dtype"], i.get("below")) for i in sidecar["inputs"]] == [("int64", 500), ("float16", None)]
    assert sidecar["outputs"] == ["y", "p"]


def test_a_tvmscript_operator_of_two_outputs(tmp_path, kept):
    path = tmp_path / "halves.py"
    path.write_text(
        """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def halves(x: T.Buffer((64, 128), "float32"), a: T.Buffer((64, 64), "float32"), b: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.sblock("first"):
            u, v = T.axis.remap("SS", [i, j])
            a[u, v] = x[u, v] * T.float32(2)
    for i, j in T.grid(64, 64):
        with T.sblock("second"):
            u, v = T.axis.remap("SS", [i, j])
            b[u, v] = x[u, v + 64] + T.float32(1)
"""
    )
    result = tt_core.tune(path, out=tmp_path / "out.so", **FEW)
    assert [t.name for t in result.tasks] == ["halves"]
    assert set(result.verified) == {"the untuned program"}
    sidecar = json.loads((tmp_path / "out.so.json").read_text())
    assert sidecar["outputs"] == ["output_0", "output_1"]


@pytest.mark.slow
def test_the_recogniser_with_its_dynamic_width_verifies(here):
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    assert found is not None and found.origin is not None, "pip install rapidocr-onnxruntime"
    path = str(Path(found.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx")
    result, _ = tuned(here, path, "--shape", "x=1,3,48,96", "--tasks", "matmul_add*")
    assert set(result["verified"]) == {"the untuned program", "onnxruntime"}
    assert result["after_s"] > 0
