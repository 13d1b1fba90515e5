"""The template of a recurrent step: products of the state with packed weights, then gates and activations.

A step's few output pixels (the batch) leave nothing to reuse a weight for, so its time is that of reading the weights:
several lane blocks are summed at once in registers, each weight is read in one vector, in the order in which it lies in
memory. Gates read other columns of the product than they write, so they follow in a pass of their own, vectorised,
while the sums are still in the first-level cache.

Source: the fused elementwise operations of Appleyard, Kocisky, Blunsom (2016), Optimizing performance of recurrent
neural networks on GPUs, arXiv:1604.01946, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tt_spec import Knob, Space
from tvm.s_tir import SBlock, Schedule

from tt_space.machine import vector_unit
from tt_space.packing import ANCHOR
from tt_space.programs import Features, TemplateRows, blocks_of, copied
from tt_space.template import divisors

__all__ = ["STEP", "RecurrentPrograms", "has_step"]

STEP = "tt.step"
"""Attribute of a function that is the step of a loop over time."""
VERSION = "1"
MOST_ROWS = 64
"""Rows of a step's products up to which the template is offered."""


@dataclass(frozen=True)
class _Step:
    """The blocks of a step by name.

    Args:
        products: Those that reduce, with the extents of their rows, their lane blocks and their reduction.
        inlined: Elementwise ones that are computed where they are read.
        kept: The other elementwise ones.
    """

    products: dict[str, tuple[int, int, int]]
    inlined: tuple[str, ...]
    kept: tuple[str, ...]


class RecurrentPrograms(TemplateRows):
    """Rows to schedules for one step. Every row in range has a program, and is its own canonical row."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        step = _step(mod)
        if step is None:
            raise ValueError("the workload is no step with packed products")
        self.mod, self.target, self.step = mod, target, step
        self.lanes = vector_unit(target).lanes("float32")
        self.space = _space(step, target)
        self.features = Features(mod, target)

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        return _schedule(self.mod, self.step, knobs, self.lanes)


def has_step(mod: tvm.IRModule) -> bool:
    """Return whether the workload is a step that `RecurrentPrograms` can open."""
    return _step(mod) is not None


def _step(mod: tvm.IRModule) -> _Step | None:
    main = mod["main"]
    blocks = blocks_of(mod) if STEP in (main.attrs or {}) else []
    products: dict[str, tuple[int, int, int]] = {}
    for block in blocks:
        reduce = [int(v.dom.extent) for v in block.iter_vars if v.iter_type != 0]
        if not reduce:
            continue
        extents = [int(v.dom.extent) for v in block.iter_vars if v.iter_type == 0]
        if str((block.annotations or {}).get(ANCHOR)) != "contraction" or len(reduce) != 1 or len(extents) != 3:
            return None
        products[block.name_hint] = extents[0], extents[1], reduce[0]
    if not products or max(p[0] for p in products.values()) > MOST_ROWS:
        return None
    outputs = {b.name_hint for b in blocks if any(b.writes[0].source.same_as(p) for p in main.params)}
    feeds = _feeding(blocks, set(products))
    kept = tuple(b.name_hint for b in blocks if b.name_hint not in products and b.name_hint in outputs | feeds)
    inlined = tuple(b.name_hint for b in blocks if b.name_hint not in products and b.name_hint not in kept)
    return _Step(products, inlined, kept)


def _feeding(blocks: list[SBlock], products: set[str]) -> set[str]:
    """Blocks that a product reads: computed before it, once."""
    read = [r.source for b in blocks if b.name_hint in products for r in b.reads]
    return {
        b.name_hint for b in blocks if b.name_hint not in products and any(b.writes[0].source.same_as(r) for r in read)
    }


def _space(step: _Step, target: tvm.target.Target) -> Space:
    registers = vector_unit(target).registers
    knobs = []
    for i, (rows, blocks, depth) in enumerate(step.products.values()):
        mark = "" if len(step.products) == 1 else f"_{i}"
        tiles = [(r, b) for r in divisors(rows) for b in divisors(blocks) if r * b <= registers - 4]
        most = max(r * b for r, b in tiles)
        tiles = [t for t in tiles if 4 * t[0] * t[1] >= most]
        knobs.append(Knob(f"tile{mark}", "tile", tuple(tiles)))
        knobs.append(Knob(f"unroll{mark}", "choice", tuple(u for u in (1, 2, 4, 8) if depth % u == 0)))
    knobs.append(Knob("threads", "choice", ("one", "all")))
    return Space(tuple(knobs), version=VERSION, name="recurrent")


def _schedule(mod: tvm.IRModule, step: _Step, knobs: dict[str, Any], lanes: int) -> Schedule:
    s = copied(mod)
    for name in step.inlined:
        s.compute_inline(s.get_sblock(name))
    for i, name in enumerate(step.products):
        mark = "" if len(step.products) == 1 else f"_{i}"
        _product(s, name, knobs[f"tile{mark}"], knobs[f"unroll{mark}"], knobs["threads"] == "all")
    for name in step.kept:
        loops = s.get_loops(s.get_sblock(name))
        if loops:
            _vectorize(s, loops[-1], lanes)
    return s


def _product(s: Schedule, name: str, tile: tuple[int, int], unroll: int, parallel: bool) -> None:
    heavy = s.get_sblock(name)
    stored = s.cache_write(heavy, 0, "local")
    row, block, lane = s.get_loops(stored)
    rows, row = s.split(row, [None, tile[0]])
    blocks, block = s.split(block, [None, tile[1]])
    s.reorder(blocks, rows, row, block, lane)
    if parallel:
        s.parallel(blocks)
    for loop in (row, block):
        s.unroll(loop)
    s.vectorize(lane)
    s.compute_at(heavy, rows, preserve_unit_loops=True)
    *_, row, block, lane, depth = s.get_loops(heavy)
    depth, inner = s.split(depth, [None, unroll])
    s.reorder(depth, inner, row, block, lane)
    for loop in (inner, row, block):
        s.unroll(loop)
    s.vectorize(lane)
    s.decompose_reduction(heavy, depth)


def _vectorize(s: Schedule, loop: Any, lanes: int) -> None:
    extent = int(s.get(loop).extent)
    while extent % lanes:
        lanes //= 2
    if lanes > 1:
        s.vectorize(s.split(loop, [None, lanes])[1])
