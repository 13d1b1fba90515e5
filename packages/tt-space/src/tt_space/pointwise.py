"""The template of operators that reduce nothing: copies, concatenations, slices, pads, elementwise arithmetic.

Each output is one loop nest whose innermost axis is cut into vectors of some length, and the rest is one loop for all
threads or for one. TVM's sketch of such an operator leaves nothing open: it fuses all axes, so that a vector may cross
the seam of a concatenation and is loaded element by element, and starts all threads for a hundred elements, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tt_spec import Knob, Space
from tvm import tirx
from tvm.s_tir import Schedule

from tt_space.programs import Features, TemplateRows, blocks_of, copied

__all__ = ["PointwisePrograms"]

VERSION = "1"
LANES = (1, 4, 8, 16, 32, 64)
"""Elements of a vector: up to four registers of AVX-512; one leaves it to LLVM."""
ALONE = 256
"""Elements of an output up to which one thread computes it: starting another takes longer."""


class PointwisePrograms(TemplateRows):
    """Rows to schedules for one workload. Every row in range has a program, and is its own canonical row."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        work = _read(mod)
        if work is None:
            raise ValueError("the workload reduces something, or is no list of loop nests")
        self.mod, self.work = mod, work
        self.space = _space(work)
        self.features = Features(mod, target)

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        return _scheduled(self.mod, self.work, knobs["lanes"], knobs.get("threads", "one") == "all")


@dataclass(frozen=True)
class _Work:
    """A workload.

    Args:
        inlined: Names of the blocks that are computed where they are read.
        outputs: Extents of each other block, by its name.
    """

    inlined: tuple[str, ...]
    outputs: dict[str, tuple[int, ...]]


def _read(mod: tvm.IRModule) -> _Work | None:
    inlined: list[str] = []
    outputs: dict[str, tuple[int, ...]] = {}
    for block in (blocks := blocks_of(mod)):
        extents = tuple(int(v.dom.extent) for v in block.iter_vars)
        plain = isinstance(block.body, tirx.BufferStore) and not block.match_buffers and not block.alloc_buffers
        if not plain or any(int(v.iter_type) != tirx.IterVar.DataPar for v in block.iter_vars):
            return None
        if any(block.body.buffer.same_as(b) for b in mod["main"].body.block.alloc_buffers):
            inlined.append(block.name_hint)
        else:
            outputs[block.name_hint] = extents
    if not blocks or not all(outputs.values()):
        return None
    work = _Work(tuple(inlined), outputs)
    try:
        _scheduled(mod, work, 1, True)
    except Exception:  # TVM raises several types for what it cannot inline
        return None
    return work


def _space(work: _Work) -> Space:
    last = math.gcd(*(extents[-1] for extents in work.outputs.values()))
    knobs = [Knob("lanes", "choice", tuple(n for n in LANES if last % n == 0))]
    if max(math.prod(extents) for extents in work.outputs.values()) > ALONE:
        knobs.append(Knob("threads", "choice", ("all", "one")))
    return Space(tuple(knobs), version=VERSION, name="pointwise")


def _scheduled(mod: tvm.IRModule, work: _Work, lanes: int, parallel: bool) -> Schedule:
    s = copied(mod)
    for name in work.inlined:
        s.compute_inline(s.get_sblock(name))
    for name in work.outputs:
        *outer, last = s.get_loops(s.get_sblock(name))
        if lanes > 1:
            last, vector = s.split(last, [None, lanes])
            s.vectorize(vector)
        if parallel:
            s.parallel(s.fuse(*outer) if outer else last)
    return s
