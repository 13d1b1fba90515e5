"""Templates for CPUs: few knobs, cut so that most rows are good.

One loop structure serves convolutions, depthwise convolutions and matrix products whose weights are packed by lanes
(`tt_space.packing`): a tile of output pixels times lane blocks stays in vector registers over the whole reduction, and
bias, activation and residual are applied to it before it is stored once.

Source: the register-tiled kernels of Georganas et al. (2018), Anatomy of high-performance deep learning convolutions on
SIMD architectures, SC; "code templates with knobs" as in Chen et al. (2018), Learning to optimize tensor programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tt_spec import Knob, Space
from tvm.s_tir import Schedule

from tt_space.machine import vector_unit
from tt_space.nests.blocks import read_blocks
from tt_space.nests.index import uniform
from tt_space.nests.interpreter import Interpreter, signature
from tt_space.nests.templates import TemplateStructure
from tt_space.packing import ANCHOR, WHOLE
from tt_space.programs import Features, TemplateRows, blocks_of, copied

__all__ = ["Anchor", "TemplatePrograms", "divisors", "find_anchor", "has_template", "inlined", "pad_apart"]

ORDERS = ("blocks rows | columns", "rows blocks | columns", "rows | blocks columns", "rows columns | blocks")
"""Outer loops: parallel ones before the bar, serial ones after it, outermost first."""

VERSION = "1"


@dataclass(frozen=True)
class Anchor:
    """The facts about a fused function that a template needs.

    Args:
        name, kind: Those of the block that reduces.
        pad: Name of the block that pads its input, if any.
        last: Name of the block that writes the output.
        others: Names of the elementwise blocks in between.
        pixels: Extents of the output before the lane blocks, outermost first.
        blocks, lanes: Packed output channels.
        reduce: Extents of the reduction.
        whole: Whether its weights are whole numbers, see `tt_space.packing.WHOLE`.
    """

    name: str
    kind: str
    pad: str | None
    last: str
    others: tuple[str, ...]
    pixels: tuple[int, ...]
    blocks: int
    lanes: int
    reduce: tuple[int, ...]
    whole: bool = False

    @property
    def tiled(self) -> int:
        """Number of last pixel axes that a register tile may span."""
        return 1 if self.kind == "batched" or len(self.pixels) < 2 else 2


class TemplatePrograms(TemplateRows):
    """Rows to schedules for one workload. Every row in range has a program, and is its own canonical row."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        self.mod, self.target = mod, target
        anchor = find_anchor(mod)
        if anchor is None:
            raise ValueError("the workload has no template: none of its operators was lowered for one")
        self.anchor = anchor
        self.space = _space(anchor, target)
        self.features = Features(mod, target)
        self.interpret = Interpreter(self.space, self._structure, self.exact, signature(mod, self.space))

    def _structure(self) -> TemplateStructure:
        blocks = read_blocks(inlined(self.mod, self.anchor.others))
        return TemplateStructure(self.space, lambda _: blocks, lambda s, knobs: scheduled(s, self.anchor, knobs))

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        return scheduled(copied(self.mod), self.anchor, knobs)


def has_template(mod: tvm.IRModule) -> bool:
    """Return whether the workload has a template, so that `TemplatePrograms` can open it."""
    return find_anchor(mod) is not None


def find_anchor(mod: tvm.IRModule) -> Anchor | None:
    """The heavy block of a function and what surrounds it, or None where a template does not fit."""
    blocks = blocks_of(mod)
    heavy = [i for i, b in enumerate(blocks) if ANCHOR in (b.annotations or {})]
    if len(heavy) != 1:
        return None
    block = blocks[heavy[0]]
    others = [b for b in blocks if b is not block]
    if any(v.iter_type != 0 for b in others for v in b.iter_vars):  # another reduction
        return None
    before = [b.name_hint for b in blocks[: heavy[0]]]
    after = blocks[heavy[0] + 1 :]
    extents = [int(v.dom.extent) for v in block.iter_vars if v.iter_type == 0]
    pixels, (n_blocks, lanes) = tuple(extents[:-2]), extents[-2:]
    out = [int(v.dom.extent) for v in after[-1].iter_vars] if after else []
    last_shape = [int(d) for d in after[-1].writes[0].source.shape] if after else []
    unpacked = (*pixels, last_shape[-1] if last_shape else 0)
    if len(before) > 1 or tuple(out) != tuple(last_shape) or tuple(last_shape) != unpacked:
        return None
    if not n_blocks * lanes - lanes < last_shape[-1] <= n_blocks * lanes:
        return None
    return Anchor(
        name=block.name_hint,
        kind=str(block.annotations[ANCHOR]),
        pad=before[0] if before else None,
        last=after[-1].name_hint,
        others=tuple(b.name_hint for b in after[:-1]),
        pixels=pixels,
        blocks=n_blocks,
        lanes=lanes,
        reduce=tuple(int(v.dom.extent) for v in block.iter_vars if v.iter_type != 0),
        whole=WHOLE in block.annotations,
    )


