"""The peak of this machine, and a fixed program that tells how near to it the machine runs now."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["peak_flops", "probe"]

CHAINS = 12
"""Independent multiply-adds in flight: more than latency times units of any core, fewer than registers."""

PROBE_STEPS = 20_000
"""Of `probe`: 60 to 120 us on the CPUs of today."""


def peak_flops(target: Target, steps: int = 200_000, repeats: int = 500) -> float:
    """FLOP/s of independent float32 multiply-adds on registers, all of the target's cores; the best of `repeats`.

    Takes about a second: the first repeats may find two threads on one core. Raises what TVM raises for a target that
    is no CPU's.
    """
    once, flop = _multiply_adds(target, steps)
    return flop / min(once() for _ in range(repeats))


@lru_cache(maxsize=8)
def probe(target: str) -> Callable[[], float]:
    """A program of about 0.1 ms that always does the same on all of a target's cores: seconds of one run.

    It touches no memory, so whatever slows it (another thread on the same core, a lower clock, a core taken away) is
    the machine's doing. Raises what TVM raises for a target that is no CPU's.
    """
    import tvm

    return _multiply_adds(tvm.target.Target(json.loads(target)), PROBE_STEPS)[0]


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
    main = tvm.tirx.build(s.mod, target=target)["main"]
    args = [tvm.runtime.tensor(np.full([int(d) for d in p.shape], 1e-3, "float32")) for p in s.mod["main"].params]

    def once() -> float:
        start = time.perf_counter()
        main(*args)
        return time.perf_counter() - start

    return once, 2.0 * tasks * CHAINS * lanes * steps
