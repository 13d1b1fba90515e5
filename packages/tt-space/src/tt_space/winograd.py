"""Winograd's minimal filtering for 3x3 convolutions of stride 1: fewer multiplications, more additions.

F(m x m, 3 x 3) computes m x m outputs of one channel pair with (m + 2)^2 multiplications instead of 9 m^2: a quarter
for m = 4, 4/9 for m = 2. The weights are transformed when the model is compiled,
`(m + 2, m + 2, blocks, channels, lanes)`. Transforming the image, multiplying and transforming back are done strip by
strip of the image (`WinogradPrograms`), or one after the other (`StepPrograms`).

Source: Lavin and Gray (2016), Fast algorithms for convolutional neural networks, CVPR, arXiv:1509.09308.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
import tvm
from tt_spec import Knob, Space
from tvm.s_tir import Schedule

from tt_space.filtering import convolution, products, rewritten, tiles_of, transformed
from tt_space.machine import threads_of, vector_unit
from tt_space.nests.interpreter import Interpreter, signature
from tt_space.nests.parts import Part, PartStructure
from tt_space.programs import Features, Programs, Repacked, TemplateRows, copied
from tt_space.template import Anchor, divisors, find_anchor, pad_apart, pad_within

__all__ = ["StepPrograms", "WinogradPrograms", "has_winograd", "winograd_parts"]

VERSION = "2"
OUTPUTS = (2, 4)
"""Sizes m of the output tile; 6 would multiply even less, but lose more digits than float32 has to spare."""

LONG = 1 << 19
"""Elements of transformed weights from which on steps may win, 128 channels: in strips each thread reads them all. On
two Zen 5 cores steps took 0.89 of the time of strips with 0.6 million, 1.21 with 2.4 (256 channels), 0.93 with 9.4;
with weights from memory, as in a network, 0.76, 0.76 and 0.62."""

Strip = tuple[int, int]
"""Rows and columns of tiles: some whole rows, or a part of one."""


def has_winograd(mod: tvm.IRModule) -> bool:
    """Return whether the workload is a 3x3 convolution of stride 1 lowered for a template, of any but whole weights."""
    anchor = find_anchor(mod)
    return anchor is not None and _fits(mod, anchor)


def winograd_parts(mod: tvm.IRModule, target: tvm.target.Target) -> list[Programs]:
    """The programs of such a workload: by strips; by steps where the image has too few, or the transformed weights are
    so long that threads had better share them."""
    try:
        strips = WinogradPrograms(mod, target)
    except ValueError:
        return [StepPrograms(mod, target)]
    a = strips.anchor
    size = (max(OUTPUTS) + 2) ** 2 * a.reduce[2] * a.blocks * a.lanes
    return [strips, StepPrograms(mod, target)] if size >= LONG else [strips]


def _fits(mod: tvm.IRModule, a: Anchor) -> bool:
    if a.whole or a.kind != "contraction" or len(a.pixels) != 3 or a.reduce[:2] != (3, 3) or a.reduce[2] < 16:
        return False
    read = [int(d) for d in convolution(mod, a).reads[0].source.shape]
    return read[1:] == [a.pixels[1] + 2, a.pixels[2] + 2, a.reduce[2]]


class _Winograd(TemplateRows):
    """Rows to schedules for one workload. Its programs take transformed weights: `repack`."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        anchor = find_anchor(mod)
        if anchor is None or not _fits(mod, anchor):
            raise ValueError("the workload is not a 3x3 convolution of stride 1 that was lowered for a template")
        self.mod, self.target, self.anchor = mod, target, anchor
        self.features = Features(mod, target)
        weight = convolution(mod, anchor).reads[1].source
        self._weight = next(i for i, p in enumerate(mod["main"].params) if p.same_as(weight) or p.name == weight.name)
        self._bytes = math.prod(map(int, weight.shape)) * np.dtype(str(weight.dtype)).itemsize
        self._steps: dict[int, tvm.IRModule] = {}
        self._variants: dict[tuple[int, Strip | None], tvm.IRModule] = {}

    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        m, strip, tile = self._cut(knobs)
        if m not in self._steps:
            s = copied(rewritten(self.mod, self.anchor, m, self._weight))
            for name in self.anchor.others:
                s.compute_inline(s.get_sblock(name))
            self._steps[m] = s.mod
        if (m, strip) not in self._variants:
            s = copied(self._steps[m])
            _transform(s, self.anchor, m, strip)
            self._variants[m, strip] = s.mod
        s = copied(self._variants[m, strip])
        _multiply(s, self.anchor, tile, knobs, strip is None)
        return s

    @abstractmethod
    def _cut(self, knobs: dict[str, Any]) -> tuple[int, Strip | None, Any]:
        """Size of the output tile, strip, and tiles and blocks in registers."""

    def repack(self, row: np.ndarray) -> Repacked:
        """The weights, transformed for the size of output tile that the row chooses."""
        knobs = self.space.decode(row)
        m, strip, _ = self._cut(knobs)
        size = (m + 2) ** 2 * self._bytes // 9
        again = size if strip is not None and threads_of(self.target) > 1 else 0
        return Repacked(self._weight, f"winograd {m}", partial(transformed, m=m), size - self._bytes, again)


