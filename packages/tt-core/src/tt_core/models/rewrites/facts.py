"""What is known of the values of a graph: arrays, element types, shapes, and names that stand for others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tt_core.models.rewrites import definitions
from tt_core.models.rewrites.node import RewriteError

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto

__all__ = ["Facts", "tensor"]

FOLD_MOST = 1 << 22
"""Elements of the largest constant that is computed from smaller ones."""

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
_GROWING = {"ConstantOfShape", "Expand", "Tile", "Range", "Pad", "EyeLike", "OneHot", "Resize"}
_FIX = "give it a value with --fix NAME=VALUE"


class Facts:
    """Facts about values, by name; `Graph` adds to them node by node.

    Args:
        opset: Version of ONNX's standard operators.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self._values: dict[str, np.ndarray] = {}
        self._types: dict[str, TypeProto] = {}
        self._alias: dict[str, str] = {}

    def value(self, name: str) -> np.ndarray | None:
        """The array of a value that is known, else None."""
        return self._values.get(self.resolved(name)) if name else None

    def known(self, name: str, what: str) -> np.ndarray:
        """The array of a value that must be known; `what` is how the message calls it."""
        found = self.value(name)
        if found is None:
            raise RewriteError(
                f"its {what} {name!r} is computed while the model runs; if it depends on an input, {_FIX}"
            )
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """The fixed shape of a value."""
        if (found := self.value(name)) is not None:
            return found.shape
        of = self._types.get(self.resolved(name))
        if of is None or not of.HasField("tensor_type") or not of.tensor_type.HasField("shape"):
            raise RewriteError(f"the shape of {name!r} is not known; if it depends on an input, {_FIX}")
        if any(not d.HasField("dim_value") for d in of.tensor_type.shape.dim):
            raise RewriteError(f"the shape of {name!r} depends on values; if they come from an input, {_FIX}")
        return tuple(int(d.dim_value) for d in of.tensor_type.shape.dim)

    def dtype(self, name: str) -> np.dtype:
        """The element type of a value."""
        from onnx import helper

        if (found := self.value(name)) is not None:
            return found.dtype
        of = self._types.get(self.resolved(name))
        if of is None or not of.tensor_type.elem_type:
            raise RewriteError(f"the element type of {name!r} is not known")
        return helper.tensor_dtype_to_np_dtype(of.tensor_type.elem_type)

    def has_type(self, name: str) -> bool:
        """Whether shape and element type of a value are known."""
        try:
            return self.shape(name) is not None and self.dtype(name) is not None
        except RewriteError:
            return False

    def type_of(self, name: str) -> TypeProto:
        """The type of a value as ONNX writes it, empty if nothing is known."""
        from onnx import TypeProto

        if (value := self._values.get(name)) is not None:
            return tensor(value.dtype, value.shape)
        return self._types.get(name) or TypeProto()

    def resolved(self, name: str) -> str:
        """The name of the value that a name stands for."""
        while name in self._alias:
            name = self._alias[name]
        return name

    # -- what follows from a node ---------------------------------------------------------------------------------

    def fold(self, proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
        """Learn the outputs of a standard node that are known without running the model; whether they are."""
        op = proto.op_type
        if op in ("Shape", "Size") and inputs[0] not in self._values:
            return self._fold_shape(proto, inputs[0], outputs[0])
        if op in _RANDOM or any(i and i not in self._values for i in inputs):
            return False
        if any(a.HasField("g") for a in proto.attribute):
            return False
        if op in _GROWING and self._result_size(proto, inputs, outputs) > FOLD_MOST:
            return False
        try:
            found = _evaluated(proto, inputs, outputs, self._values, self.opset)
        except Exception:  # onnx's reference raises many types; the importer has its own word on the node
            return False
        if not all(isinstance(f, np.ndarray | np.generic) for f in found):
            return False
        wanted = [o for o in outputs if o]
        self._values.update((o, np.asarray(f)) for o, f in zip(wanted, found, strict=True))
        return True

    def _fold_shape(self, proto: NodeProto, x: str, result: str) -> bool:
        try:
            shape = self.shape(x)
        except RewriteError:
            return False
        ends = {a.name: a.i for a in proto.attribute}
        part = shape[ends.get("start", 0) : ends.get("end", len(shape))]
        self._values[result] = np.array(math.prod(shape) if proto.op_type == "Size" else part, np.int64)
        return True

    def _result_size(self, proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> int:
        try:
            of = self._inferred(proto, inputs, outputs)[outputs[0]]
            return math.prod(d.dim_value for d in of.tensor_type.shape.dim)
        except Exception:  # onnx raises several types
            return 0

    def infer(self, proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Learn the types of a standard node's outputs, as far as ONNX can tell."""
        try:
            self._types.update(self._inferred(proto, inputs, outputs))
        except Exception:  # onnx raises several types; who needs the type will say so
            self._types.update(self._of_integers(proto, inputs, outputs))

    def _of_integers(self, proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, TypeProto]:
        """Types of an operator that ONNX has for floats only, as Conv, and TVM for int32 too."""
        from onnx import TensorProto

        of = {i: self.type_of(i) for i in inputs if i}
        if {t.tensor_type.elem_type for t in of.values()} != {TensorProto.INT32}:
            return {}
        try:
            found = self._inferred(proto, inputs, outputs, TensorProto.FLOAT)
        except Exception:  # as above
            return {}
        for made in found.values():
            made.tensor_type.elem_type = TensorProto.INT32
        return found

    def _inferred(
        self, proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str], element: int | None = None
    ) -> dict[str, TypeProto]:
        """Types by ONNX's inference; with `element` as if the inputs had that element type."""
        import onnx

        schema = definitions.schema(proto.op_type, self.opset)
        if schema is None:
            return {}
        node = onnx.NodeProto()
        node.CopyFrom(proto)
        node.input[:], node.output[:] = inputs, outputs
        data = {
            i: onnx.numpy_helper.from_array(self._values[i], i)
            for i in inputs
            if i in self._values and self._values[i].size <= 4096
        }
        types = {i: self.type_of(i) for i in inputs if i}
        if element is not None:
            data = {}
            for name, of in types.items():
                types[name] = onnx.TypeProto()
                types[name].CopyFrom(of)
                types[name].tensor_type.elem_type = element
        return onnx.shape_inference.infer_node_outputs(
            schema,
            node,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", self.opset)],
        )


def tensor(dtype: np.dtype, shape: Sequence[int]) -> TypeProto:
    """The type of a tensor as ONNX writes it."""
    from onnx import helper

    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), list(shape))


def _evaluated(
    proto: NodeProto, inputs: Sequence[str], outputs: Sequence[str], values: Mapping[str, np.ndarray], opset: int
) -> list[Any]:
    """The outputs of a node that have a name, by ONNX's reference implementation."""
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    if proto.op_type == "Constant":
        (a,) = proto.attribute
        if a.HasField("t"):
            return [numpy_helper.to_array(a.t)]
    node = type(proto)()
    node.CopyFrom(proto)
    node.input[:], node.output[:], node.domain = inputs, [o or "" for o in outputs], ""
    names = list(dict.fromkeys(i for i in inputs if i))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape)
            for n in names
        ],
        [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs if o],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, {n: values[n] for n in names}))
