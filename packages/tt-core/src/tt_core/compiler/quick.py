"""The program of an operator that nobody tuned: what tuned ones are compared with, and what ships where there is none.

As it is lowered, a program sums along the innermost loop, which no compiler may turn into vectors: 0.4 s for a
convolution that takes 2 ms tuned. Here each operator's last spatial loop stands innermost, as lanes of a vector, and
the others are one parallel loop. Sums have the same order as before. 15 ms for that convolution.
"""

from __future__ import annotations

import contextlib
import math

import tvm
import tvm_ffi
from tvm.target import Target
from tvm.tirx import IterVar

__all__ = ["depths", "quick"]

LANES = 16
LIGHT = 2**20
"""Iterations in all up to which a program is quick enough as it is: it would take longer to build another."""


def quick(mod: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module's "main" so scheduled; as it is where nothing can be gained, or on another target than a CPU."""
    if "cpu" not in target.keys:
        return mod
    try:
        schedule = tvm.s_tir.Schedule(mod)
        blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
        work = [math.prod(int(v.dom.extent) for v in schedule.get(b).iter_vars) for b in blocks]
    except Exception:  # TVM raises several types; a program that cannot be scheduled is run as it is
        return mod
    if sum(work) <= LIGHT:
        return mod
    for block in blocks:
        with contextlib.suppress(Exception):  # each primitive that worked has kept the program's meaning
            _vectorise(schedule, block)
    return schedule.mod


def _vectorise(schedule: tvm.s_tir.Schedule, block: tvm.s_tir.schedule.SBlockRV) -> None:
    found, loops = schedule.get(block), schedule.get_loops(block)
    kinds = [int(v.iter_type) for v in found.iter_vars]
    if len(loops) != len(kinds) or any(k not in (IterVar.DataPar, IterVar.CommReduce) for k in kinds):
        return
    spatial = [x for x, k in zip(loops, kinds, strict=True) if k == IterVar.DataPar]
    summed = [x for x, k in zip(loops, kinds, strict=True) if k == IterVar.CommReduce]
    wide = [i for i, x in enumerate(spatial) if int(schedule.get(x).extent) > 1]
    if not wide:
        return
    lanes = spatial.pop(wide[-1])
    schedule.reorder(*spatial, *summed, lanes)
    if spatial:
        schedule.parallel(schedule.fuse(*spatial))
    if summed and found.init is not None:
        _vector(schedule, schedule.get_loops(schedule.decompose_reduction(block, summed[0]))[-1])
    _vector(schedule, lanes)


def _vector(schedule: tvm.s_tir.Schedule, loop: tvm.s_tir.schedule.LoopRV) -> None:
    if int(schedule.get(loop).extent) > LANES:
        loop = schedule.split(loop, [None, LANES])[1]
    schedule.vectorize(loop)


def depths(func: tvm.tirx.PrimFunc) -> dict[str, int]:
    """How many values a PrimFunc adds up to one, by the dtype that holds the sum; sums of sums count together."""
    found: dict[str, int] = {}

    def visit(block: tvm.s_tir.SBlock) -> None:
        n = math.prod(int(v.dom.extent) for v in block.iter_vars if int(v.iter_type) == IterVar.CommReduce)
        for region in block.writes if n > 1 else ():
            dtype = str(region.source.dtype)
            found[dtype] = found.get(dtype, 0) + n

    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, visit))
    return found
