"""A database of stock MetaSchedule into a history: 10,000 records by default, at most 5 minutes.

    hatch run python benchmarks/metaschedule_import.py [--records 10000] [--keep FOLDER]

Stock `tune_tir` searches eight operators with a builder and a runner that pretend, so that the database is made in
minutes; what it holds are its own traces. Then `tt-history import` reads it, twice: the second time adds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tt_bench.launch import program

BOUND_S = 300.0
TARGET = {"kind": "llvm", "mcpu": "znver3", "num-cores": 2}
OPERATORS = [
    *(f"op:matmul:{m},{n},{k}" for m, n, k in ((128, 128, 128), (64, 256, 512), (512, 64, 96), (32, 1024, 256))),
    *(f"op:conv2d:1,{c},{s},{o},3,1,1" for c, s, o in ((16, 28, 32), (32, 56, 32), (64, 14, 128), (48, 40, 72))),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="folder of the database; one that is there is read as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tt-metaschedule-") as folder:
        database = options.keep or Path(folder) / "database"
        if not (database / "database_tuning_record.json").exists():
            database.mkdir(parents=True, exist_ok=True)
            tuned(database, options.records)
        records = len((database / "database_tuning_record.json").read_text().splitlines())
        for turn in ("first", "second"):
            wall_s, cpu_s, told = imported(database, Path(folder) / "tt.db")
            verdict = f", {wall_s / BOUND_S:.2f} of the bound of {BOUND_S:g} s" if turn == "first" else ""
            print(
                f"{turn} import of {records} records: {wall_s:.1f} s, {cpu_s:.1f} s of CPU{verdict}; {told}", flush=True
            )
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest process: {peak_mb:.0f} MB")


def imported(database: Path, history: Path) -> tuple[float, float, str]:
    """Wall clock and CPU seconds of an import, and what it says of itself."""
    command = [sys.executable, "-m", "tt_core", "history", "import", str(database), "--format", "metaschedule"]
    before, began = os.times(), time.monotonic()
    done = subprocess.run(
        [*command, "--history", str(history), "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    after, wall_s = os.times(), time.monotonic() - began
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return wall_s, cpu_s, json.dumps(json.loads(done.stdout))


def tuned(database: Path, records: int) -> None:
    """Fill a database by stock `tune_tir`, `records` in all."""
    import tvm
    from tt_core.compiler.lower import unpack
    from tt_core.prepared import prepare
    from tt_space.intrinsics import import_intrinsics
    from tvm.s_tir import meta_schedule as ms

    target = tvm.target.Target(TARGET)
    import_intrinsics(target)
    builder, runner = pretenders()
    each = -(-records // len(OPERATORS))
    for name in OPERATORS:
        mod = unpack(prepare(name, target=json.dumps(TARGET), space="sketch").tasks[0].payload)[0]
        print(f"{each} trials of {name}", file=sys.stderr, flush=True)
        ms.tune_tir(
            mod,
            target,
            str(database),
            max_trials_global=each,
            num_trials_per_iter=64,
            builder=builder,
            runner=runner,
            cost_model="random",
            measure_callbacks=[ms.measure_callback.AddToDatabase()],
            strategy=ms.search_strategy.EvolutionarySearch(
                population_size=256, init_measured_ratio=0.0, genetic_num_iters=1, genetic_max_fail_count=2
            ),
            seed=3,
        )


def pretenders() -> tuple[Any, Any]:
    """A builder that builds nothing, and a runner that gives every candidate the same time."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    @derived_object
    class Builder(ms.builder.PyBuilder):
        def build(self, build_inputs: list[Any]) -> list[Any]:
            return [ms.builder.BuilderResult("nowhere", None) for _ in build_inputs]

    @derived_object
    class Runner(ms.runner.PyRunner):
        def run(self, runner_inputs: list[Any]) -> list[Any]:
            done = ms.runner.RunnerResult([1e-3], None)
            return [ms.runner.RunnerFuture(lambda: True, lambda: done) for _ in runner_inputs]

    return Builder(), Runner()


if __name__ == "__main__":
    program(main)
