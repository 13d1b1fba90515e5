"""Whole models: tt's file, onnxruntime and OpenVINO, timed in turns in one process, on all cores each.

    hatch run python benchmarks/rivals.py resnet18 mobilenet_v2 squeezenet1_1 detector [--minutes 10]

A model is one of the zoo, a name of `tt_bench.real` ("detector", "recogniser", "classifier": inside the package
rapidocr-onnxruntime), or an ONNX file. tt tunes each from a cold start for `--minutes`, unless `--library MODEL=FILE`
gives a file it wrote before. Prints the median and the minimum of each, OpenVINO in float32 and as it comes (bf16 where
the CPU has it), and tt over the better one in float32; then where tt's time goes: what each operator takes alone, all
its uses together, its GFLOP/s and its space. Run nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from tt_bench.launch import program, tuned
from tt_bench.real import INSIDE, source
from tt_bench.runtimes import onnxruntime_call, openvino_call
from tt_bench.turns import block, in_turns

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
    rivals = ("onnxruntime", "OpenVINO", "OpenVINO's default")
    print(f"{'model':16} {'tt ms':>17}", *(f"{r + ' ms':>22}" for r in rivals), f"{'tt / better':>12}")
    for model in options.models:
        path, arguments = _file(model, folder)
        name = path.stem
        library = Path(libraries.get(model, folder / f"{name}.so"))
        if model not in libraries:
            kept = ("--out", str(library), "--history", str(folder / f"{name}.db"))
            tuned(*arguments, *kept, "--minutes", str(options.minutes))
        times = _race(path, library, options.rounds)
        cells = {who: f"{np.median(t) * 1e3:8.3f} ({min(t) * 1e3:.3f})" for who, t in times.items()}
        ours = float(np.median(times["tt"]))
        better = min(float(np.median(times[who])) for who in rivals[:2] if who in times)
        others = (f"{cells.get(r, ''):>22}" for r in rivals)
        print(f"{model[-16:]:16} {cells['tt']:>17}", *others, f"{ours / better:12.3f}", flush=True)
        _parts(arguments, library, ours)


def _file(model: str, folder: Path) -> tuple[Path, list[str]]:
    """The model's ONNX file, and the arguments of `tt tune` that name it."""
    if model in INSIDE:
        arguments = source(model)
        return Path(arguments[0]), arguments
    if model.endswith(".onnx"):
        return Path(model), [model]
    from tt_core.models.zoo import build

    path = folder / f"{model}.onnx"
    path.write_bytes(build(model).SerializeToString())
    return path, [str(path)]


def _parts(arguments: list[str], library: Path, whole_s: float, shown: int = 12) -> None:
    """Where the time goes, by the latencies with which the library was written."""
    from tt_core.prepared import prepare

    model, *shape = arguments
    name, _, sizes = (shape or [""])[-1].partition("=")
    shapes = {name: tuple(map(int, sizes.split(",")))} if sizes else None
    tasks = {t.name: t for t in prepare(model, shapes=shapes).tasks}
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


def _race(path: Path, library: Path, rounds: int, seconds: float = 0.3) -> dict[str, list[float]]:
    """Seconds per execution in each round, by runtime."""
    from tt_core.compiler.runtime import Runner
    from tt_core.compiler.target import cores

    runner = Runner(library)
    inputs = runner.random_inputs()
    arguments, main = runner._arguments(inputs), runner._vm["main"]
    of = (path, inputs, {}, cores())
    calls = {"tt": lambda: main(*arguments), "onnxruntime": onnxruntime_call(*of)}
    for name, precision in (("OpenVINO", "f32"), ("OpenVINO's default", None)):
        if (call := openvino_call(*of, precision)) is not None:
            calls[name] = call
    return in_turns({k: partial(block, c, seconds, WARM) for k, c in calls.items()}, rounds)


if __name__ == "__main__":
    program(main)
