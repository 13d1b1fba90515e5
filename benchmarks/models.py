"""Models that people ship, through tt: import, tasks, untuned compile, verification; if asked, tuning and latencies.

    hatch run python benchmarks/models.py                           # the table of docs/models.md, no tuning
    hatch run python benchmarks/models.py --only 'lstm|gru' --minutes 3

The models are the light_* of the package onnx's test data, those of rapidocr-onnxruntime and of silero-vad where they
are installed, recurrent ones exported by PyTorch, and ResNet-18 and BERT-tiny of tt's zoo, quantised by onnxruntime
dynamically and with QDQ. Each runs in a process of its own. With --minutes each is tuned for so long, cold, and its
file is timed in turns with onnxruntime, two threads each: do that on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 900.0
"""Longest time for one model without tuning."""
VAD = {"input": (1, 512), "state": (2, 1, 128)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pattern of names")
    parser.add_argument("--minutes", type=float, default=0.0, help="tune each for so long; 0 tunes nothing")
    parser.add_argument("--save", type=Path, default=None, help="results as JSON")
    parser.add_argument("--one", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(treated(options.one[0], Path(options.one[1]), options.minutes)))
        return
    rows = {}
    print("| model | operators | import s | tasks s | compile s | tasks | verified |", end="")
    print(" untuned ms | tuned ms | onnxruntime ms |" if options.minutes else "")
    print("|" + "---|" * (10 if options.minutes else 7))
    with tempfile.TemporaryDirectory(prefix="tt-models-") as folder:
        for name in sources():
            if re.search(options.only, name):
                rows[name] = apart(name, folder, options.minutes)
                print(line(name, rows[name], options.minutes > 0), flush=True)
    if options.save:
        options.save.write_text(json.dumps(rows, indent=2) + "\n")


def apart(name: str, folder: str, minutes: float) -> dict[str, Any]:
    """`treated` in a process of its own."""
    command = [sys.executable, __file__, "--one", name, folder, "--minutes", str(minutes)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 90 * minutes)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {SECONDS + 90 * minutes:.0f} s"}
    found = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    if found:
        return json.loads(found[-1].removeprefix("RESULT "))
    said = [x for x in done.stderr.splitlines() if x.strip()]
    return {"failed": said[-1][:300] if said else f"ended with code {done.returncode}"}


def line(name: str, of: dict[str, Any], timed: bool) -> str:
    if "failed" in of:
        return f"| {name} | {of['failed']} |"
    cells = [name, f"{of['operators']}", *(f"{of[k]:.1f}" for k in ("import_s", "lower_s", "compile_s"))]
    cells += [f"{of['tasks']}", of["verified"]]
    if timed:
        cells += [f"{1e3 * of[k]:.3g}" for k in ("untuned_s", "tuned_s", "onnxruntime_s")]
    return "| " + " | ".join(cells) + " |"


# -- one model ---------------------------------------------------------------------------------------------------------


def treated(name: str, folder: Path, minutes: float) -> dict[str, Any]:
    from tt_core.compiler.target import use_all_cores

    use_all_cores()
    from tt_core import models, target
    from tt_core.compiler.arrays import random_array
    from tt_core.compiler.lower import lower
    from tt_core.deploy.library import compile_library
    from tt_core.deploy.verification import verify

    path, shapes, fix = sources()[name](folder)
    import onnx

    operators = len(onnx.load(str(path), load_external_data=False).graph.node)
    began = time.perf_counter()
    model = models.load(path, shapes, fix=fix)
    imported = time.perf_counter()
    lowered = lower(model.mod, target.resolve("native"))
    known = time.perf_counter()
    library = compile_library(lowered, {})
    compiled = time.perf_counter()
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in model.inputs}
    outputs = run(library, list(inputs.values()))
    found = verify(model, inputs, outputs, outputs, lambda text: print(text, file=sys.stderr))
    peer = next((v for k, v in found.items() if k != "the untuned program"), "no peer")
    result = {
        "operators": operators,
        "import_s": imported - began,
        "lower_s": known - imported,
        "compile_s": compiled - known,
        "tasks": len(lowered.tasks),
        "verified": peer.removeprefix("equal ").replace(" of the largest magnitude", ""),
        "notes": [*model.notes, *lowered.notes],
    }
    return result | (latencies(name, path, shapes, fix, folder, minutes) if minutes else {})


def run(library: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    def flat(out: Any) -> list[np.ndarray]:
        return [out.numpy()] if isinstance(out, tvm.runtime.Tensor) else [a for part in out for a in flat(part)]

    return flat(relax.VirtualMachine(library, tvm.cpu())["main"](*(tvm.runtime.tensor(a) for a in inputs)))


def latencies(name: str, path: Path, shapes: Any, fix: Any, folder: Path, minutes: float) -> dict[str, float]:
    """tt's file and onnxruntime in turns; medians."""
    from tt_core import tune
    from tt_core.compiler.runtime import Runner

    out = folder / f"{name}.so"
    tune(str(path), shapes=shapes, fix=fix or {}, minutes=minutes, out=out, history=folder / f"{name}.db")
    runner = Runner(out)
    inputs, rest = runner.random_inputs(), dict(fix or {})
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = runner.sidecar["threads"]
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    kinds = {i.name: i.type for i in session.get_inputs()}
    inputs |= {k: np.array(v, "int64" if "int64" in kinds[k] else "float32") for k, v in rest.items()}
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(12):
        ours += runner.time(inputs, 0.5).seconds
        session.run(None, inputs)
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            began = time.perf_counter()
            session.run(None, inputs)
            theirs.append(time.perf_counter() - began)
    before = float(runner.sidecar["latency_before_s"])
    return {"untuned_s": before, "tuned_s": float(np.median(ours)), "onnxruntime_s": float(np.median(theirs))}


