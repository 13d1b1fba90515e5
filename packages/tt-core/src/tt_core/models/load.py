"""Models in: files, names of the zoo, single operators, objects of other libraries."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tt_spec import PluginError, Plugins, nearest

from tt_core.errors import ModelError
from tt_core.models.model import Fixed, Model

__all__ = ["PRECISIONS", "load"]

PRECISIONS = ("exact", "float32")
"""How a quantised model is computed: by its own arithmetic, or in float32 with dequantised weights."""


def load(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    plugins: Plugins | None = None,
    fix: Fixed | None = None,
    precision: str = "exact",
) -> Model:
    """Import a model.

    Args:
        source: Path of an ONNX (.onnx), PyTorch (.pt2) or TVMScript (.py) file; a name of the zoo, "resnet18@8" for a
            batch of 8; "op:conv2d:1,64,56,64,3,1,1" or "op:C2D:1"; an `onnx.ModelProto`, a
            `torch.export.ExportedProgram`, a TIR `PrimFunc`, or a Relax `IRModule` with constants bound.
        shapes: Fixed shapes by input name, for dynamic dimensions.
        fix: Values by input name, as numbers, arrays or text ("16000", "1,2"): such an input becomes a constant. Of
            ONNX models only.
        precision: "exact", or "float32" for a quantised ONNX model to be computed so.

    Raises:
        ModelError: With what came and what to do.
    """
    fixed = {name: tuple(int(d) for d in shape) for name, shape in (shapes or {}).items()}
    plugins = plugins or Plugins()
    if fix or precision != "exact":
        return _onnx(source, fixed, plugins, fix or {}, precision)
    if isinstance(source, str) and source.startswith("op:"):
        from tt_core.models import ops

        if fixed:
            raise ModelError(f"{source} has its shape in its name: omit --shape")
        return ops.build(source)
    if isinstance(source, str | Path):
        name, at, batch = str(source).partition("@")
        if name in plugins.names("model") and name not in _formats(plugins):
            return _from_zoo(name, batch if at else None, fixed, plugins)
        return _from_file(Path(source), fixed, plugins)
    return _from_object(source, fixed, plugins)


def _onnx(source: Any, shapes: dict[str, tuple[int, ...]], plugins: Plugins, fix: Fixed, precision: str) -> Model:
    """An ONNX model, some of its inputs made constants, or computed in float32."""
    from tt_core.models.sources import onnx_model

    if precision not in PRECISIONS:
        raise ModelError(f"--precision is {' or '.join(PRECISIONS)}, got {precision!r}")

    if isinstance(source, str | Path):
        if Path(source).suffix.lower() == ".onnx" and Path(source).is_file():
            return onnx_model.OnnxFormat().read(Path(source), shapes, plugins, fix, precision)
    elif any(f"{t.__module__.split('.')[0]}.{t.__name__}" == "onnx.ModelProto" for t in type(source).__mro__):
        name = source.graph.name or "model"
        return onnx_model.convert(source, name, shapes, plugins=plugins, fix=fix, precision=precision)
    if precision != "exact":
        raise ModelError(f"--precision float32: only a quantised ONNX model can be computed so, {source} is none")
    raise ModelError(f"--fix {next(iter(fix))}: only an input of an ONNX model can be given a value, {source} is none")


def _from_zoo(name: str, batch: str | None, shapes: dict[str, tuple[int, ...]], plugins: Plugins) -> Model:
    if batch is not None and not (batch.isdecimal() and int(batch) > 0):
        raise ModelError(f"{name}@{batch}: a batch is a positive whole number, e.g. {name}@8")
    built = _built(name, plugins, **({} if batch is None else {"batch": int(batch)}))
    try:
        model = load(built, shapes, plugins)
        return model if batch is None else replace(model, name=f"{name}@{batch}")
    except ModelError as e:
        if shapes and batch is None:
            raise ModelError(f"{e}; another batch of {name} is {name}@8") from e
        raise


def _from_file(path: Path, shapes: dict[str, tuple[int, ...]], plugins: Plugins) -> Model:
    if not os.path.exists(path):  # unlike pathlib's, it takes any text
        known = [*(n for n in plugins.names("model") if n not in _formats(plugins)), "op:conv2d:…"]
        raise ModelError(f"no file and no known model is called {str(path)!r}{nearest(str(path), known)}")
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give the model file in it")
    if not path.is_file():
        raise ModelError(f"{path} is not a regular file: a model is read from one")
    suffix = path.suffix.lower() or ".onnx"
    if suffix in plugins.names("model"):
        found = _built(suffix, plugins).read(path, shapes, plugins)
        return found if isinstance(found, Model) else replace(load(found, shapes, plugins), name=path.stem)
    formats = [f"{name} ({plugins.find('model', name).entry.summary})" for name in _formats(plugins)]
    hint = ""
    if suffix in (".pt", ".pth"):
        hint = "; from PyTorch: torch.export.save(torch.export.export(model, (example,)), 'model.pt2')"
    raise ModelError(f"{path.name}: files of kind {path.suffix!r} are not supported: give {', '.join(formats)}{hint}")


def _formats(plugins: Plugins) -> list[str]:
    """Suffixes of the file formats that are installed."""
    return [name for name in plugins.names("model") if name.startswith(".")]


def _built(name: str, plugins: Plugins, **options: Any) -> Any:
    try:
        return plugins.build("model", name, **options)
    except PluginError as e:
        raise ModelError(str(e)) from e


def _from_object(source: Any, shapes: dict[str, tuple[int, ...]], plugins: Plugins) -> Model:
    kinds = {f"{t.__module__.split('.')[0]}.{t.__name__}" for t in type(source).__mro__}
    if "onnx.ModelProto" in kinds:
        from tt_core.models.sources import onnx_model

        return onnx_model.convert(source, source.graph.name or "model", shapes, plugins=plugins)
    if "torch.ExportedProgram" in kinds:
        from tt_core.models.sources import exported_program

        return exported_program.convert(source, "model", shapes)
    if "torch.Module" in kinds:
        raise ModelError(
            f"{type(source).__name__} is a PyTorch module without example inputs: give"
            " torch.export.export(module, (example,))"
        )
    import tvm

    from tt_core.models.sources import tvm_module

    if isinstance(source, tvm.IRModule):
        return tvm_module.convert(source, "module", shapes)
    if isinstance(source, tvm.tirx.PrimFunc):
        return tvm_module.operator(source, "operator")
    raise ModelError(
        f"cannot import a {type(source).__name__}: give a file (.onnx, .pt2, .py), a name, op:…, an ONNX model, a"
        " PyTorch exported program, or a TVM module"
    )
