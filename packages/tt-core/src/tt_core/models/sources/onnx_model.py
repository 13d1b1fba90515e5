"""ONNX models: rewritten where TVM lacks an operator, simplified under fixed shapes by onnxslim, imported by TVM."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from tt_spec import Plugins

from tt_core.compiler.arrays import random_array
from tt_core.errors import ModelError, summary
from tt_core.models.model import FLOAT16_NOTE, Fixed, Input, Model, Peer
from tt_core.models.rewrites.apply import nodes
from tt_core.models.sources import shapes as shape_options
from tt_core.models.subgraphs import with_subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

__all__ = ["OnnxFormat", "bound", "convert", "read"]

Shapes = Mapping[str, tuple[int, ...]]


class OnnxFormat:
    """ONNX files, `.onnx`, weights that lie beside them included."""

    def read(
        self,
        path: Path,
        shapes: Mapping[str, tuple[int, ...]],
        plugins: Plugins | None = None,
        fix: Fixed | None = None,
        precision: str = "exact",
    ) -> Model:
        """The model of a file; `plugins` may bring rewritings, `fix` gives inputs values, `precision` says whether a
        quantised one is computed in float32."""
        return convert(read(path), path.stem, shapes, str(path), plugins=plugins, fix=fix, precision=precision)


MOST_BYTES, MOST_NODES = 2**31 - 1, 100_000
"""Bounds of a file: protobuf's own, its weights beside it not counted, and ten times the largest graph known to us."""


def read(path: Path) -> ModelProto:
    """The `onnx.ModelProto` of a file."""
    onnx = _import("onnx")
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ModelError(
                f"{path} has {size} bytes: an ONNX file has {MOST_BYTES} at most, larger weights lie beside it"
            )
        model = onnx.load(str(path), load_external_data=False)
        if (many := sum(1 for _ in nodes(model.graph))) > MOST_NODES:
            raise ModelError(f"{path} has {many} operators, {MOST_NODES} at most can be tuned")
        onnx.load_external_data_for_model(model, str(path.parent))
        for tensor in _tensors(model.graph):
            _check_bytes(path, tensor)
    except ModelError:
        raise
    except Exception as e:  # protobuf, onnx and the operating system each raise their own types
        raise ModelError(f"{path} is not a usable ONNX model: {summary(e)}") from e
    return model


def _check_bytes(path: Path, tensor: TensorProto) -> None:
    try:
        _import("onnx.numpy_helper").to_array(tensor)
    except Exception as e:  # onnx and numpy each raise their own types
        what = f"the bytes of weight {tensor.name[:80]!r} do not fit its shape {list(tensor.dims)}: {summary(e)}"
        raise ModelError(f"{path} is not a usable ONNX model: {what}") from e


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Weights and constants, those of branches and loop bodies too."""
    for inside in with_subgraphs(graph):
        yield from inside.initializer
        for attribute in (a for node in inside.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def bound(model: ModelProto, fix: Fixed, source: str) -> ModelProto:
    """A model in which these inputs are constants."""
    from tt_core.models.sources import fixed_inputs

    return fixed_inputs.bound(model, fixed_inputs.values(model, fix, source))


def convert(
    model: ModelProto,
    name: str,
    shapes: Shapes,
    source: str | None = None,
    *,
    plugins: Plugins | None = None,
    fix: Fixed | None = None,
    precision: str = "exact",
) -> Model:
    """The model of an `onnx.ModelProto`; `source` is what errors call it, `fix` gives inputs values."""
    source = source or name
    _import("onnx")
    _import("onnxslim")
    if not model.graph.node:
        raise ModelError(f"{source} has no operators: is it an ONNX model?")
    from tt_core.models.sources import fixed_inputs, float_form, half, onnx_peer

    values = fixed_inputs.values(model, fix or {}, source)
    whole, model = model, fixed_inputs.bound(model, values)
    model, fixed = _with_shapes(model, shapes, source)
    notes = []
    original = model
    if half.present(model):
        model, whole = half.to_float32(model), half.to_float32(whole)
        notes.append(FLOAT16_NOTE.format(source))
    exact, rest = whole, values
    form = float_form.in_float32(model) if precision == "float32" else None
    if form is not None:
        model, whole, values = form, form, {}
    elif precision == "float32":
        notes.append(f"{source} has nothing quantised: --precision float32 changes nothing")
    from tt_core.models.sources.onnx_relax import to_relax
    from tt_core.models.sources.tvm_module import inputs_of

    found = to_relax(model, original, fixed, source, plugins)
    notes += found.notes
    left = [i.name for i in found.model.graph.input if i.name in fixed]
    notes += [f"input {n!r} of {source} has no use and is left out" for n in fixed if n not in left]
    # TVM may rename an input to what Relax allows; order and number are the file's
    inputs = tuple(Input(n, i.shape, i.dtype, i.below) for n, i in zip(left, inputs_of(found.mod), strict=True))
    idle = {n: fixed[n] for n in fixed if n not in left}
    # whatever was done here is verified against the user's own file
    peer = onnx_peer.peer(whole, values | _zeros(whole, idle)) if found.rewritten else onnx_peer.peer(found.model, {})
    outputs = tuple(o.name for o in found.model.graph.output)
    made = Model(name, found.mod, inputs, outputs, peer, tuple(notes))
    return made if form is None else _in_float32(made, onnx_peer.peer(exact, rest | _zeros(exact, idle)))


def _with_shapes(model: ModelProto, shapes: Shapes, source: str) -> tuple[ModelProto, dict[str, tuple[int, ...]]]:
    """The model, checked, and the fixed shapes of its inputs."""
    onnx = _import("onnx")
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
    return model, fixed


def _in_float32(model: Model, exact: Peer) -> Model:
    """A model in float32, with what that changes on the inputs that it will be verified on."""
    from tt_core.models.sources.onnx_peer import changes

    rng, found = np.random.default_rng(0), {}
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in model.inputs}
    notes = ["computed in float32"]
    try:
        found = changes(exact, model.peer, model.outputs, inputs) if model.peer else {}
    except Exception as e:  # onnxruntime raises its own types
        notes.append(f"onnxruntime cannot say what float32 changes: {summary(e)}")
    notes += [
        f"output {name!r} differs from the model's own arithmetic by {c.largest:.1e} of its largest magnitude"
        f" at most, {c.mean:.1e} on average"
        for name, c in found.items()
    ]
    return replace(model, precision="float32", change=found, notes=(*model.notes, *notes))


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
