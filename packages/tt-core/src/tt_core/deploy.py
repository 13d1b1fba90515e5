"""Deployment: tuned functions back into the model, one file out, verified."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tt_spec import Plugins
from tvm import relax

from tt_core.backend import compare, difference
from tt_core.errors import FileError, ModelError, VerificationError, summary
from tt_core.lower import Lowered, unpack
from tt_core.models import Model
from tt_core.runtime import sidecar_path

__all__ = ["MODEL_TOLERANCE", "WORST_TOLERANCE", "check_writable", "compile_library", "verify", "write"]

MODEL_TOLERANCE = 1e-3
"""Largest allowed difference of a whole float32 model's output, relative to the output's largest magnitude."""

WORST_TOLERANCE = 2e-2
"""What it may grow to where a peer's own two ways to compute an output differ."""


def compile_library(lowered: Lowered, rows: Mapping[str, np.ndarray], plugins: Plugins | None = None) -> Any:
    """The model with the program of each task's row in place of the untuned one; tasks without a row stay untuned.

    Raises `ModelError` that names the operator which TVM cannot compile.
    """
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
        try:
            return relax.build(mod, lowered.target, relax_pipeline=tvm.transform.Sequential(passes))
        except Exception as e:  # TVM raises several types
            operator = re.search(r"R\.([\w.]+)\(", str(e))
            what = f"the operator {operator.group(1)}" if operator else "the model"
            raise ModelError(f"TVM cannot compile {what}: {str(e).splitlines()[0]}") from e


def check_writable(path: Path) -> None:
    """Raise before hours of work if the file cannot be written."""
    if path.is_dir():
        raise FileError(f"--out {path} is a folder: give a file name, e.g. {path / 'model.so'}")
    try:
        with tempfile.TemporaryFile(dir=path.parent or Path(".")):
            pass
    except OSError as e:
        raise FileError(f"--out {path} cannot be written: {e.strerror or e}") from e


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
        raise FileError(f"cannot write {path}: {' '.join(str(e).split())[:300]}") from e
    finally:
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)


def verify(
    model: Model,
    inputs: dict[str, np.ndarray],
    got: list[np.ndarray],
    untuned: list[np.ndarray],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, str]:
    """Compare a tuned model's outputs with the untuned program's, and with those of the model's peer.

    The tolerance is `MODEL_TOLERANCE`. Some outputs are worse conditioned than that, e.g. the far tail of a sigmoid:
    where the peer's two ways to compute differ by more than a third of it, three times their difference is allowed
    against the peer, at most `WORST_TOLERANCE`.

    A peer that cannot run the model is left out, and `say` is told. Returns what each was compared with. Raises
    `VerificationError` naming output and peer.
    """
    peers = {"the untuned program": (untuned, [MODEL_TOLERANCE] * len(untuned))}
    if model.peer is not None:
        try:
            results = model.peer.run(inputs)
        except Exception as e:  # each peer has its own errors, and none is about the tuned program
            results = []
            say(f"{model.peer.name} cannot run the model: {summary(e)}")
        if results:
            peers[model.peer.name] = (results[0], _tolerances(results))
    for peer, (want, tolerances) in peers.items():
        if len(want) != len(got):
            raise VerificationError(f"the tuned model has {len(got)} outputs, {peer} has {len(want)}")
        for name, a, b, tolerance in zip(model.outputs, got, want, tolerances, strict=True):
            wrong = compare(a, b, tolerance if b.dtype == np.float32 else None)
            if wrong:
                raise VerificationError(f"output {name!r} of {model.name} does not match {peer}: {wrong}")
    return {
        peer: f"equal within {max(tolerances):.1e} of the largest magnitude" for peer, (_, tolerances) in peers.items()
    }


def _tolerances(results: list[list[np.ndarray]]) -> list[float]:
    """What each output deserves, from how far apart the peer's results are."""
    return [
        min(WORST_TOLERANCE, max(MODEL_TOLERANCE, 3 * difference(ways[0], ways[-1])))
        for ways in zip(*results, strict=True)
    ]
