"""ONNX models: simplified under fixed shapes by onnxslim, imported by TVM."""

from __future__ import annotations

import functools
import importlib
import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from tt_core.errors import ModelError, summary
from tt_core.models.model import FLOAT16_NOTE, Input, Model, Peer
from tt_core.models.sources import shapes as shape_options

__all__ = ["OnnxFormat", "convert"]

Shapes = Mapping[str, tuple[int, ...]]


class OnnxFormat:
    """ONNX files, `.onnx`, weights that lie beside them included."""

    def read(self, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Model:
        """The model of a file, weights that lie beside it included."""
        onnx = _import("onnx")
        try:
            model = onnx.load(str(path))
        except Exception as e:  # protobuf, onnx and the operating system each raise their own types
            raise ModelError(f"{path} is not a usable ONNX model: {summary(e)}") from e
        return convert(model, path.stem, shapes, str(path))


def convert(model: Any, name: str, shapes: Shapes, source: str | None = None) -> Model:
    """The model of an `onnx.ModelProto`; `source` is what errors call it."""
    source = source or name
    onnx, onnxslim = _import("onnx"), _import("onnxslim")
    if not model.graph.node:
        raise ModelError(f"{source} has no operators: is it an ONNX model?")
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
    under = f"{source} under {shape_options.shown(fixed)}"
    notes = []
    from tt_core.models.sources import half

    original = model
    if half.present(model):
        model = half.to_float32(model)
        notes.append(FLOAT16_NOTE.format(source))
    try:
        slim = onnxslim.slim(
            model, input_shapes=[f"{n}:{','.join(map(str, s))}" for n, s in fixed.items() if s], model_check=False
        )
    except Exception as e:
        raise ModelError(f"onnxslim cannot simplify {under}: {summary(e)}") from e
    mod = _to_relax(slim, original, fixed, source, under)
    from tt_core.models.sources.tvm_module import inputs_of

    left = [i.name for i in slim.graph.input if i.name in fixed]
    notes += [f"input {n!r} of {source} has no use and is left out" for n in fixed if n not in left]
    # TVM may rename an input to what Relax allows; order and number are the file's
    inputs = tuple(Input(n, i.shape, i.dtype, i.below) for n, i in zip(left, inputs_of(mod), strict=True))
    peer = Peer("onnxruntime", functools.partial(_onnxruntime, slim.SerializeToString()))
    return Model(name, mod, inputs, tuple(o.name for o in slim.graph.output), peer, tuple(notes))


def _dims(value: Any, source: str) -> list[int | str] | None:
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


def _with_ranks(model: Any, fixed: Shapes) -> Any:
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


def _to_relax(slim: Any, original: Any, fixed: Shapes, source: str, under: str) -> Any:
    from tvm.relax.frontend.onnx import from_onnx

    _refuse_unsupported(slim, original, source)
    try:
        with redirect_stdout(io.StringIO()):  # the importer prints what it fails at, many lines of it
            return from_onnx(slim, shape_dict={n: list(s) for n, s in fixed.items()}, keep_params_in_input=False)
    except Exception as e:
        node = _node_in_hand(e)
        where = "" if node is None else f" at the {node.op_type}, {_place(node, original)}"
        raise ModelError(f"TVM cannot import {under}{where}: {summary(e)}{'' if node is None else _ADVICE}") from e


_DOMAINS = ("", "ai.onnx", "com.microsoft")
_ADVICE = (
    "; export the model so that it does without, e.g. with another opset, or cut it there (onnx.utils.extract_model)"
    " and tune the rest"
)


def _refuse_unsupported(slim: Any, original: Any, source: str) -> None:
    """Name every operator that TVM's importer has no conversion for, and its first node in the user's file."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    supported = {*_get_convert_map(), "If", "Constant"}
    lacking = [n for n in _nodes(slim.graph) if n.op_type not in supported or n.domain not in _DOMAINS]
    first: dict[str, Any] = {}
    for node in sorted(lacking, key=lambda n: _number(n, original) or 0):
        first.setdefault(f"{node.domain}.{node.op_type}".lstrip("."), node)
    if first:
        kinds = "operators" if len(first) > 1 else "operator"
        places = "; ".join(f"{kind} at {_place(node, original)}" for kind, node in first.items())
        raise ModelError(f"TVM has no import for the {kinds} of {source}: {places}{_ADVICE}")


def _nodes(graph: Any) -> Iterator[Any]:
    """Nodes in the file's order, those of branches and loop bodies behind the node that holds them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _nodes(inner)


def _place(node: Any, original: Any) -> str:
    """`node 17 'Conv_3' -> out`, counted from 0 in the user's file."""
    number = _number(node, original)
    outputs = ", ".join(o for o in node.output if o)
    return f"{'a node' if number is None else f'node {number}'} {node.name!r} -> {outputs}"


def _number(node: Any, original: Any) -> int | None:
    """Where a node stands in the user's file; None if simplifying made it, with outputs of its own."""
    outputs = {o for o in node.output if o}
    return next((i for i, n in enumerate(_nodes(original.graph)) if outputs & set(n.output)), None)


def _node_in_hand(e: BaseException) -> Any:
    """The node that TVM's importer was at when it raised: a local variable of its loop over the nodes."""
    trace, found = e.__traceback__, None
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        if hasattr(node, "op_type"):
            found = node
        trace = trace.tb_next
    return found


def _onnxruntime(data: bytes, inputs: dict[str, np.ndarray]) -> list[list[np.ndarray]]:
    """The outputs of onnxruntime, with its optimisations and without."""
    try:
        import onnxruntime
    except ImportError:
        return []
    onnxruntime.set_default_logger_severity(3)
    levels = onnxruntime.GraphOptimizationLevel
    results = []
    for level in (levels.ORT_ENABLE_ALL, levels.ORT_DISABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        results.append(session.run(None, inputs))
    return results


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise ModelError(f"ONNX models need the package {name!r}: pip install 'tt-core[onnx]'") from e
