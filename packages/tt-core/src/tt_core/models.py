"""Models in: ONNX files, the zoo, single operators, TVM modules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import PluginError, Plugins, nearest

from tt_core.errors import ModelError, summary

__all__ = ["Input", "Model", "load"]


@dataclass(frozen=True)
class Input:
    """One input: name, shape and dtype as numpy writes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Model:
    """An imported model.

    Args:
        name: For file names and people.
        mod: Relax module; constants inside, inputs as parameters of "main".
        onnx: The simplified ONNX file's bytes where the model came from one, for verification by onnxruntime.
    """

    name: str
    mod: Any
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    onnx: bytes | None = None


def load(source: Any, shapes: Mapping[str, Sequence[int]] | None = None, plugins: Plugins | None = None) -> Model:
    """Import a model.

    Args:
        source: Path of an ONNX file, a name of the zoo, "op:conv2d:1,64,56,64,3,1,1", an `onnx.ModelProto`, or a Relax
            `IRModule` with constants bound.
        shapes: Fixed shapes by input name, for files with dynamic dimensions.

    Raises:
        ModelError: With what came and what to do.
    """
    shapes = dict(shapes or {})
    if isinstance(source, str) and source.startswith("op:"):
        from tt_core import ops

        if shapes:
            raise ModelError(f"{source} has its shape in its name: leave --shape out")
        return ops.build(source)
    if isinstance(source, str | Path):
        plugins = plugins or Plugins()
        if str(source) in plugins.names("model"):
            try:
                return load(plugins.build("model", str(source)), shapes, plugins)
            except PluginError as e:
                raise ModelError(str(e)) from e
        path = Path(source)
        if not os.path.exists(path):  # unlike pathlib's, it takes any text
            known = [*plugins.names("model"), "op:conv2d:…"]
            raise ModelError(f"no file and no known model is called {str(source)!r}{nearest(str(source), known)}")
        if path.is_dir():
            raise ModelError(f"{path} is a folder: give the model file in it")
        if not path.is_file():
            raise ModelError(f"{path} is no regular file: a model is read from one")
        return _from_onnx(_read_onnx(path), path.stem, shapes)
    if type(source).__name__ == "ModelProto":
        return _from_onnx(source, source.graph.name or "model", shapes)
    import tvm

    if isinstance(source, tvm.IRModule):
        return _from_relax(source)
    raise ModelError(f"cannot import a {type(source).__name__}: give an ONNX file, a name, op:…, or a Relax IRModule")


def _from_relax(mod: Any) -> Model:
    try:
        main = mod["main"]
    except Exception as e:  # TVM's own types
        raise ModelError('the IRModule has no function "main"') from e
    inputs = []
    for p in main.params:
        try:
            shape = tuple(int(d) for d in p.ty.shape.values)
        except (TypeError, AttributeError) as e:
            raise ModelError(f"input {p.name!r} of the IRModule has no fixed shape: {p.ty}") from e
        inputs.append(Input(str(p.name), shape, str(p.ty.dtype)))
    parts = getattr(main.ret_ty, "fields", None)
    outputs = ("output",) if parts is None else tuple(f"output_{i}" for i in range(len(parts)))
    return Model("module", mod, tuple(inputs), outputs)


def _read_onnx(path: Path) -> Any:
    onnx = _import("onnx")
    if path.suffix.lower() not in (".onnx", ".ort", ""):
        raise ModelError(f"{path.name}: files of kind {path.suffix!r} are not supported: give an ONNX file (.onnx)")
    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as e:  # protobuf, onnx and the operating system each raise their own types
        raise ModelError(f"{path} is not a usable ONNX model: {summary(e)}") from e
    if not model.graph.node:
        raise ModelError(f"{path} has no operators: is it an ONNX model?")
    return model


def _from_onnx(model: Any, name: str, shapes: dict[str, Sequence[int]]) -> Model:
    onnxslim = _import("onnxslim")
    _import("onnx")
    weights = {w.name for w in model.graph.initializer}
    given = [i for i in model.graph.input if i.name not in weights]
    fixed = {i.name: _fixed_shape(i, shapes) for i in given}
    for extra in sorted(set(shapes) - set(fixed)):
        raise ModelError(f"--shape names {extra!r}, which is no input{nearest(extra, fixed)}")
    try:
        slim = onnxslim.slim(
            model, input_shapes=[f"{n}:{','.join(map(str, s))}" for n, s in fixed.items() if s], model_check=False
        )
    except Exception as e:
        raise ModelError(f"onnxslim cannot simplify {name} under {_shapes_text(fixed)}: {summary(e)}") from e
    try:
        from tvm.relax.frontend.onnx import from_onnx

        mod = from_onnx(slim, shape_dict={n: list(s) for n, s in fixed.items()}, keep_params_in_input=False)
    except Exception as e:
        raise ModelError(f"TVM cannot import {name} under {_shapes_text(fixed)}: {summary(e)}") from e
    import onnx

    left = [i for i in slim.graph.input if i.name in fixed]
    inputs = tuple(
        Input(
            i.name,
            tuple(fixed[i.name]),
            str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))),
        )
        for i in left
    )
    return Model(name, mod, inputs, tuple(o.name for o in slim.graph.output), slim.SerializeToString())


def _fixed_shape(value: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    if not value.type.tensor_type.HasField("shape"):
        if value.name in shapes and all(int(d) > 0 for d in shapes[value.name]):
            return tuple(int(d) for d in shapes[value.name])
        raise ModelError(
            f"input {value.name!r} has no shape in the file: give one, e.g. --shape {value.name}=1,3,224,224"
        )
    dims = [
        d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else (d.dim_param or "?")
        for d in value.type.tensor_type.shape.dim
    ]
    text = ",".join(map(str, dims))
    if value.name in shapes:
        shape = tuple(int(d) for d in shapes[value.name])
        if len(shape) != len(dims):
            raise ModelError(
                f"--shape {value.name}={','.join(map(str, shape))} has {len(shape)} dimensions, the input has"
                f" {len(dims)}: [{text}]"
            )
        wrong = [(d, s) for d, s in zip(dims, shape, strict=True) if isinstance(d, int) and d != s]
        if wrong:
            raise ModelError(
                f"--shape {value.name}={','.join(map(str, shape))} contradicts the file, which fixes [{text}]"
            )
        if any(d < 1 for d in shape):
            raise ModelError(f"--shape {value.name}: every dimension must be positive, got {shape}")
        return shape
    if all(isinstance(d, int) for d in dims):
        return tuple(int(d) for d in dims)
    example = ",".join(str(d) if isinstance(d, int) else "1" if i == 0 else "224" for i, d in enumerate(dims))
    raise ModelError(
        f"input {value.name!r} has no fixed shape, it is [{text}]: add e.g. --shape {value.name}={example}"
    )


def _shapes_text(shapes: Mapping[str, Sequence[int]]) -> str:
    return " ".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items()) or "no shapes"


def _import(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        raise ModelError(f"ONNX models need the package {name!r}: pip install 'tt-core[onnx]'") from e