class StepPrograms(_Winograd):
    """One step after the other for the whole image: each weight is read by one thread, but half of what two threads
    make by the other one."""

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        super().__init__(mod, target)
        self.space = _space(self.anchor, target)
        self.interpret = Interpreter(self.space, self._structure, self.exact, signature(mod, self.space))

    def _structure(self) -> PartStructure:
        def part(knobs: dict[str, Any]) -> Part:
            m = knobs["outputs"]
            mod = tvm.IRModule({"main": products(self.anchor, m, tiles_of(self.anchor, m))})
            return Part(mod, lambda s, knobs: _multiply(s, self.anchor, knobs["tile"], knobs, True))

        return PartStructure(self.space, self.exact, part, lambda codes: codes[:, :1])

    def _cut(self, knobs: dict[str, Any]) -> tuple[int, Strip | None, Any]:
        return knobs["outputs"], None, knobs["tile"]


class WinogradPrograms(_Winograd):
    """All steps for a strip of the image, some rows of tiles or a part of one, before the next one: what a step makes
    of it stays in the cache of the thread that made it, and each thread reads all weights.

    Raises `ValueError` for an image that cannot be cut so.
    """

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        super().__init__(mod, target)
        self.space = _strips(self.anchor, target)
        self.interpret = Interpreter(self.space, self._structure, self.exact, signature(mod, self.space))

    def _structure(self) -> PartStructure:
        def part(knobs: dict[str, Any]) -> Part:
            m, name = knobs["outputs"], f"cut {knobs['outputs']}"
            tiles = math.prod(knobs[name][:2])
            mod = tvm.IRModule({"main": products(self.anchor, m, tiles)})
            trips = tiles_of(self.anchor, m) // tiles
            return Part(mod, lambda s, knobs: _multiply(s, self.anchor, knobs[name][2:], knobs, False), trips)

        return PartStructure(self.space, self.exact, part, self._apart)

    def _apart(self, codes: np.ndarray) -> np.ndarray:
        """Size of the output tile and strip, of each row `(m, 3)`."""
        found = np.zeros((len(codes), 3), dtype=np.int64)
        found[:, 0] = codes[:, 0]
        for k, knob in enumerate(self.space.knobs):
            if knob.name.startswith("cut "):
                mine = codes[:, 0] == (k - 1)
                found[mine, 1:] = np.asarray(knob.choices)[codes[mine, k], :2]
        return found

    def _cut(self, knobs: dict[str, Any]) -> tuple[int, Strip | None, Any]:
        rows, columns, *tile = knobs[f"cut {knobs['outputs']}"]
        return knobs["outputs"], (rows, columns), tile


def _space(a: Anchor, target: tvm.target.Target) -> Space:
    knobs = (_outputs(OUTPUTS), Knob("tile", "tile", _tiles(a, target) or ((1, 1),)))
    return Space((*knobs, *_loops(a)), version=VERSION, name="steps")


