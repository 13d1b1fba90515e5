"""One piece: your own TVM schedule and your own loop, with tt's workers, history and search.

The schedule is a matrix product with three knobs; the same call again goes on from its history. Nothing here needs
tt-core: `pip install tt-measure tt-history tt-search 'tt-surrogate[xgboost]' apache-tvm`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tt_history import SqliteStore
from tt_measure import WorkerPool
from tt_search import Anneal
from tt_spec import Bar, Knob, Measurement, Pipeline, Space, Task
from tt_spec.pieces.top_sampler import TopSampler
from tt_surrogate import XGB

N = 128
SPACE = Space(
    (
        Knob("rows", "tile", tuple((N // b, b) for b in (1, 2, 4, 8, 16, 32))),
        Knob("columns", "tile", tuple((N // b, b) for b in (8, 16, 32, 64))),
        Knob("order", "choice", ("reduction outside", "reduction inside")),
    ),
    name="my matrix product, version 1",
)
TASK = Task("matmul-128", "matmul", "matmul", "llvm", (SPACE,), flops=2.0 * N**3)


class Matmul:
    """The backend, which lives in the workers: a row in, a program that can be run out."""

    def open(self, task: Task) -> None:
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.normal(size=(N, N)).astype("float32") for _ in range(2))

    def build(self, task: Task, row: np.ndarray) -> Program:
        import tvm
        from tvm import s_tir, te

        a, b = (te.placeholder((N, N), name=name) for name in "ab")
        k = te.reduce_axis((0, N), name="k")
        c = te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        schedule = s_tir.Schedule(te.create_prim_func([a, b, c]))
        knobs = task.space.decode(row)
        i, j, k = schedule.get_loops(schedule.get_sblock("c"))
        i0, i1 = schedule.split(i, knobs["rows"])
        j0, j1 = schedule.split(j, knobs["columns"])
        inner = (k, i1, j1) if knobs["order"] == "reduction outside" else (i1, k, j1)
        schedule.reorder(i0, j0, *inner)
        schedule.parallel(i0)
        schedule.vectorize(j1)
        return Program(tvm.tirx.build(schedule.mod, "llvm"), self.a, self.b)


class Program:
    """A candidate, ready to run; `check` keeps wrong ones from winning."""

    apply_s = 0.0

    def __init__(self, built: Any, a: np.ndarray, b: np.ndarray) -> None:
        import tvm

        self.main, self.want = built["main"], a @ b
        self.arguments = [tvm.runtime.tensor(x) for x in (a, b, np.zeros_like(a))]

    def run(self, n: int) -> float:
        import time

        began = time.perf_counter()
        for _ in range(n):
            self.main(*self.arguments)
        return (time.perf_counter() - began) / n

    def check(self) -> str | None:
        off = float(np.abs(self.arguments[2].numpy() - self.want).max())
        return None if off <= 1e-3 else f"the product is off by {off:.1e}"


def main() -> None:
    here = Path(__file__)
    store = SqliteStore("matmul.db")
    search = Pipeline(TASK, XGB(), Anneal(steps=50), TopSampler(), seed=0)
    known = search.restore(store.query(TASK.key, SPACE.key))
    print(f"{SPACE.size} configurations, {known} of them measured before")
    with WorkerPool(f"{here.stem}:Matmul", workers=1, path=[here.parent]) as pool:
        for _ in range(3):
            batch = search.ask(8)
            results = list(pool.measure(TASK, batch.codes, Bar(search.best_s, TASK.flops, cap_s=1.0)))
            store.append([Measurement.of(trial, TASK) for trial in results])
            search.tell(batch.id, results)
            failed = sum(m.error is not None for m in results)
            print(f"{len(search.rows)} measured, {failed} failed, best {search.best_s * 1e6:.0f} us")
    best = store.best(TASK.key)
    store.close()
    if best is not None:
        print("best:", SPACE.decode(best.config), f"{TASK.flops / best.latency_s / 1e9:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
