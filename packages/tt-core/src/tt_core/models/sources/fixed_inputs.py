"""Inputs that the user gives a value: `--fix NAME=VALUE`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from tt_spec import nearest

from tt_core.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

    from tt_core.models.model import Fixed, Value

__all__ = ["bound", "values"]


def values(model: ModelProto, fix: Fixed, source: str) -> dict[str, np.ndarray]:
    """The values to which the inputs of an `onnx.ModelProto` are fixed, in their element type and shape.

    Args:
        fix: By input name: an array, numbers, or text, "16000", "true" or "1,64,64".
    """
    weights = {w.name for w in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in weights}
    for name in fix:
        if name not in inputs:
            raise ModelError(f"--fix names {name!r}, which is no input of {source}{nearest(name, inputs)}")
    return {name: _array(name, given, inputs[name]) for name, given in fix.items()}


def bound(model: ModelProto, given: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of an `onnx.ModelProto` in which these inputs are constants; itself if there are none."""
    from onnx import numpy_helper

    if not given:
        return model
    copy = type(model)()
    copy.CopyFrom(model)
    for value in [i for i in copy.graph.input if i.name in given]:
        copy.graph.initializer.append(numpy_helper.from_array(given[value.name], value.name))
        copy.graph.input.remove(value)
    return copy


def _array(name: str, given: Value, declared: ValueInfoProto) -> np.ndarray:
    from onnx import helper

    if not declared.type.HasField("tensor_type"):
        raise ModelError(f"--fix {name}: only a tensor can be given a value")
    of = declared.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(of.elem_type)
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in of.shape.dim] if of.HasField("shape") else None
    try:
        numbers = [_number(p) for p in given.split(",")] if isinstance(given, str) else given
        value = np.asarray(numbers)
        exact = value.astype(dtype)
        if value.dtype.kind in "if" and not np.array_equal(exact.astype(value.dtype), value) and dtype.kind in "iub":
            raise ValueError(f"{given} is no {dtype}")
    except (TypeError, ValueError, OverflowError) as e:
        raise ModelError(
            f"--fix {name}={given}: give {dtype} numbers separated by commas, e.g. --fix {name}=1: {e}"
        ) from e
    if dims is None or (exact.ndim == len(dims) and not isinstance(given, str)):
        shape = exact.shape if dims is None or 0 in dims else tuple(dims)
    else:
        shape = tuple(d or (exact.size if dims.count(0) == 1 and len(dims) == 1 else 1) for d in dims)
    if exact.size != int(np.prod(shape, dtype=np.int64)):
        wanted = ",".join(map(str, shape)) or "no dimension"
        raise ModelError(f"--fix {name}={given} has {exact.size} values, the input has the shape {wanted}")
    return exact.reshape(shape)


def _number(text: str) -> float | int | bool:
    word = text.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    try:
        return int(word)
    except ValueError:
        return float(word)
