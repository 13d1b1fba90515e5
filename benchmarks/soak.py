"""What a long run costs beside measuring: seconds of bookkeeping a batch, memory, open files, log and history.

    hatch run python benchmarks/soak.py --rows 100000 [--tasks 1] [--batch 64] [--recipe random]

Run times are drawn at once by a formula (`tt_spec.pieces.synthetic`), so that all that is left of a run is asking,
storing, telling and logging: the loop, the pipelines, the history and the event log are those of `tt tune`. A recipe's
cost model and searcher think too; what they take is told apart. Seconds are those of this process's
CPU, so that others' work does not count. A line for each tenth of the run; the last one says whether it stayed within
--most-s and --most-gb and how much the last tenth's batches took more than the second's. Exit code 1 if it did not.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tt_core.events.log import EventLog
from tt_history import SqliteStore
from tt_spec import Batch, Listener, Measurement, RunInfo, Task, TaskState, WallClock
from tt_spec.assembly import assemble
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.recipe import resolve
from tt_spec.types import Bar, Trial

THINKING = ("fit", "predict", "propose", "select")


class Instant(SyntheticMeasurer):
    """Keeps the seconds that it takes itself."""

    spent_s = 0.0

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        began = time.process_time()
        seconds = self.seconds(task, np.asarray(codes))
        trials = [Trial(tuple(map(int, row)), (float(s),) * 3, runs=3) for row, s in zip(codes, seconds, strict=True)]
        self.spent_s += time.process_time() - began
        yield from trials


@dataclass
class Watch(Listener):
    """Notes what each tenth of a run cost.

    Args:
        folder: Of history and log.
        apart: Seconds so far that are no bookkeeping.
    """

    rows: int
    folder: Path
    apart: Any
    lines: list[tuple[int, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.done, self.batches, self.told = 0, 0, 0
        self.began, self.apart_s = time.process_time(), 0.0
        self.longest = 0.0
        self.each = time.process_time()
        self.process = psutil.Process()

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.done += len(results)
        self.batches += 1
        if self.done * 10 // self.rows == self.told:
            return
        self.told = self.done * 10 // self.rows
        now, apart = time.process_time(), self.apart()
        each = (now - self.began - (apart - self.apart_s)) / self.batches
        thinking = (apart - self.apart_s) / self.batches
        gb = self.process.memory_info().rss / 1e9
        files = self.process.num_fds()
        sizes = [sum(p.stat().st_size for p in self.folder.glob(g)) / 1e6 for g in ("tt.db*", "log")]
        self.lines.append((self.done, each, gb))
        print(
            f"{self.done:8,} rows: bookkeeping {1e3 * each:5.1f} ms a batch, the rest {1e3 * thinking:5.1f} ms,"
            f" {gb:.2f} GB, {files} files, history {sizes[0]:.0f} MB, log {sizes[1]:.0f} MB",
            flush=True,
        )
        self.began, self.apart_s, self.batches = time.process_time(), apart, 0


def soak(rows: int, tasks: int, batch: int, name: str) -> Watch:
    """A run of so many rows over so many tasks."""
    recipe = resolve(name, [f"batch={batch}", "stopper=none", "light=1"])
    chosen = [synthetic_task(f"soak {i}", knobs=10, choices=8) for i in range(tasks)]
    spent = {"s": 0.0}
    with tempfile.TemporaryDirectory(prefix="tt-soak-") as folder:
        store, log = SqliteStore(Path(folder, "tt.db")), EventLog(Path(folder, "log"))
        measurer = Instant()
        budget = [recipe.plugins.build("stopper", "trials", trials=rows)]
        made = assemble(recipe, chosen, measurer, budget=budget, only_heavy=True)
        for p in made.pipelines:
            for piece in (p.surrogate, p.draft, p.searcher, p.sampler):
                _timed(piece, spent)
        store.remember(chosen)
        info = RunInfo(store.begin_run({}), tuple(chosen), {})
        watch = Watch(rows, Path(folder), lambda: spent["s"] + measurer.spent_s)
        made.loop(measurer, store, WallClock(), info=info, listeners=[log, watch]).run()
        log.close()
        store.close()
        measurer.close()
    return watch


def _timed(piece: Any, spent: dict[str, float]) -> None:
    """Keep the seconds of what a piece does; what happens inside counts once."""
    for name in THINKING:
        real = getattr(piece, name, None)
        if real is None or name in vars(piece):
            continue

        def timed(*args: Any, real: Any = real) -> Any:
            if spent.get("inside"):
                return real(*args)
            began, spent["inside"] = time.process_time(), 1.0
            try:
                return real(*args)
            finally:
                spent["s"], spent["inside"] = spent["s"] + time.process_time() - began, 0.0

        setattr(piece, name, timed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--recipe", default="random")
    parser.add_argument("--most-s", type=float, default=0.1)
    parser.add_argument("--most-gb", type=float, default=2.0)
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    watch = soak(options.rows, options.tasks, options.batch, options.recipe)
    each, gb = max(line[1] for line in watch.lines), max(line[2] for line in watch.lines)
    grown = watch.lines[-1][1] / watch.lines[min(1, len(watch.lines) - 1)][1]
    held = each <= options.most_s and gb <= options.most_gb
    print(
        f"at most {1e3 * each:.1f} ms a batch and {gb:.2f} GB, {'within' if held else 'OVER'} the bounds;"
        f" the last tenth's batches took {grown:.2f} times the second's"
    )
    return not held


if __name__ == "__main__":
    sys.exit(main())
