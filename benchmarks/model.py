"""MetaSchedule and tt on one model: the same minutes, then the same trials; both latencies, side by side.

    hatch run python benchmarks/model.py resnet18 [--minutes 5] [--trials 600] [--shape x=1,3,320,320]

MetaSchedule has the threads of all physical cores and its slow import taken out (benchmarks/peer), so that it is a
fair peer, and as long as tt took in all, start-up, verification and compilation included. Latencies come from both
deployed files timed in turns in one process.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from stock import environment
from tt_bench.launch import program, tuned
from tt_bench.turns import block, in_turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--trials", type=int, default=600, help="of the second part; 0 omits it")
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--recipe", default="tt")
    parser.add_argument("--batch", type=int, default=16, help="MetaSchedule's trials per iteration (as shipped: 64)")
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    from tt_core.compiler.target import use_all_cores

    use_all_cores()
    if options.peer:
        what, folder, trials = options.peer
        (_peer_tune if what == "tune" else _peer_compile)(options, Path(folder), int(trials))
        return
    parts = [(options.minutes, None)] if options.minutes else []
    parts += [(None, options.trials)] if options.trials else []
    for minutes, trials in parts:
        folder = Path(tempfile.mkdtemp(prefix="tt-bench-"))
        start = time.perf_counter()
        done = _ours(options, folder / "tt.so", folder / "tt.db", minutes, trials)
        took = time.perf_counter() - start
        peer_trials = _peer(options, folder, took if minutes else 3600.0, trials or 1_000_000)
        tt, ms = _race(folder / "tt.so", folder / "ms.so")
        label = f"equal minutes ({minutes:g})" if minutes else f"equal trials ({trials})"
        print(
            f"{options.model}, {label}: MetaSchedule {ms * 1e3:.2f} ms ({peer_trials} trials), tt {tt * 1e3:.2f} ms"
            f" ({done} trials, {took:.0f} s in all), tt / MetaSchedule = {tt / ms:.3f}",
            flush=True,
        )
        shutil.rmtree(folder)


def _ours(options, out: Path, history: Path, minutes, trials) -> int:
    more = ["--recipe", options.recipe, "--out", str(out), "--history", str(history)]
    more += ["--minutes", str(minutes)] if minutes else ["--trials", str(trials), "--minutes", "600"]
    for s in options.shape:
        more += ["--shape", s]
    return tuned(options.model, *more)["trials"]


def _peer(options, folder: Path, seconds: float, trials: int) -> int:
    work = folder / "ms"
    work.mkdir()
    env = environment()
    command = [sys.executable, __file__, options.model, "--batch", str(options.batch)]
    for s in options.shape:
        command += ["--shape", s]
    with open(folder / "ms.log", "w") as log:
        peer = subprocess.Popen(
            [*command, "--peer", "tune", str(folder), str(trials)],
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            peer.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if peer.poll() is None:
                os.killpg(peer.pid, signal.SIGKILL)
                peer.wait()
        records = work / "database_tuning_record.json"
        if peer.returncode not in (0, -signal.SIGKILL) or not records.exists():
            sys.exit(f"MetaSchedule failed; its log:\n{(folder / 'ms.log').read_text()[-3000:]}")
        whole = [line for line in records.read_text().splitlines(keepends=True) if line.endswith("\n")]
        records.write_text("".join(whole))  # the last line may be cut; one cut line stops MetaSchedule's loading
        subprocess.run([*command, "--peer", "compile", str(folder), "0"], env=env, stdout=log, stderr=log, check=True)
    return len(whole)


def _peer_module(options):
    import tvm
    from tt_core import models
    from tt_core.cli.app import _shapes
    from tt_core.compiler.target import resolve
    from tt_space.intrinsics import import_intrinsics
    from tvm import relax

    target = resolve()
    import_intrinsics(target)
    mod = models.load(options.model, _shapes(options.shape)).mod
    t = relax.transform
    passes = [
        t.FoldBatchnormToConv2D(),
        t.FoldConstant(),
        t.DecomposeOpsForInference(),
        t.CanonicalizeBindings(),
        t.FoldConstant(),
        relax.get_pipeline("zero"),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(mod), target


def _peer_tune(options, folder: Path, trials: int) -> None:
    from tvm.s_tir import meta_schedule as ms

    mod, target = _peer_module(options)
    ms.relax_integration.tune_relax(
        mod, {}, target, str(folder / "ms"), max_trials_global=trials, num_trials_per_iter=options.batch, seed=1
    )


def _peer_compile(options, folder: Path, trials: int) -> None:
    import tvm
    from tvm import relax

    mod, target = _peer_module(options)
    t = relax.transform
    with target, tvm.transform.PassContext(opt_level=3):
        passes = [
            t.MetaScheduleApplyDatabase(str(folder / "ms")),  # takes the target from the context when it is made
            t.RewriteDataflowReshape(),
            t.ToNonDataflow(),
            t.RemovePurityChecking(),
            t.CallTIRRewrite(),
            *relax.pipeline.finalize_passes(target),
        ]
        library = relax.build(mod, target, relax_pipeline=tvm.transform.Sequential(passes))
    library.export_library(str(folder / "ms.so"))


def _race(ours: Path, peer: Path, rounds: int = 60) -> tuple[float, float]:
    """Median seconds of both, in turns."""
    import tvm
    from tt_core.compiler.runtime import Runner
    from tvm import relax

    runner = Runner(ours)
    inputs = [tvm.runtime.tensor(a) for a in runner.random_inputs().values()]
    mains = [relax.VirtualMachine(tvm.runtime.load_module(str(p)), tvm.cpu())["main"] for p in (ours, peer)]
    found = in_turns(
        {"tt": lambda: block(lambda: mains[0](*inputs)), "peer": lambda: block(lambda: mains[1](*inputs))},
        rounds,
        skip=5,
        settle_s=0,
    )
    return float(np.median(found["tt"])), float(np.median(found["peer"]))


if __name__ == "__main__":
    program(main)