# -- the models --------------------------------------------------------------------------------------------------------

Source = Callable[[Path], tuple[Path, Any, Any]]
"""From a folder to write to, to a file, its shapes and its fixed inputs."""


def sources() -> dict[str, Source]:
    found: dict[str, Source] = {}
    for path in sorted((_package("onnx") / "backend/test/data/light").glob("*.onnx")):
        found[path.stem] = lambda _, path=path: (path, None, None)
    if (rapid := _package("rapidocr_onnxruntime")) is not None:
        sizes = {"det": (1, 3, 320, 320), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}
        for path in sorted((rapid / "models").glob("*.onnx")):
            size = next(s for kind, s in sizes.items() if kind in path.stem)
            found[f"rapidocr {path.stem}"] = lambda _, path=path, size=size: (path, {"x": size}, None)
    for cell, options in (("lstm", {}), ("gru", {}), ("lstm", {"bidirectional": True}), ("lstm", {"num_layers": 3})):
        kind = "".join(f" {k}" for k in options)
        found[f"PyTorch {cell}{kind}"] = lambda folder, cell=cell, options=options: _recurrent(folder, cell, options)
    for name in ("resnet18", "bert-tiny"):
        found[f"{name}, dynamically quantised"] = lambda folder, name=name: _quantised(folder, name, False)
        found[f"{name}, QDQ"] = lambda folder, name=name: _quantised(folder, name, True)
    if (silero := _package("silero_vad")) is not None:
        for path in sorted((silero / "data").glob("*.onnx")):
            found[f"silero {path.stem}"] = lambda _, path=path: _silero(path)
    return found


def _package(name: str) -> Any:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _recurrent(folder: Path, cell: str, options: dict[str, Any]) -> tuple[Path, Any, Any]:
    """100 steps of 80 features, 256 units."""
    import torch

    torch.manual_seed(0)
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    path = folder / f"{cell}{''.join(options)}.onnx"
    made, sample = kind(80, 256, batch_first=True, **options), (torch.randn(1, 100, 80),)
    torch.onnx.export(made, sample, str(path), dynamo=False, opset_version=17, input_names=["x"])
    return path, None, None


def _quantised(folder: Path, name: str, static: bool) -> tuple[Path, Any, Any]:
    import onnx
    from onnxruntime import quantization as q
    from tt_core.models import zoo

    plain, path = folder / f"{name}.onnx", folder / f"{name}-{'qdq' if static else 'dynamic'}.onnx"
    model = zoo.build(name)
    onnx.save(model, str(plain))
    if static:
        q.quantize_static(str(plain), str(path), _Calibration(model), quant_format=q.QuantFormat.QDQ)
    else:
        q.quantize_dynamic(str(plain), str(path))
    return path, None, None


class _Calibration:
    """Random inputs, once."""

    def __init__(self, model: Any) -> None:
        rng = np.random.default_rng(0)
        self.left = [{i.name: self._drawn(i, rng) for i in model.graph.input}]

    def _drawn(self, value: Any, rng: np.random.Generator) -> np.ndarray:
        from onnx import helper

        of = value.type.tensor_type
        shape, dtype = [d.dim_value for d in of.shape.dim], helper.tensor_dtype_to_np_dtype(of.elem_type)
        return rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def _silero(path: Path) -> tuple[Path, Any, Any]:
    import onnx

    names = {i.name for i in onnx.load(str(path)).graph.input}
    shapes = {n: s for n, s in VAD.items() if n in names}
    return path, shapes, {"sr": 16000} if "sr" in names else None


if __name__ == "__main__":
    main()
