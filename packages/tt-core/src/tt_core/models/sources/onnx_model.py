"""ONNX models: rewritten where TVM lacks an operator, simplified under fixed shapes by onnxslim, imported by TVM."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from tt_spec import Plugins

from tt_core.errors import ModelError, summary
from tt_core.models.model import FLOAT16_NOTE, Fixed, Input, Model
from tt_core.models.sources import shapes as shape_options

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

__all__ = ["OnnxFormat", "convert"]

Shapes = Mapping[str, tuple[int, ...]]


class OnnxFormat:
    """ONNX files, `.onnx`, weights that lie beside them included."""

    def read(
        self,
        path: Path,
        shapes: Mapping[str, tuple[int, ...]],
        plugins: Plugins | None = None,
        fix: Fixed | None = None,
    ) -> Model:
        """The model of a file; `plugins` may bring rewritings, `fix` gives inputs values."""
        onnx = _import("onnx")
        try:
            model = onnx.load(str(path))
        except Exception as e:  # protobuf, onnx and the operating system each raise their own types
            raise ModelError(f"{path} is not a usable ONNX model: {summary(e)}") from e
        return convert(model, path.stem, shapes, str(path), plugins=plugins, fix=fix)


def convert(
    model: ModelProto,
    name: str,
    shapes: Shapes,
    source: str | None = None,
    *,
    plugins: Plugins | None = None,
    fix: Fixed | None = None,
) -> Model:
    """The model of an `onnx.ModelProto`; `source` is what errors call it, `fix` gives inputs values."""
    source = source or name
    onnx, _ = _import("onnx"), _import("onnxslim")
    if not model.graph.node:
        raise ModelError(f"{source} has no operators: is it an ONNX model?")
    from tt_core.models.sources import fixed_inputs, half, onnx_peer

    values = fixed_inputs.values(model, fix or {}, source)
    whole, model = model, fixed_inputs.bound(model, values)
    weights = {w.name for w in model.graph.initializer}
    given = [i for i in model.graph.input if i.name not in weights]
    shape_options.known(shapes, [i.name for i in given])
    dims = {i.name: _dims(i, source) for i in given}
    fixed = {name: shape_options.fix(name, d, shapes) for name, d in dims.items()}
    shape_options.agree(dims, fixed)
    model = _with_ranks(model, fixed)
    try:
        onnx.checker.check_model(model)
    except Exception as e:  # onnx and protobuf each raise their own types
        raise ModelError(f"{source} is not a usable ONNX model: {summary(e)}") from e
    notes = []
    original = model
    if half.present(model):
        model, whole = half.to_float32(model), half.to_float32(whole)
        notes.append(FLOAT16_NOTE.format(source))
    from tt_core.models.sources.onnx_relax import to_relax
    from tt_core.models.sources.tvm_module import inputs_of

    found = to_relax(model, original, fixed, source, plugins)
    notes += found.notes
    left = [i.name for i in found.model.graph.input if i.name in fixed]
    notes += [f"input {n!r} of {source} has no use and is left out" for n in fixed if n not in left]
    # TVM may rename an input to what Relax allows; order and number are the file's
    inputs = tuple(Input(n, i.shape, i.dtype, i.below) for n, i in zip(left, inputs_of(found.mod), strict=True))
    if found.rewritten:  # whatever was done here is verified against the user's own file
        idle = {n: fixed[n] for n in fixed if n not in left}
        peer = onnx_peer.peer(whole, values | _zeros(whole, idle))
    else:
        peer = onnx_peer.peer(found.model, {})
    outputs = tuple(o.name for o in found.model.graph.output)
    return Model(name, found.mod, inputs, outputs, peer, tuple(notes))


def _zeros(model: ModelProto, shapes: Shapes) -> dict[str, np.ndarray]:
    """Values for inputs that nothing reads."""
    from onnx import helper

    types = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    return {n: np.zeros(shape, helper.tensor_dtype_to_np_dtype(types[n])) for n, shape in shapes.items()}


def _dims(value: ValueInfoProto, source: str) -> list[int | str] | None:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "nothing"
        raise ModelError(
            f"input {value.name!r} of {source} is a {kind.removesuffix('_type')}, only tensors can be given"
        )
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else (d.dim_param or "?")
        for d in value.type.tensor_type.shape.dim
    ]


def _with_ranks(model: ModelProto, fixed: Shapes) -> ModelProto:
    """The model with a shape for each input that has none, which ONNX's checker refuses; else the model itself."""
    bare = {i.name for i in model.graph.input if i.name in fixed and not i.type.tensor_type.HasField("shape")}
    if not bare:
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in bare:
            for size in fixed[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    return copy


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise ModelError(f"ONNX models need the package {name!r}: pip install 'tt-core[onnx]'") from e
