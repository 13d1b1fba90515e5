"""Files that try to harm whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FILES", "chain", "harmless"]


def _model(nodes: list[onnx.NodeProto], *weights: onnx.TensorProto) -> bytes:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("x", "y"))
    graph = helper.make_graph(nodes, "g", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def harmless(folder: Path) -> Path:
    """A product with weights in a file beside the model."""
    weights = np.arange(16, dtype=np.float32).reshape(4, 4)
    (folder / "weights.bin").write_bytes(weights.tobytes())
    path = folder / "model.onnx"
    path.write_bytes(_model([helper.make_node("MatMul", ["x", "w"], ["y"])], _outside("weights.bin", [4, 4])))
    return path


def chain(folder: Path, many: int) -> Path:
    """So many operators, one after the other: each costs some milliseconds."""
    names = ["x", *(f"v{i}" for i in range(1, many)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    path = folder / "chain.onnx"
    path.write_bytes(_model(nodes))
    return path


def _outside(place: str, shape: list[int]) -> onnx.TensorProto:
    """A weight that lies in another file."""
    tensor = TensorProto(name="w", dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", place), ("offset", "0"), ("length", str(4 * int(np.prod(shape))))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def _huge(operator: str) -> Callable[[Path], bytes]:
    """A constant of 10^12 elements, made by an operator."""

    def make(folder: Path) -> bytes:
        shape = numpy_helper.from_array(np.array([10**6, 10**6], np.int64), "shape")
        one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
        inputs = ["shape"] if operator == "ConstantOfShape" else ["one", "shape"]
        nodes = [
            helper.make_node(operator, inputs, ["huge"]),
            helper.make_node("ReduceMax", ["huge"], ["most"], keepdims=0),
            helper.make_node("Add", ["x", "most"], ["y"]),
        ]
        return _model(nodes, shape, *([] if operator == "ConstantOfShape" else [one]))

    return make


def _claims(folder: Path) -> bytes:
    weight = TensorProto(name="w", dims=[10**6, 10**6], data_type=TensorProto.FLOAT, raw_data=b"\0" * 16)
    return _model([helper.make_node("Add", ["x", "w"], ["y"])], weight)


def _million(folder: Path) -> bytes:
    """10^6 operators; made of bytes, a second as `onnx` makes them."""
    node = b"".join(_field(1, _field(1, b"x") + _field(2, b"y") + _field(4, b"Relu")) for _ in range(1000)) * 1000
    return b"\x08\x08" + _field(7, node) + _field(8, b"\x10\x11")


def _reads(place: str) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        (folder.parent / "secret.bin").write_bytes(bytes(16))
        link = folder / "link.bin"
        if not link.is_symlink():
            link.symlink_to(folder.parent / "secret.bin")
        return _model([helper.make_node("Add", ["x", "w"], ["y"])], _outside(place, [1, 4]))

    return make


def _deep(folder: Path) -> bytes:
    """Branches in branches, 3,000 times."""
    graph = b""
    for _ in range(3000):
        branch = _field(1, b"then_branch") + _field(6, graph) + b"\xa0\x01\x05"
        graph = _field(1, _field(1, b"c") + _field(2, b"y") + _field(4, b"If") + _field(5, branch)) + _field(2, b"g")
    return b"\x08\x08" + _field(7, graph) + _field(8, b"\x10\x11")


def _two_gigabytes(folder: Path) -> bytes:
    return b"\x08\x08\x3a\xff\xff\xff\xff\x07" + bytes(100)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's form."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


FILES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "10^12 constants": (_huge("ConstantOfShape"), "1000000x1000000 elements"),
    "10^12 copies": (_huge("Expand"), "1000000x1000000 elements"),
    "10^12 claimed": (_claims, "do not fit its shape"),
    "10^6 operators": (_million, "1000000 operators"),
    "a file outside": (_reads("../secret.bin"), "outside"),
    "a file by its whole name": (_reads("/etc/hostname"), "relative path"),
    "a link": (_reads("link.bin"), "link"),
    "deep nesting": (_deep, "DecodeError"),
    "2 GB claimed": (_two_gigabytes, "DecodeError"),
}
"""By name: what makes the file's bytes in a folder, and what the error says."""
