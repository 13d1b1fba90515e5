"""The peak of this machine, and a fixed program that tells how near to it the machine runs now."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.target import Target

__all__ = ["exchange", "peak_flops", "probe"]

CHAINS = 12
"""Independent multiply-adds in flight: more than latency times units of any core, fewer than registers."""

PROBE_BYTES = 32 << 10
"""What each thread of `probe` writes, and its neighbour reads: as much as a core's first cache holds."""

PROBE_READS = 16
"""How often it is read: so that fetching it from another core takes about as long as the arithmetic."""


def peak_flops(target: Target, steps: int = 200_000, repeats: int = 500) -> float:
    """FLOP/s of independent float32 multiply-adds on registers, all of the target's cores; the best of `repeats`.

    Takes about a second: the first repeats may find two threads on one core. Raises what TVM raises for a target that
    is no CPU's.
    """
    once, flop = _multiply_adds(target, steps)
    return flop / min(once() for _ in range(repeats))


@lru_cache(maxsize=8)
def probe(target: str) -> Callable[[], float]:
    """A program of 15 to 60 us that always does the same on all of a target's cores: seconds of one run, the third of
    three, since the first ones after a candidate find its data in the caches and not their own.

    Each thread writes `PROBE_BYTES`, then multiplies what its neighbour wrote with six numbers, again and again. So it
    suffers with tensor programs from whoever works on the other half of a core, from a lower clock, and from
    processors that the host has put far apart: on two that share no cache it takes twice as long, as programs do whose
    stages divide the work in different ways. Raises what TVM raises for a target that is no CPU's.
    """
    import tvm

    resolved = tvm.target.Target(json.loads(target))
    once = _timed(exchange(resolved), resolved)

    def third() -> float:
        once()
        once()
        return once()

    return third


def exchange(target: Target) -> Schedule:
    """`probe`'s program: of x `(rows, 6)` and y `(threads, lanes)` the sums `(threads, 6, 2, lanes)`, over rows and
    `PROBE_READS`, of x times twice the neighbour's y."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from tt_core.compiler.target import threads_of

    lanes, tasks = tvm.target.codegen.llvm_get_vector_width(target) // 32, threads_of(target)
    vectors, numbers = 2, CHAINS // 2
    rows = PROBE_BYTES // (vectors * lanes * 4)
    x, y = te.placeholder((rows, numbers), name="x"), te.placeholder((tasks, lanes), name="y")
    own = te.compute((tasks, rows, vectors, lanes), lambda t, k, u, v: y[t, v] + y[t, v], name="own")
    r, k = te.reduce_axis((0, PROBE_READS), "r"), te.reduce_axis((0, rows), "k")
    out = te.compute(
        (tasks, numbers, vectors, lanes),
        lambda t, n, u, v: te.sum(x[k, n] * own[(t + 1) % tasks, k, u, v], axis=[r, k]),
        name="product",
    )
    s = Schedule(te.create_prim_func([x, y, out]).with_attr("tirx.noalias", True))
    t, _, u, v = s.get_loops(s.get_sblock("own"))
    s.parallel(t)
    s.unroll(u)
    s.vectorize(v)
    block = s.get_sblock("product")
    local = s.cache_write(block, 0, "local")
    t, n, u, v, again, step = s.get_loops(block)
    s.reorder(t, again, step, n, u, v)
    s.parallel(t)
    s.unroll(n)
    s.unroll(u)
    s.vectorize(v)
    s.reverse_compute_at(local, t)
    *_, n2, u2, v2 = s.get_loops(local)
    s.unroll(n2)
    s.unroll(u2)
    s.vectorize(v2)
    s.decompose_reduction(block, again)
    return s


def _multiply_adds(target: Target, steps: int) -> tuple[Callable[[], float], float]:
    """A program that times itself, `steps` multiply-adds of each chain, lane and core on registers; and its FLOP."""
    import tvm
    from tvm import te
    from tvm.s_tir import Schedule

    from tt_core.compiler.target import threads_of

    lanes, tasks = tvm.target.codegen.llvm_get_vector_width(target) // 32, threads_of(target)
    x, y = (te.placeholder((steps // 1000, lanes), name=name) for name in "xy")
    k = te.reduce_axis((0, steps), "k")
    out = te.compute(
        (tasks, CHAINS, lanes), lambda t, c, v: te.sum(x[k // 1000, v] * y[k // 1000, v], axis=k), name="peak"
    )
    s = Schedule(te.create_prim_func([x, y, out]).with_attr("tirx.noalias", True))
    block = s.get_sblock("peak")
    local = s.cache_write(block, 0, "local")
    t, c, v, r = s.get_loops(block)
    outer, inner = s.split(r, [None, 1000])
    s.reorder(t, outer, inner, c, v)
    s.parallel(t)
    s.unroll(c)
    s.vectorize(v)
    s.reverse_compute_at(local, t)
    *_, c2, v2 = s.get_loops(local)
    s.unroll(c2)
    s.vectorize(v2)
    s.decompose_reduction(block, outer)
    return _timed(s, target), 2.0 * tasks * CHAINS * lanes * steps


def _timed(schedule: Schedule, target: Target) -> Callable[[], float]:
    """A program on arrays of small numbers, built; each call is one run and tells its seconds."""
    import tvm

    main, params = tvm.tirx.build(schedule.mod, target=target)["main"], schedule.mod["main"].params
    args = [tvm.runtime.tensor(np.full([int(d) for d in p.shape], 1e-3, "float32")) for p in params]

    def once() -> float:
        start = time.perf_counter()
        main(*args)
        return time.perf_counter() - start

    return once
