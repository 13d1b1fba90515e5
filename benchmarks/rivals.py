"""Whole models: tt's file, onnxruntime and OpenVINO, timed in turns in one process, two threads each.

    hatch run python benchmarks/rivals.py resnet18 mobilenet_v2 squeezenet1_1 detector [--minutes 10]

tt tunes each model from a cold start for `--minutes`, unless `--library MODEL=FILE` gives a file it wrote before.
Prints the median and the minimum of each, and tt over the better rival; then where tt's time goes: what each operator
takes alone, all its uses together, its GFLOP/s and its space. "detector" is the text detector inside the package
rapidocr-onnxruntime, at 1x3x320x320.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from tt_bench.launch import program, tuned
from tt_bench.turns import block, in_turns

DETECTOR = "ch_PP-OCRv4_det_infer.onnx"
WARM = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--library", action="append", default=[], metavar="MODEL=FILE")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--keep", type=Path, default=None, help="folder for histories and libraries")
    options = parser.parse_args()
    from tt_core.compiler.target import use_all_cores

    use_all_cores()
    libraries = dict(text.split("=", 1) for text in options.library)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="tt-rivals-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'model':16} {'tt ms':>16} {'onnxruntime ms':>16} {'OpenVINO ms':>16} {'tt / better':>12}")
    for name in options.models:
        content = _onnx(name)
        path = folder / f"{name}.onnx"
        path.write_bytes(content)
        library = Path(libraries.get(name, folder / f"{name}.so"))
        if name not in libraries:
            history = folder / f"{name}.db"
            tuned(str(path), "--out", str(library), "--history", str(history), "--minutes", str(options.minutes))
        times = _race(content, library, options.rounds)
        cells = [f"{np.median(times[who]) * 1e3:8.3f} ({min(times[who]) * 1e3:.3f})" for who in times]
        ours, *rivals = (float(np.median(t)) for t in times.values())
        print(f"{name:16} {cells[0]:>16} {cells[1]:>16} {cells[2]:>16} {ours / min(rivals):12.3f}")
        _parts(path, library, ours)


def _onnx(name: str) -> bytes:
    if name != "detector":
        from tt_core.models.zoo import build

        return build(name).SerializeToString()
    import onnx
    from onnxslim import slim

    package = importlib.util.find_spec("rapidocr_onnxruntime")  # importing it wants OpenCV
    if package is None or package.origin is None:
        sys.exit("the detector is inside the package rapidocr-onnxruntime: install it")
    path = Path(package.origin).parent / "models" / DETECTOR
    return slim(onnx.load(str(path)), model_check=False, input_shapes=["x:1,3,320,320"]).SerializeToString()


def _parts(model: Path, library: Path, whole_s: float, shown: int = 12) -> None:
    """Where the time goes, by the latencies with which the library was written."""
    from tt_core.prepared import prepare

    tasks = {t.name: t for t in prepare(str(model)).tasks}
    parts = [p for p in json.loads(Path(f"{library}.json").read_text())["tasks"] if p["latency_s"]]
    parts.sort(key=lambda p: -p["weight"] * p["latency_s"])
    total = sum(p["weight"] * p["latency_s"] for p in parts)
    for p in parts[:shown]:
        seconds, task = p["weight"] * p["latency_s"], tasks[p["name"]]
        rate, space = task.flops / p["latency_s"] / 1e9, p["knobs"].get("space", "")
        print(
            f"  {p['name'][:34]:34} {task.shapes.split(',')[0]:>16} x{p['weight']:<3.0f}{seconds * 1e3:7.3f} ms", end=""
        )
        print(f" {seconds / total:6.1%} {rate:5.0f} GFLOP/s  {space}")
    rest = sum(p["weight"] * p["latency_s"] for p in parts[shown:])
    print(
        f"  {len(parts[shown:])} other operators {rest * 1e3:.3f} ms; all of them alone {total * 1e3:.3f} ms,", end=""
    )
    print(f" the whole model {whole_s * 1e3:.3f} ms", flush=True)


def _race(content: bytes, library: Path, rounds: int, seconds: float = 0.3) -> dict[str, list[float]]:
    """Seconds per execution in each round, by runtime."""
    import onnxruntime
    import openvino  # pyright: ignore[reportMissingImports]  # installed by whoever compares with it
    from tt_core.compiler.runtime import Runner
    from tt_core.compiler.target import cores

    threads = cores()
    runner = Runner(library)
    inputs = runner.random_inputs()
    arguments = runner._arguments(inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(content), "CPU", config).create_infer_request()
    main = runner._vm["main"]
    timed = {
        "tt": lambda: block(lambda: main(*arguments), seconds, warm=WARM),
        "onnxruntime": lambda: block(lambda: session.run(None, inputs), seconds, warm=WARM),
        "OpenVINO": lambda: block(lambda: request.infer(inputs), seconds, warm=WARM),
    }
    return in_turns(timed, rounds)


if __name__ == "__main__":
    program(main)
