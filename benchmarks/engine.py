"""The same candidates through stock MetaSchedule's builder and runner and through tt's engine, in one run.

    hatch run python benchmarks/engine.py [--op op:conv2d:1,64,56,64,3,1,1] [--batches 2]

Prints seconds, candidates timed, ratios, and how far the two, and stock with itself, agree on which candidates are
fast. All use the threads of all physical cores. "as shipped" may time out on every build: what it finishes in its own
time-outs counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from stock import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", default="op:conv2d:1,64,56,64,3,1,1")
    parser.add_argument("--batches", type=int, default=2, help="of 64 candidates each")
    parser.add_argument("--stock", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from tt_core.compiler.target import cores, use_all_cores

    use_all_cores()
    os.environ["OMP_NUM_THREADS"] = str(cores())
    if options.stock:
        _stock(Path(options.stock[0]), Path(options.stock[1]))
        return
    from tt_core.prepared import prepare
    from tt_spec import to_json

    task = prepare(options.op, space="sketch").tasks[0]
    rng = np.random.default_rng(0)
    rows = task.space.sample(64 * options.batches * 2, rng)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder, "job.json")
        ours, seconds_ours, codes = _ours(task, rows, 64 * options.batches)
        job.write_text(to_json({"task": task, "codes": codes}))
        shipped, seconds_shipped = _run_stock(job, Path(folder, "shipped.json"), fair=False)
        fair, seconds_fair = _run_stock(job, Path(folder, "fair.json"), fair=True)
    report(len(codes), ours, seconds_ours, shipped, seconds_shipped, fair, seconds_fair)


def report(n, ours, s_ours, shipped, s_shipped, fair, s_fair) -> None:
    print(f"{'engine':34} {'seconds':>8} {'timed':>6} {'per second':>11}")
    for name, s, times in (
        ("tt", s_ours, ours),
        ("stock as shipped", s_shipped, shipped),
        ("stock, slow import taken out", s_fair, fair),
    ):
        timed = int(np.isfinite(times).sum())
        print(f"{name:34} {s:8.1f} {timed:6} {timed / s:11.2f}")
    rate = np.isfinite(ours).sum() / s_ours
    for name, s, times in (("as shipped", s_shipped, shipped), ("slow import taken out", s_fair, fair)):
        other = np.isfinite(times).sum() / s
        print(f"ratio to stock {name}: {rate / other:.2f}" if other else f"ratio to stock {name}: it finished none")
    _agreement("tt and stock", n, ours, fair)
    _agreement("stock and itself", n, shipped, fair)  # what noise allows


def _agreement(who: str, n: int, one: np.ndarray, other: np.ndarray) -> None:
    from scipy.stats import spearmanr

    both = np.isfinite(one) & np.isfinite(other)
    if not both.any():
        return
    top = max(1, round(n / 10))
    best, best_other = (set(np.argsort(np.where(both, t, np.inf))[:top]) for t in (one, other))
    rank = spearmanr(one[both], other[both]).statistic
    overlap = len(best & best_other) / top
    print(f"{who}: Spearman {rank:.3f} over {both.sum()} candidates, overlap of the top tenth ({top}) {overlap:.2f}")


def _ours(task, rows, n):
    from tt_core.assembly import BACKEND
    from tt_core.compiler.target import cores
    from tt_measure.fixed import Fixed
    from tt_measure.pool import WorkerPool
    from tt_spec import Bar

    with WorkerPool(backend=BACKEND, threads=cores(), evaluator=Fixed()) as pool:
        real = pool.realise(task, rows)
        codes = np.unique(real.codes[[w is None for w in real.why]], axis=0)
        codes = codes[np.random.default_rng(1).permutation(len(codes))][:n]
    start = time.perf_counter()
    seconds: dict[tuple[int, ...], float] = {}
    with WorkerPool(backend=BACKEND, threads=cores(), evaluator=Fixed()) as pool:  # a cold start is part of the price
        for batch in np.array_split(codes, -(-len(codes) // 64)):
            best = min(seconds.values(), default=np.inf)
            for m in pool.measure(task, batch, Bar(incumbent_s=best, flops=task.flops)):
                seconds[m.config] = m.latency_s
    took = time.perf_counter() - start
    return np.array([seconds[tuple(map(int, r))] for r in codes]), took, codes


def _run_stock(job: Path, out: Path, fair: bool):
    command = [sys.executable, __file__, "--stock", str(job), str(out)]
    done = subprocess.run(command, env=environment() if fair else None, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"stock MetaSchedule failed:\n{done.stderr[-3000:]}")
    result = json.loads(out.read_text())
    for error in result["errors"]:
        print(f"stock ({'import taken out' if fair else 'as shipped'}): {error.strip().splitlines()[-1][:200]}")
    return np.array([np.inf if s is None else s for s in result["seconds"]]), result["took"]


def _stock(job: Path, out: Path) -> None:
    from tt_core.compiler.lower import unpack
    from tt_space.sketch import SketchPrograms
    from tt_spec import from_json
    from tvm.s_tir import meta_schedule as ms

    content = from_json(job.read_text())
    mod, target, _ = unpack(content["task"].payload)
    programs = SketchPrograms(mod, target)
    candidates = [programs.apply(row).mod for row in content["codes"]]
    seconds: list[float | None] = []
    errors: list[str] = []
    start = time.perf_counter()
    builder, runner = ms.builder.LocalBuilder(), ms.runner.LocalRunner()
    for i in range(0, len(candidates), 64):
        batch = candidates[i : i + 64]
        built = builder.build([ms.builder.BuilderInput(m, target) for m in batch])
        futures = {}
        for j, (m, b) in enumerate(zip(batch, built, strict=True)):
            if b.artifact_path is not None:
                args = ms.arg_info.ArgInfo.from_entry_func(m, remove_preproc=True)
                futures[j] = runner.run([ms.runner.RunnerInput(b.artifact_path, "cpu", args)])[0]
        for j in range(len(batch)):
            run = futures[j].result() if j in futures else None
            if run is None or run.run_secs is None:
                errors.append(str(built[j].error_msg if run is None else run.error_msg))
            seconds.append(float(np.median([float(s) for s in run.run_secs])) if run and run.run_secs else None)
    out.write_text(json.dumps({"seconds": seconds, "took": time.perf_counter() - start, "errors": errors[:3]}))


if __name__ == "__main__":
    main()
