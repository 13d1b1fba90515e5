"""Models that people ship, through tt: import, tasks, untuned compile, verification; if asked, tuning and latencies.

    hatch run python benchmarks/models.py                           # the table of docs/models.md, no tuning
    hatch run python benchmarks/models.py --only 'lstm|gru' --minutes 3 --save models.json
    hatch run python benchmarks/models.py --only quantised --minutes 5 --precision float32
    hatch run python benchmarks/models.py --folder DIR              # every ONNX file in there as well

The models are the light_* of the package onnx's test data, those of rapidocr-onnxruntime and of silero-vad where they
are installed, recurrent ones exported by PyTorch, and ResNet-18, BERT-tiny and a transformer layer, quantised by
onnxruntime dynamically and with QDQ. `DIR/models.json` may give shapes and values of inputs by file:
`{"a/b.onnx": {"shapes": {"x": [1, 16]}, "fix": {"sr": 16000}}}`.

Each runs in a process of its own. With --minutes or --trials each is tuned, cold, its file written, verified and timed
in turns with onnxruntime, and with OpenVINO where that is installed, two threads each: do that on a machine that does
nothing else. What `--save` holds is not run again, so that a run that was stopped goes on; what failed is.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 900.0
"""Longest time for one model without tuning."""
MINUTES_MOST = 3.0
"""How many times its minutes a tuned model may take."""
ROUNDS = 12
WARM = 3
VAD = {"input": (1, 576), "state": (2, 1, 128), "h": (1, 1, 128), "c": (1, 1, 128)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pattern of names")
    parser.add_argument("--minutes", type=float, default=0.0, help="tune each for so long; 0 tunes nothing")
    parser.add_argument("--trials", type=int, default=0, help="or until so many programs were measured")
    parser.add_argument("--precision", default="exact", help="float32: quantised models with dequantised weights")
    parser.add_argument("--folder", type=Path, default=None, help="further ONNX files")
    parser.add_argument("--save", type=Path, default=None, help="results as JSON, from which a later run goes on")
    parser.add_argument("--keep", type=Path, default=None, help="folder for models, histories and libraries")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print("RESULT " + json.dumps(treated(options.one, options)))
        return
    tuned = bool(options.minutes or options.trials)
    print("| model | operators | import s | tasks s | compile s | tasks | verified |", end="")
    print(" untuned ms | tuned ms | onnxruntime ms | OpenVINO ms | tt / onnxruntime |" if tuned else "")
    print("|" + "---|" * (12 if tuned else 7))
    rows = json.loads(options.save.read_text()) if options.save and options.save.exists() else {}
    with tempfile.TemporaryDirectory(prefix="tt-models-") as folder:
        options.keep = options.keep or Path(folder)
        options.keep.mkdir(parents=True, exist_ok=True)
        for name in sources(options.folder):
            if not re.search(options.only, name):
                continue
            if name not in rows or "failed" in rows[name]:
                rows[name] = apart(name, options)
                if options.save:
                    options.save.write_text(json.dumps(rows, indent=2) + "\n")
            print(line(name, rows[name], tuned), flush=True)


def apart(name: str, options: Any) -> dict[str, Any]:
    """`treated` in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--keep", str(options.keep), "--precision", options.precision]
    command += ["--minutes", str(options.minutes), "--trials", str(options.trials)]
    command += ["--folder", str(options.folder)] if options.folder else []
    most = SECONDS + 60 * MINUTES_MOST * options.minutes
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=most)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {most:.0f} s"}
    found = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
    if found:
        return json.loads(found[-1].removeprefix("RESULT "))
    said = [x for x in done.stderr.splitlines() if x.strip()]
    return {"failed": said[-1][:400] if said else f"ended with code {done.returncode}"}


def line(name: str, of: dict[str, Any], tuned: bool) -> str:
    if "failed" in of:
        return f"| {name} | {of['failed']} |"
    cells = [name, f"{of['operators']}", *(f"{of[k]:.1f}" for k in ("import_s", "lower_s", "compile_s"))]
    cells += [f"{of['tasks']}", of["verified"]]
    if tuned and "tuned_s" in of:
        kinds = ("untuned_s", "tuned_s", "onnxruntime_s", "openvino_s")
        cells += [f"{1e3 * of[k]:.3g}" if of.get(k) else "-" for k in kinds]
        cells += [f"{of['tuned_s'] / of['onnxruntime_s']:.2f}"]
    return "| " + " | ".join(cells) + " |"


# -- one model ---------------------------------------------------------------------------------------------------------


def treated(name: str, options: Any) -> dict[str, Any]:
    from tt_core.compiler.target import use_all_cores

    use_all_cores()
    from tt_core import models, target
    from tt_core.compiler.arrays import random_array
    from tt_core.compiler.lower import lower
    from tt_core.deploy.library import compile_library
    from tt_core.deploy.verification import telling, verify

    path, shapes, fix = sources(options.folder)[name](options.keep)
    import onnx

    operators = len(onnx.load(str(path), load_external_data=False).graph.node)
    began = time.perf_counter()
    model = models.load(path, shapes, fix=fix, precision=options.precision)
    imported = time.perf_counter()
    lowered = lower(model.mod, target.resolve("native"))
    known = time.perf_counter()
    library = compile_library(lowered, {})
    compiled = time.perf_counter()
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in model.inputs}
    want = telling(
        model, inputs, lambda given: run(library, list(given.values())), lambda text: print(text, file=sys.stderr)
    )
    found = verify(want, want.untuned)
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
    tuned = bool(options.minutes or options.trials)
    return result | (latencies(name, path, (shapes, fix), options) if tuned else {})


