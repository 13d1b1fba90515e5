"""Small models, and what onnxruntime's quantiser makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["by_onnxruntime", "deep", "image", "recurrent", "series"]

CHANNELS = 8


def deep(layers: int = 6):
    """Convolutions and ReLUs, random weights, a product at the end."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = rng.standard_normal((CHANNELS, 3 if i == 0 else CHANNELS, 3, 3)).astype("float32") / 6
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        x = f"r{i}"
    weights["end"] = rng.standard_normal((CHANNELS, 64)).astype("float32")
    nodes += [
        helper.make_node("GlobalAveragePool", [x], ["pool"]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("MatMul", ["flat", "end"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 20, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Calibration:
    """One input, random."""

    def __init__(self, sample: dict[str, np.ndarray]) -> None:
        self.left = [sample]

    def get_next(self):
        return self.left.pop() if self.left else None


def image() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((1, 3, 20, 20)).astype("float32")}


def recurrent(op: str = "LSTM") -> onnx.ModelProto:
    """A recurrent operator in both directions and a product."""
    rng, gates = np.random.default_rng(0), {"LSTM": 4, "GRU": 3}[op]
    weights = {
        "W": rng.standard_normal((2, gates * 16, 12)).astype("float32") / 4,
        "R": rng.standard_normal((2, gates * 16, 16)).astype("float32") / 4,
        "B": rng.standard_normal((2, gates * 32)).astype("float32") / 4,
        "end": rng.standard_normal((16, 8)).astype("float32"),
    }
    graph = helper.make_graph(
        [
            helper.make_node(op, ["x", "W", "R", "B"], ["h"], hidden_size=16, direction="bidirectional"),
            helper.make_node("MatMul", ["h", "end"], ["y"]),
        ],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 1, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 2, 1, 8])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def series() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((5, 1, 12)).astype("float32")}


def by_onnxruntime(model: onnx.ModelProto, folder: Path, kind: str, **options: Any) -> onnx.ModelProto:
    """The model quantised: "dynamic", "qdq", or "operators", which is QLinearConv and its kin."""
    from onnxruntime import quantization as q

    plain, path = str(folder / "plain.onnx"), str(folder / f"{kind}.onnx")
    onnx.save(model, plain)
    if kind == "dynamic":
        q.quantize_dynamic(plain, path, **options)
    else:
        form = q.QuantFormat.QDQ if kind == "qdq" else q.QuantFormat.QOperator
        sample = image() if model.graph.name == "deep" else series()
        q.quantize_static(plain, path, Calibration(sample), quant_format=form, **options)
    return onnx.load(path)