def _space(a: Anchor, target: tvm.target.Target) -> Space:
    registers = vector_unit(target).registers
    height = a.pixels[-2] if a.tiled == 2 else 1
    width = a.pixels[-1]
    tiles = [
        (h, w, b)
        for h in divisors(height)
        for w in divisors(width)
        for b in divisors(a.blocks)
        if h * w * b <= registers - 4 and b <= 8
    ]
    most = max(h * w * b for h, w, b in tiles)
    tiles = [t for t in tiles if 4 * t[0] * t[1] * t[2] >= min(most, registers)]
    knobs = [Knob("tile", "tile", tuple(tiles)), Knob("order", "choice", _orders(a))]
    if a.kind == "depthwise":
        knobs.append(Knob("unroll", "choice", ("kx", "ky kx")))
    else:
        depth = a.reduce[-1]
        slices = [d for d in divisors(depth) if 16 <= d < depth and d in (16, 32, 64, 128, 256)]
        knobs.append(Knob("slice", "choice", (*slices, depth)))
        knobs.append(
            Knob("unroll", "choice", tuple(u for u in (1, 2, 3, 4, 8) if all(s % u == 0 for s in (*slices, depth))))
        )
    if a.pad is not None:
        knobs.append(Knob("pad", "choice", ("apart", "per task")))
    return Space(tuple(knobs), version=VERSION, name="template")


def _orders(a: Anchor) -> tuple[str, ...]:
    return ORDERS if a.tiled == 2 and a.pixels[-2] > 1 else (ORDERS[0], ORDERS[1], ORDERS[3])


def scheduled(s: Any, a: Anchor, knobs: dict[str, Any]) -> Any:
    """Schedule a workload: `s` is TVM's schedule, or one of many programs at once (`tt_space.nests`)."""
    for name in a.others:
        s.compute_inline(s.get_sblock(name))
    last, heavy = s.get_sblock(a.last), s.get_sblock(a.name)
    high, wide, some = knobs["tile"]
    *pixels, channel = s.get_loops(last)
    rest, row, column = pixels[:-2], pixels[-2] if len(pixels) > 1 else None, pixels[-1]
    if row is None:
        row, column = s.split(column, [1, None])
    if a.tiled == 1 and len(pixels) > 1:
        high = 1
    rows, row = s.split(row, [None, high])
    columns, column = s.split(column, [None, wide])
    blocks, block, lane = s.split(channel, [None, some, a.lanes])
    parallel, serial = knobs["order"].split(" | ")
    named = {"rows": rows, "columns": columns, "blocks": blocks}
    outer, inner = ([named[w] for w in part.split()] for part in (parallel, serial))
    s.reorder(*rest, *outer, *inner, row, column, block, lane)
    task = s.fuse(*rest, *outer)
    s.parallel(task)
    for loop in (row, column, block):
        s.unroll(loop)
    s.vectorize(lane)
    s.compute_at(heavy, inner[-1], preserve_unit_loops=True)
    s.set_scope(heavy, 0, "local")
    spatial = len(a.pixels) + 2
    loops = s.get_loops(heavy)[-(spatial + len(a.reduce)) :]
    tile, reduce = loops[:spatial], loops[spatial:]
    if a.kind == "depthwise":
        outermost = reduce[0]
        unrolled = reduce if knobs["unroll"] == "ky kx" else reduce[1:]
        s.reorder(*reduce, *tile)
    else:
        *kernel, depth = reduce
        slices, depth = s.split(depth, [None, knobs["slice"]])
        depth, step = s.split(depth, [None, knobs["unroll"]])
        s.reorder(slices, *kernel, depth, step, *tile)
        outermost, unrolled = slices, [step]
    for loop in (*unrolled, *tile[:-1]):
        s.unroll(loop)
    s.vectorize(tile[-1])
    s.decompose_reduction(heavy, outermost)
    if a.pad is not None:
        if knobs["pad"] == "per task":
            pad_within(s, a, task)
        else:
            pad_apart(s, a)
    return s


def inlined(mod: tvm.IRModule, names: tuple[str, ...]) -> tvm.IRModule:
    """The workload with some elementwise blocks computed where they are read."""
    s = copied(mod)
    for name in names:
        s.compute_inline(s.get_sblock(name))
    return s.mod


def pad_apart(s: Any, a: Anchor) -> None:
    """Zeros around the image in a pass of its own."""
    n, y, *_, channel = s.get_loops(s.get_sblock(a.pad))
    s.parallel(s.fuse(n, y))
    _vectorize(s, channel, a.lanes)


def pad_within(s: Any, a: Anchor, loop: Any) -> None:
    """Zeros around what one pass of a loop reads of the image."""
    pad = s.get_sblock(a.pad)
    s.compute_at(pad, loop, preserve_unit_loops=True)
    _vectorize(s, s.get_loops(pad)[-1], a.lanes)


def _vectorize(s: Any, loop: Any, lanes: int) -> None:
    """Vectorise a copy's innermost loop as far as its extent is known and divides."""
    extent = s.get(loop).extent
    if isinstance(extent, tvm.tirx.IntImm):
        extent = int(extent)
    elif not isinstance(extent, int | np.integer | np.ndarray):
        return
    while not uniform(extent % lanes == 0):
        lanes //= 2
    if lanes > 1:
        s.vectorize(s.split(loop, [None, lanes])[1])


def divisors(n: int) -> list[int]:
    """The divisors of `n` in ascending order."""
    return [d for d in range(1, n + 1) if n % d == 0]