def _strips(a: Anchor, target: tvm.target.Target) -> Space:
    n, height, width = a.pixels
    cuts: dict[int, list[tuple[int, int, int, int]]] = {}
    for m in OUTPUTS:
        high, wide = -(-height // m), -(-width // m)
        strips = [*((1, c) for c in divisors(wide)), *((r, wide) for r in divisors(high)[1:])]
        strips = [(r, c) for r, c in strips if n * high * wide // (r * c) >= threads_of(target)]
        cuts[m] = [(r, c, t, b) for r, c in strips for t, b in _tiles(a, target) if r * c % t == 0]
    sizes = tuple(m for m in OUTPUTS if cuts[m])
    if not sizes:
        raise ValueError("no strips of the image are as many as the threads and hold whole tiles of the registers")
    knobs = [_outputs(sizes)]
    knobs += [Knob(f"cut {m}", "tile", tuple(cuts[m]), active_if=(0, (i,))) for i, m in enumerate(sizes)]
    return Space((*knobs, *_loops(a)), version=VERSION, name="winograd")


def _outputs(sizes: tuple[int, ...]) -> Knob:
    """The output tile. By its prior each size has its turn among a task's first rows: the weights of each have another
    length, of which a model that learned with warm weights knows nothing."""
    return Knob("outputs", "choice", sizes, prior=(1.0,) * len(sizes))


def _tiles(a: Anchor, target: tvm.target.Target) -> tuple[tuple[int, int], ...]:
    """Tiles of the image and blocks of filters whose products registers hold."""
    most = vector_unit(target).registers
    return tuple((t, b) for t in range(1, 15) for b in divisors(a.blocks) if most / 4 <= t * b <= most - 4 and b <= 4)


def _loops(a: Anchor) -> tuple[Knob, Knob]:
    return (
        Knob("order", "choice", ("pixels blocks", "blocks pixels")),
        Knob("unroll", "choice", tuple(u for u in (1, 2, 4) if a.reduce[2] % u == 0)),
    )


def _transform(s: Schedule, a: Anchor, m: int, strip: Strip | None) -> None:
    """All but the products."""
    outer = _transform_back(s, a, m, strip)
    if strip is not None:
        s.compute_at(s.get_sblock("product"), outer, preserve_unit_loops=True)
    _transform_image(s, a, None if strip is None else outer)
    if a.pad and strip is not None:
        pad_within(s, a, outer)
    elif a.pad:
        pad_apart(s, a)


def _transform_image(s: Schedule, a: Anchor, task: Any = None) -> None:
    """Of all tiles in parallel, or within the loop over strips, `task`."""
    whole, half, cut = (s.get_sblock(name) for name in ("whole", "half", "cut"))
    if task is not None:
        s.compute_at(whole, task, preserve_unit_loops=True)
    *_, y, x, t, c, r = s.get_loops(whole)
    c, lane = s.split(c, [None, _width(a)])
    s.reorder(t, c, y, x, r, lane)
    if task is None:
        s.parallel(t)
    for loop in (y, x, r):
        s.unroll(loop)
    s.vectorize(lane)
    s.compute_at(half, c, preserve_unit_loops=True)
    s.set_scope(half, 0, "local")
    *_, y, x, c2, r = s.get_loops(half)
    s.reorder(y, x, r, c2)
    for loop in (y, x, r):
        s.unroll(loop)
    s.vectorize(c2)
    s.compute_at(cut, c, preserve_unit_loops=True)
    s.set_scope(cut, 0, "local")
    *_, y, x, c2 = s.get_loops(cut)
    for loop in (y, x):
        s.unroll(loop)
    s.vectorize(c2)
    for block in (half, whole):
        s.decompose_reduction(block, _first_reduce(s, block))


def _multiply(s: Any, a: Anchor, tile: Any, knobs: dict[str, Any], parallel: bool) -> None:
    """The products of each of the transformed tile's elements: these in parallel, or within a loop that is."""
    product = s.get_sblock("product")
    some, blocks = tile
    local = s.cache_write(product, 0, "local")
    *_, y, x, t, b, f = s.get_loops(local)
    t, ti = s.split(t, [None, some])
    b, bi = s.split(b, [None, blocks])
    outer = (t, b) if knobs["order"] == "pixels blocks" else (b, t)
    s.reorder(y, x, *outer, ti, bi, f)
    if parallel:
        s.parallel(s.fuse(y, x))
    s.unroll(ti)
    s.unroll(bi)
    s.vectorize(f)
    s.compute_at(product, outer[1], preserve_unit_loops=True)
    *_, ti, bi, f, k = s.get_loops(product)
    k, step = s.split(k, [None, knobs["unroll"]])
    s.reorder(k, step, ti, bi, f)
    for loop in (step, ti, bi):
        s.unroll(loop)
    s.vectorize(f)
    s.decompose_reduction(product, k)


def _transform_back(s: Schedule, a: Anchor, m: int, strip: Strip | None) -> Any:
    """In parallel by strips, or by rows of tiles; returns that loop."""
    last, out, fold = s.get_sblock(a.last), s.get_sblock("out"), s.get_sblock("fold")
    n, y, x, channel = s.get_loops(last)
    y, yi = s.split(y, [None, m])
    x, xi = s.split(x, [None, m])
    b, f = s.split(channel, [None, a.lanes])
    outer, inner = [n, y], [x]
    if strip is not None and strip[0] > 1:
        above, row = s.split(y, [None, strip[0]])
        outer, inner = [n, above], [row, x]
    elif strip is not None:
        left, column = s.split(x, [None, strip[1]])
        outer, inner = [n, y, left], [column]
    s.reorder(*outer, *inner, b, yi, xi, f)
    task = s.fuse(*outer)
    s.parallel(task)
    for loop in (yi, xi):
        s.unroll(loop)
    s.vectorize(f)
    s.compute_at(out, b, preserve_unit_loops=True)
    s.set_scope(out, 0, "local")
    s.compute_at(fold, b, preserve_unit_loops=True)
    s.set_scope(fold, 0, "local")
    for block in (out, fold):
        *spatial, r = s.get_loops(block)
        spatial = spatial[len(s.get_loops(block)) - 1 - (5 if block is out else 7) :]
        s.reorder(*spatial[:-1], r, spatial[-1])
        for loop in (*spatial[:-1], r):
            s.unroll(loop)
        s.vectorize(spatial[-1])
        s.decompose_reduction(block, _first_reduce(s, block))
    return task


def _first_reduce(s: Schedule, block: Any) -> Any:
    """The outermost loop over which the block reduces: it has one."""
    return s.get_loops(block)[-2]


def _width(a: Anchor) -> int:
    """Number of channels that are transformed at once."""
    lanes = a.lanes
    while a.reduce[2] % lanes:
        lanes //= 2
    return lanes
