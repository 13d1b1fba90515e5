"""Deployment: tuned functions back into the model, one file out, verified."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tt_spec import Plugins
from tvm import relax

from tt_core.backend import compare
from tt_core.errors import UserError, VerificationError
from tt_core.lower import Lowered, unpack
from tt_core.models import Model
from tt_core.runtime import sidecar_path

__all__ = ["MODEL_TOLERANCE", "check_writable", "compile_library", "verify", "write"]

MODEL_TOLERANCE = 1e-3
"""Largest allowed difference of a whole float32 model's output, relative to the output's largest magnitude."""


def compile_library(lowered: Lowered, rows: Mapping[str, np.ndarray], plugins: Plugins | None = None) -> Any:
    """The model with the program of each task's row in place of the untuned one; tasks without a row stay untuned."""
    plugins = plugins or Plugins()
    mod = tvm.IRModule(dict(lowered.mod.functions_items()), attrs=lowered.mod.attrs)
    for task in lowered.tasks:
        if task.key not in rows:
            continue
        single, target, space = unpack(task.payload)
        schedule = plugins.build("space", space).open(single, target).apply(rows[task.key])
        func = tvm.ir.load_json(tvm.ir.save_json(schedule.mod["main"]))
        for name in lowered.functions[task.key]:
            var = mod.get_global_var(name)
            mod.update_func(var, func.without_attr("global_symbol").with_attr("tirx.is_scheduled", True))
    t = relax.transform
    passes = [
        t.RewriteDataflowReshape(),
        t.ToNonDataflow(),
        t.RemovePurityChecking(),
        t.CallTIRRewrite(),
        *relax.pipeline.finalize_passes(lowered.target),
    ]
    with lowered.target, tvm.transform.PassContext(opt_level=3):
        return relax.build(mod, lowered.target, relax_pipeline=tvm.transform.Sequential(passes))


def check_writable(path: Path) -> None:
    """Raise before hours of work if the file cannot be written."""
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: give a file name, e.g. {path / 'model.so'}")
    try:
        with tempfile.TemporaryFile(dir=path.parent or Path(".")):
            pass
    except OSError as e:
        raise UserError(f"--out {path} cannot be written: {e.strerror or e}") from e


def write(library: Any, path: Path, sidecar: dict[str, Any]) -> None:
    """Export beside the goal and rename, so that a crash or a full disk leaves no half-written file."""
    part = path.with_name(f".{path.stem}.part{path.suffix or '.so'}")
    try:
        library.export_library(str(part))
        beside = part.with_suffix(".json")
        beside.write_text(json.dumps(sidecar, indent=2) + "\n", encoding="utf-8")
        os.replace(beside, sidecar_path(path))
        os.replace(part, path)
    except (OSError, RuntimeError) as e:
        raise UserError(f"cannot write {path}: {str(e).splitlines()[0]}") from e
    finally:
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)


def verify(
    model: Model, inputs: dict[str, np.ndarray], got: list[np.ndarray], untuned: list[np.ndarray]
) -> dict[str, str]:
    """Compare a tuned model's outputs with the untuned program's, and with onnxruntime's where there is an ONNX file.

    Returns what each was compared with. Raises `VerificationError` naming output and peer.
    """
    peers = {"the untuned program": untuned}
    if model.onnx is not None and (session := _onnxruntime(model.onnx)) is not None:
        peers["onnxruntime"] = session.run(None, inputs)
    for peer, want in peers.items():
        if len(want) != len(got):
            raise VerificationError(f"the tuned model has {len(got)} outputs, {peer} has {len(want)}")
        for name, a, b in zip(model.outputs, got, want, strict=False):
            tolerance = MODEL_TOLERANCE if b.dtype == np.float32 else None
            wrong = compare(a, b, tolerance)
            if wrong:
                raise VerificationError(f"output {name!r} of {model.name} does not match {peer}: {wrong}")
    return dict.fromkeys(peers, "equal within tolerance")


def _onnxruntime(data: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
