"""onnxruntime and OpenVINO on the same model, inputs and threads, to be timed in turns with a file of ours."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["onnxruntime_call", "openvino_call"]

_TYPES = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}


def onnxruntime_call(
    path: Path, inputs: Mapping[str, np.ndarray], fix: Mapping[str, Any], threads: int
) -> Callable[[], Any]:
    """One execution by onnxruntime, its open dimensions fixed to those of `inputs` where their names tell them apart.

    Args:
        inputs: By name; those that the file does not have are left out.
        fix: Values of further inputs.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def session() -> Any:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    made = session()
    kinds = {i.name: _TYPES.get(i.type, "float32") for i in made.get_inputs()}
    given = {k: v for k, v in inputs.items() if k in kinds}
    given |= {k: np.array(v, kinds[k]) for k, v in fix.items()}
    sizes: dict[str, set[int]] = {}
    for i in made.get_inputs():
        for dimension, size in zip(i.shape, given[i.name].shape, strict=True):
            if isinstance(dimension, str):
                sizes.setdefault(dimension, set()).add(size)
    named = {dimension: size.pop() for dimension, size in sizes.items() if len(size) == 1}
    for dimension, size in named.items():
        options.add_free_dimension_override_by_name(dimension, size)
    made = session() if named else made
    return lambda: made.run(None, given)


def openvino_call(
    path: Path, inputs: Mapping[str, np.ndarray], fix: Mapping[str, Any], threads: int, precision: str | None = "f32"
) -> Callable[[], Any] | None:
    """One inference by OpenVINO; None, with a line on standard error, where it does not take the model, and where it is
    not installed.

    Args:
        precision: Of its arithmetic; None is its own choice, bf16 where the CPU has it.
    """
    if importlib.util.find_spec("openvino") is None:
        return None
    import openvino  # pyright: ignore[reportMissingImports]  # installed by whoever compares with it

    try:
        core = openvino.Core()
        config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        config |= {} if precision is None else {"INFERENCE_PRECISION_HINT": precision}
        model = core.read_model(str(path))
        names = {name for i in model.inputs for name in i.get_names()}
        given = {k: v for k, v in inputs.items() if k in names} | {k: np.array(v) for k, v in fix.items()}
        model.reshape({k: list(v.shape) for k, v in given.items()})
        request = core.compile_model(model, "CPU", config).create_infer_request()
        request.infer(given)
    except Exception as e:  # it raises several types, and this is no test of it
        print(f"OpenVINO does not take {path}: {e}", file=sys.stderr)
        return None
    return lambda: request.infer(given)
