"""The history at a million records, beside the first version of its file in one run.

    python benchmarks/history.py                       # 10^6 records of 1,000 tasks: about ten minutes, 4 GB of disk
    python benchmarks/history.py --records 100000      # a tenth of it

Version 1's writer is no part of the product: it is read from this repository's history. Every line is one operation in
a process of its own: what it took with version 1 and with version 2, their ratio, and the bound that is to be met.
Beside other work say `--clock cpu`: waiting for a core is then left out, and so is waiting for the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tt_history.raw import explain
from tt_spec import Knob, Measurement, Pipeline, Plugins, Space, Task
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler

ROOT = Path(__file__).parents[1]
VERSION_1 = "1731fdd:packages/tt-history/src/tt_history/sqlite.py"
DEVICES = ("znver5/AMD EPYC/2 cores", "cascadelake/Intel Xeon/8 cores")
VERSIONS = {
    "python": "3.11.7",
    "tvm": "0.27.0.post1",
    "numpy": "2.4.6",
    **{
        f"tt-{n}": "0.1.0" for n in ("measure", "spec", "surrogate", "search", "sample", "schedule", "history", "space")
    },
    "tt-core": "0.1.0",
}
CLOCK = os.environ.get("TT_BENCHMARK_CLOCK", "wall")
KINDS = ("conv2d", "dwconv2d", "matmul", "max_pool2d")


def task(i: int) -> Task:
    """One of the tasks: a space of sixteen knobs, four of which depend on the first, as `tt tune` has them."""
    rng = random.Random(i)
    size = rng.choice((64, 96, 128, 256))
    splits = tuple(
        (a, b, size // a // b) for a in range(1, size) if size % a == 0 for b in range(1, size) if size // a % b == 0
    )
    knobs = [Knob("space", "choice", ("template", "sketch"))]
    for n in range(4):
        knobs.append(Knob(f"template.tile{n}", "tile", splits, active_if=(0, (0,))))
    for n in range(11):
        knobs.append(Knob(f"sketch.s0.d{n}", "choice", tuple(range(2 + (i + n) % 7)), active_if=(0, (1,))))
    shapes = f"1x{size}x{size // 2}x{size}, 3x3x{size}x{size} -> 1x{size}x{size // 2}x{size}"
    target = '{"kind":"llvm","mcpu":"znver5","num-cores":2}'
    space = Space(tuple(knobs), version=f"{i}")
    flops = 2.0 * size**3 * (1 + i % 17)
    return Task(
        f"{i:016x}", f"conv2d_add_relu_{i}", KINDS[i % 4], target, (space,), flops, 1.0 + i % 3, b"p" * 2000, shapes
    )


def records(t: Task, n: int, seed: int, started: float, repeat: float = 0.05) -> Iterator[Measurement]:
    """`n` measurements of a task; one in twenty is of a row that was measured before."""
    space, rng = t.space, random.Random(f"{t.key}/{seed}")
    shape, decode = space.shape, explain(space)
    run_id = f"{seed:032x}"
    done: list[tuple[int, ...]] = []
    for i in range(n):
        if done and rng.random() < repeat:
            row = rng.choice(done)
        else:
            first = int(rng.random() < 0.3)
            row = (first, *(rng.randrange(s) if (k < 4) == (first == 0) else 0 for k, s in enumerate(shape[1:])))
            done.append(row)
        knobs = decode(row)
        common: dict[str, Any] = {
            "knobs": knobs,
            "origin": rng.choice(("search", "random")),
            "device": DEVICES[rng.random() < 0.1],
            "versions": VERSIONS,
            "at": started + i * 0.2 + rng.random() * 0.1,
            "run_id": run_id,
        }
        chance = rng.random()
        if chance < 0.06:
            error = rng.choice(("invalid", "build", "run"))
            why = f"{error}: the block 'compute_{rng.randrange(40)}' is refused, its buffer has no such region"
            yield Measurement(t.key, space.key, row, error=error, why=why, cost={"apply": rng.random()}, **common)
            continue
        base = rng.lognormvariate(-6, 1)
        seconds = tuple(base * (1 + rng.random() / 10) for _ in range(3))
        why = f"one run: {rng.random() * 100:.1f} times slower than the incumbent" if chance > 0.95 else ""
        cost = {"apply": rng.random() / 1e3, "build": rng.random(), "run": rng.random() / 10}
        yield Measurement(t.key, space.key, row, seconds=seconds, runs=22, why=why, cost=cost, **common)


def first_version() -> Any:
    """Version 1's module, from the repository's history."""
    source = subprocess.run(["git", "show", VERSION_1], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    source = source.replace(
        "from tt_spec.roles import StoreError", "from tt_spec.errors import StoreError"
    )  # moved since
    module = types.ModuleType("tt_history_1")
    exec(compile(source, VERSION_1, "exec"), module.__dict__)
    return module


def open_store(version: int, path: str) -> Any:
    """A store of that version."""
    if version == 1:
        return first_version().SqliteStore(path, wait_s=120.0)
    from tt_history import SqliteStore

    return SqliteStore(path)


def now() -> float:
    """Seconds by the clock that was chosen."""
    return time.process_time() if CLOCK == "cpu" else time.perf_counter()


# -- operations: each runs in a process of its own and returns (seconds, remark) -----------------------------------


def fill(store: Any, path: str, tasks: int, rows: int, seed: int = 0) -> tuple[float, str]:
    """Write in batches of 1,000; making the records does not count."""
    took = 0.0
    for i in range(tasks):
        t = task(i)
        began = now()
        store.remember([t])
        took += now() - began
        made: list[Measurement] = []
        for m in records(t, rows, seed, 1.7e9 + 1e6 * seed + 1e3 * i):
            made.append(m)
            if len(made) == 1000:
                began = now()
                store.append(made)
                took += now() - began
                made = []
        if made:
            began = now()
            store.append(made)
            took += now() - began
    return took, f"{tasks * rows / took:,.0f} rows/s"


def opening(store: Any, path: str) -> tuple[float, str]:
    began = now()
    store.best("nothing")
    return now() - began, ""


def appending(store: Any, path: str) -> tuple[float, str]:
    t = task(3)
    store.remember([t])
    times = []
    for m in list(records(t, 1000, 77, 1.9e9)):
        began = now()
        store.append([m])
        times.append(now() - began)
    times.sort()
    return times[949], f"median {times[500] * 1e3:.2f} ms"


def best(store: Any, path: str) -> tuple[float, str]:
    store.best("nothing")
    times = []
    for i in range(20):
        began = now()
        store.best(task(i).key, DEVICES[0])
        times.append(now() - began)
    return max(times), "the slowest of 20 tasks"


def best_of_one(store: Any, path: str) -> tuple[float, str]:
    store.best("nothing")
    began = now()
    found = store.best(task(0).key, DEVICES[0])
    return now() - began, f"{found.latency_s:.2g} s"


def query(store: Any, path: str) -> tuple[float, str]:
    store.best("nothing")
    t = task(7)
    began = now()
    n = len(list(store.query(t.key, t.space.key)))
    return now() - began, f"{n} rows"


def stream(store: Any, path: str) -> tuple[float, str]:
    t = task(0)
    store.best("nothing")
    before = _now_mb()
    began, n, most = now(), 0, before
    for m in store.query(t.key):
        n += 1
        if n % 1000 == 0:
            most = max(most, _now_mb())
        del m
    return now() - began, f"{n} rows in {most - before:.1f} MB"


def restore(store: Any, path: str) -> tuple[float, str]:
    t = task(0)
    store.best("nothing")
    pipeline = Pipeline(t, NullSurrogate(), RandomSearcher(), TopSampler())
    began = now()
    n = 0

    def some() -> Iterator[Measurement]:
        nonlocal n
        for m in store.query(t.key, t.space.key):
            if n == 10_000:
                return
            n += 1
            yield m

    pipeline.restore(some())
    return now() - began, f"{n} records"


def summary(store: Any, path: str) -> tuple[float, str]:
    store.best("nothing")
    began = now()
    n = len(store.summary())
    return now() - began, f"{n} lines"


def nearest(store: Any, path: str) -> tuple[float, str]:
    store.best("nothing")
    began = now()
    found = store.nearest(task(5), 10)
    return now() - began, f"distance {found[0].distance:.2f} to {found[-1].distance:.2f}"


def lend(store: Any, path: str) -> tuple[float, str]:
    """The questions of a search that starts from history, once per task."""
    store.best("nothing")
    began = now()
    found = store.lend(task(5), "elsewhere", 2000)
    return now() - began, f"{sum(len(f.rows) for f in found)} rows of {len(found)} groups"


def compact(by: str) -> Callable[..., tuple[float, str]]:
    def run(store: Any, path: str) -> tuple[float, str]:
        from tt_history import maintenance

        began = now()
        done = maintenance.compact(store, by)
        return now() - began, f"{done['removed']:,} of {done['rows']:,} removed"

    return run


def prune(store: Any, path: str) -> tuple[float, str]:
    from tt_history import maintenance

    began = now()
    done = maintenance.prune(store, maintenance.Unwanted(failed=True))
    return now() - began, f"{done['removed']:,} of {done['rows']:,} removed"


def merge(store: Any, path: str, a: str, b: str) -> tuple[float, str]:
    from tt_history import SqliteStore, maintenance

    began = now()
    done = maintenance.merge([SqliteStore(a), SqliteStore(b)], store)
    return now() - began, f"{done['rows']:,} rows, {done['doubles']:,} were in both"


def vacuum(store: Any, path: str) -> tuple[float, str]:
    from tt_history import maintenance

    began = now()
    done = maintenance.vacuum(store)
    return now() - began, f"{done['bytes_before'] / 1e6:.0f} -> {done['bytes']['file'] / 1e6:.0f} MB"


def exchanging(form: str, call: str, told: str) -> Callable[..., tuple[float, str]]:
    """`export` or `take` of a format; `told` says what came of it."""

    def run(store: Any, path: str, file: str) -> tuple[float, str]:
        from tt_history import exchange

        piece = Plugins().build("format", form)
        began = now()
        done = getattr(exchange, call)(store, piece, Path(file))
        return now() - began, told.format(**done, mb=os.path.getsize(file) / 1e6)

    return run


def migrate(store: Any, path: str) -> tuple[float, str]:
    before = os.path.getsize(path)
    began = now()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.remember([])
    took = now() - began
    store.close()
    return took, f"{before / 1e6:.0f} -> {os.path.getsize(path) / 1e6:.0f} MB before a vacuum"


OPERATIONS: dict[str, Callable[..., tuple[float, str]]] = {
    "fill": fill,
    "opening": opening,
    "appending": appending,
    "best": best,
    "best_of_one": best_of_one,
    "query": query,
    "stream": stream,
    "restore": restore,
    "summary": summary,
    "nearest": nearest,
    "lend": lend,
    "by_date": compact("date"),
    "by_mean": compact("mean"),
    "prune": prune,
    "merge": merge,
    "vacuum": vacuum,
    "migrate": migrate,
    **{
        f"{name}_{form}": exchanging(form, call, told)
        for form in ("parquet", "csv")
        for name, call, told in (
            ("export", "export", "{written:,} records, {mb:.0f} MB"),
            ("import", "take", "{added:,} of {records:,} added"),
        )
    },
}


def _now_mb() -> float:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 1e6


def do(operation: str, version: int, path: Path, *more: Any) -> dict[str, Any]:
    """One operation in a fresh process: `s`, `remark` and `peak_mb`, its largest memory in all."""
    call = [sys.executable, __file__, "--do", json.dumps([operation, version, str(path), *more])]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{operation} of version {version} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in (path, path.with_name(path.name + "-wal")) if p.exists())


def line(
    what: str, one: float | None, two: float, unit: str, bound: float | None, remark: str = "", more=False
) -> None:
    """Print one comparison; `more` says that a larger figure is better."""
    ratio = "" if one is None else f"{(two / one if more else one / two):8.1f} x"
    met = "" if bound is None else ("ok" if (two >= bound if more else two <= bound) else "MISSED")
    limit = "" if bound is None else f"{'>=' if more else '<='} {bound:g}"
    old = "-" if one is None else f"{one:,.4g}"
    print(f"{what:34} {old:>12} {two:>12,.4g} {unit:7} {ratio:>11} {limit:>12} {met:7} {remark}", flush=True)


def cpu() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.split(":")[1].strip()
    return "unknown CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records of the history of many tasks")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks that share them")
    parser.add_argument("--folder", type=Path, help="where the files are made; else a temporary folder")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="what times are (default: wall)")
    parser.add_argument("--do", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do:
        operation, version, path, *more = json.loads(options.do)
        store = open_store(version, path)
        took, remark = OPERATIONS[operation](store, path, *more)
        store.close()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        print(json.dumps({"s": took, "remark": remark, "peak_mb": peak}))
        return
    os.environ["TT_BENCHMARK_CLOCK"] = options.clock
    folder = Path(tempfile.mkdtemp(prefix="tt-history-", dir=options.folder))
    try:
        compare(folder, options.records, options.tasks)
    finally:
        shutil.rmtree(folder)


def compare(folder: Path, n: int, tasks: int) -> None:
    rows = n // tasks
    old, new, one_old, one_new = (folder / f"{name}.db" for name in ("many1", "many2", "one1", "one2"))
    clock = "CPU time" if os.environ["TT_BENCHMARK_CLOCK"] == "cpu" else "wall clock"
    print(f"{n:,} records of {tasks:,} tasks, and {n // 10:,} of one task; {cpu()}, {os.cpu_count()} cores, {clock}")
    print(f"{'':34} {'version 1':>12} {'version 2':>12} {'':7} {'better by':>11} {'bound':>12}")
    a, b = do("fill", 1, old, tasks, rows), do("fill", 2, new, tasks, rows)
    line("bytes a record", size_of(old) / n, size_of(new) / n, "bytes", 400)
    line("written in bulk", n / a["s"], n / b["s"], "rows/s", 20_000, more=True)
    do("fill", 1, one_old, 1, n // 10)
    do("fill", 2, one_new, 1, n // 10)
    for what, operation, where, unit, factor, bound in (
        ("open", "opening", 0, "ms", 1e3, 50),
        ("append one row, p95", "appending", 0, "ms", 1e3, 5),
        ("best", "best", 0, "ms", 1e3, 5),
        (f"best of a task of {n // 10:,} rows", "best_of_one", 1, "ms", 1e3, 5),
        ("query a task", "query", 0, "ms", 1e3, 50),
        (f"stream {n // 10:,} rows", "stream", 1, "s", 1, None),
        ("restore 10,000 rows", "restore", 1, "s", 1, 1),
        ("summary", "summary", 0, "s", 1, 0.5),
    ):
        a, b = (do(operation, v, (pair)[where]) for v, pair in ((1, (old, one_old)), (2, (new, one_new))))
        line(what, a["s"] * factor, b["s"] * factor, unit, bound, b["remark"])
        if operation == "stream":
            one, two = (float(x["remark"].split(" in ")[1].split()[0]) for x in (a, b))
            line("  its memory", one, two, "MB", 50)
    line("nearest", None, do("nearest", 2, new)["s"], "s", 0.2)
    line("lend 2,000 rows", None, do("lend", 2, new)["s"], "s", 0.3)
    maintained_by = (("compact --by date", "by_date"), ("compact --by mean", "by_mean"), ("prune --failed", "prune"))
    for what, operation in maintained_by:
        copy = folder / "copy.db"
        shutil.copy(new, copy)
        maintained(what, do(operation, 2, copy))
        if operation == "by_date":
            maintained("vacuum after it", do("vacuum", 2, copy))
        copy.unlink()
    for form, bound in (("parquet", 60), ("csv", 120)):
        exchanged(folder, new, form, bound)
    half_a, half_b = folder / "a.db", folder / "b.db"
    do("fill", 2, half_a, tasks, rows // 2, 0)
    do("fill", 2, half_b, tasks, rows // 2, 1)
    maintained("merge two halves", do("merge", 2, folder / "c.db", str(half_a), str(half_b)))
    maintained("migrate", do("migrate", 2, old))
    maintained("vacuum after it", do("vacuum", 2, old))
    line("bytes a record, migrated", None, size_of(old) / n, "bytes", None)


def exchanged(folder: Path, history: Path, form: str, bound: float) -> None:
    """To a file and, twice, from it."""
    file, into = folder / f"all.{form}", folder / "imported.db"
    for what, operation, path in (
        (f"export {form}", f"export_{form}", history),
        (f"import {form}", f"import_{form}", into),
        ("import it again", f"import_{form}", into),
    ):
        done = do(operation, 2, path, str(file))
        line(what, None, done["s"], "s", bound, done["remark"])
        line("  its memory", None, done["peak_mb"], "MB", 500)
    for path in folder.glob("all.*"):
        path.unlink()
    into.unlink()


def maintained(what: str, done: dict[str, Any]) -> None:
    line(what, None, done["s"], "s", 90, done["remark"])
    line("  its memory", None, done["peak_mb"], "MB", 300)


if __name__ == "__main__":
    main()