def run(library: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    import tvm
    from tvm import relax

    def flat(out: Any) -> list[np.ndarray]:
        return [out.numpy()] if isinstance(out, tvm.runtime.Tensor) else [a for part in out for a in flat(part)]

    return flat(relax.VirtualMachine(library, tvm.cpu())["main"](*(tvm.runtime.tensor(a) for a in inputs)))


def latencies(name: str, path: Path, given: tuple[Any, Any], options: Any) -> dict[str, Any]:
    """tt's file, onnxruntime and OpenVINO in turns; medians."""
    from tt_bench.runtimes import onnxruntime_call, openvino_call
    from tt_bench.turns import block, in_turns
    from tt_core import tune
    from tt_core.compiler.runtime import Runner
    from tt_core.request import Asked

    shapes, fix = given
    stem = options.keep / re.sub(r"[^\w.-]+", "_", f"{name}-{options.precision}")
    out, history = Path(f"{stem}.so"), Path(f"{stem}.db")
    minutes, trials = options.minutes or None, options.trials or None
    asked: Asked = {"shapes": shapes, "fix": fix or {}, "precision": options.precision, "out": out, "history": history}
    asked |= {"minutes": minutes, "trials": trials}
    tune(str(path), **asked)
    runner = Runner(out)
    inputs, threads = runner.random_inputs(), runner.sidecar["threads"]
    arguments, call = runner._arguments(inputs), runner._vm["main"]
    of = (path, inputs, fix or {}, threads)
    calls = {"tuned_s": lambda: call(*arguments), "onnxruntime_s": onnxruntime_call(*of)}
    calls |= {} if (other := openvino_call(*of)) is None else {"openvino_s": other}
    times = in_turns({k: partial(block, c, 0.3, WARM) for k, c in calls.items()}, ROUNDS)
    found: dict[str, Any] = {k: float(np.median(v)) for k, v in times.items()}
    return found | {"untuned_s": float(runner.sidecar["latency_before_s"]), "bytes": out.stat().st_size}


# -- the models --------------------------------------------------------------------------------------------------------

Source = Callable[[Path], tuple[Path, Any, Any]]
"""From a folder to write to, to a file, its shapes and its fixed inputs."""


def sources(folder: Path | None = None) -> dict[str, Source]:
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
        found[f"PyTorch {cell}{kind}"] = lambda keep, cell=cell, options=options: _recurrent(keep, cell, options)
    for name in ("resnet18", "bert-tiny", "transformer"):
        found[f"{name}, float"] = lambda keep, name=name: (_float(keep, name)[0], None, None)
        found[f"{name}, dynamically quantised"] = lambda keep, name=name: _quantised(keep, name, False)
        found[f"{name}, QDQ quantised"] = lambda keep, name=name: _quantised(keep, name, True)
    if (silero := _package("silero_vad")) is not None:
        for path in sorted((silero / "data").glob("*.onnx")):
            found[f"silero {path.stem}"] = lambda _, path=path: _silero(path)
    return found | ({} if folder is None else _files(folder))


def _files(folder: Path) -> dict[str, Source]:
    """Every ONNX file of a folder, with what its `models.json` says of shapes and values."""
    beside = folder / "models.json"
    said = json.loads(beside.read_text()) if beside.exists() else {}
    found: dict[str, Source] = {}
    for path in sorted(folder.rglob("*.onnx")):
        name = path.relative_to(folder).as_posix()
        of = said.get(name, {})
        shapes = {k: tuple(v) for k, v in of.get("shapes", {}).items()}
        given = (path, shapes, of.get("fix"))
        found[name] = lambda _, given=given: given
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


def _float(folder: Path, name: str) -> tuple[Path, Any]:
    """The model before it is quantised, as a file and as `onnx.ModelProto`."""
    import onnx
    from tt_core.models import zoo

    path = folder / f"{name}.onnx"
    if name != "transformer":
        onnx.save(zoo.build(name), str(path))
        return path, onnx.load(str(path))
    import torch

    class Layer(torch.nn.Module):
        """Four heads of 64; PyTorch's own layer cannot be traced."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = torch.nn.LayerNorm(256), torch.nn.LayerNorm(256)
            self.qkv, self.out = torch.nn.Linear(256, 768), torch.nn.Linear(256, 256)
            self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(self.norm(x)).reshape(1, 64, 3, 4, 64).permute(2, 0, 3, 1, 4)
            mixed = torch.softmax(q @ k.transpose(-1, -2) / 8.0, -1) @ v
            x = x + self.out(mixed.permute(0, 2, 1, 3).reshape(1, 64, 256))
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))

    torch.manual_seed(0)
    layer, sample = Layer().eval(), (torch.randn(1, 64, 256),)
    torch.onnx.export(layer, sample, str(path), dynamo=False, opset_version=17, input_names=["x"])
    return path, onnx.load(str(path))


def _quantised(folder: Path, name: str, static: bool) -> tuple[Path, Any, Any]:
    from onnxruntime import quantization as q

    (plain, model), path = _float(folder, name), folder / f"{name}-{'qdq' if static else 'dynamic'}.onnx"
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
    shapes = {**shapes, "input": (100, 576)} if "h" in shapes else shapes
    return path, shapes, {"sr": 16000} if "sr" in names else None


if __name__ == "__main__":
    main()
