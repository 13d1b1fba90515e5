"""The template of reductions that keep the last axis: pools, and means and sums of pixels.

Elements of the last axis, channels as a rule, are the lanes of a few vectors that stay in registers over the whole
reduction. What follows is applied to them before they are stored once.

Source: the register tiles of `tt_space.template`, with one tile an output pixel and no weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tt_spec import Knob, Space
from tvm import tirx
from tvm.s_tir import Schedule

from tt_space.programs import Features, TemplateRows, blocks_of, copied, loads_of

__all__ = ["PoolingPrograms"]

VERSION = "1"
LANES = (4, 8, 16, 32, 64)
"""Elements that are reduced at once: one to four registers of AVX-512."""


class PoolingPrograms(TemplateRows):
    """Rows to schedules for one workload. Every row in range has a program, and is its own canonical row."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        work = _read(mod)
        if work is None:
            raise ValueError("the workload does not reduce axes before its last one")
        self.mod, self.work = mod, work
        self.space = _space(work)
        self.features = Features(mod, target)

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        return _scheduled(self.mod, self.work, knobs["lanes"], knobs["threads"] == "all")


@dataclass(frozen=True)
class _Work:
    """A workload.

    Args:
        reduced: Name of the block that reduces, and the numbers of its spatial and its reduced axes.
        last: Name of the block that writes the output; None if the first does.
        inlined: Names of the others.
        channels: Extent of the last axis.
    """

    reduced: str
    axes: tuple[int, int]
    last: str | None
    inlined: tuple[str, ...]
    channels: int


def _read(mod: tvm.IRModule) -> _Work | None:
    blocks = blocks_of(mod)
    sums = [i for i, b in enumerate(blocks) if any(int(v.iter_type) != tirx.IterVar.DataPar for v in b.iter_vars)]
    if len(sums) != 1 or any(not isinstance(b.body, tirx.BufferStore) or b.match_buffers for b in blocks):
        return None
    block, after = blocks[sums[0]], blocks[sums[0] + 1 :]
    kinds = [int(v.iter_type) for v in block.iter_vars]
    spatial = [int(v.dom.extent) for v, k in zip(block.iter_vars, kinds, strict=True) if k == tirx.IterVar.DataPar]
    if set(kinds) != {tirx.IterVar.DataPar, tirx.IterVar.CommReduce} or kinds != sorted(kinds):
        return None
    written = [int(d) for d in (after[-1] if after else block).writes[0].source.shape]
    if written[-1] != spatial[-1] or math.prod(written) != math.prod(spatial):
        return None
    if after and [int(v.dom.extent) for v in after[-1].iter_vars] != written:
        return None
    read = [load for load in loads_of(block.body.value) if not load.source.same_as(block.body.buffer)]
    if len(read) != 1 or not read[0].indices[-1].same_as(block.iter_vars[len(spatial) - 1].var):  # 2: a product
        return None
    work = _Work(
        block.name_hint,
        (len(spatial), len(kinds) - len(spatial)),
        after[-1].name_hint if after else None,
        tuple(b.name_hint for b in (*blocks[: sums[0]], *after[:-1])),
        spatial[-1],
    )
    lanes = _lanes(work)
    try:
        _scheduled(mod, work, lanes[0], True)
    except Exception:  # IndexError: no vector divides the axis; TVM raises several types for what it cannot schedule
        return None
    return work


def _lanes(work: _Work) -> tuple[int, ...]:
    return tuple(n for n in LANES if work.channels % n == 0)


def _space(work: _Work) -> Space:
    knobs = Knob("lanes", "choice", _lanes(work)), Knob("threads", "choice", ("all", "one"))
    return Space(knobs, version=VERSION, name="pooling")


def _scheduled(mod: tvm.IRModule, work: _Work, lanes: int, parallel: bool) -> Schedule:
    s = copied(mod)
    for name in work.inlined:
        s.compute_inline(s.get_sblock(name))
    sums = s.get_sblock(work.reduced)
    last = s.cache_write(sums, 0, "local") if work.last is None else s.get_sblock(work.last)
    *outer, channel = s.get_loops(last)
    blocks, lane = s.split(channel, [None, lanes])
    far = outer[:-1]
    wide = math.prod(int(s.get(x).extent) for x in far) > 1
    task, inner = (s.fuse(*far), blocks) if wide else (s.fuse(*outer, blocks), None)
    if parallel:
        s.parallel(task)
    s.vectorize(lane)
    s.compute_at(sums, inner or task, preserve_unit_loops=True)
    if work.last is not None:
        s.set_scope(sums, 0, "local")
    loops = s.get_loops(sums)[-sum(work.axes) :]
    spatial, reduced = loops[: work.axes[0]], loops[work.axes[0] :]
    s.reorder(*spatial[:-1], *reduced, spatial[-1])
    s.vectorize(spatial[-1])
    s.decompose_reduction(sums, reduced[0])
    return s
