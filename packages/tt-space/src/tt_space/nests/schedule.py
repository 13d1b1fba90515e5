"""TVM's schedule on many programs at once: the same calls, on loops whose extents are lanes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from tt_space.nests.blocks import Block, Buffer, Load
from tt_space.nests.index import Affine, Atom, Lane, Loop, Uninterpreted, always, product, uniform

__all__ = ["NestSchedule"]


class NestSchedule:
    """A schedule of `n` programs that differ in extents only. Methods are those of `tvm.s_tir.Schedule`.

    Everything raises `Uninterpreted` where TVM would do something that this class does not know.

    Args:
        blocks: As `read_blocks` gives them, those that are to be inlined inlined already; they are changed.

    Attributes:
        cut: Where a split has left a remainder.
    """

    def __init__(self, blocks: list[Block]) -> None:
        self.top = Loop(1)
        self.cut: Lane = False
        self.buffers: dict[str, Buffer] = {}
        for b in blocks:
            self._grow(self.top, len(self.top.children), b, {i: Affine() for i in b.iters}, dict(b.iters))
            for x in (b.target, *(x.buffer for x in b.loads)):
                self.buffers[x.name] = x

    # -- looking -------------------------------------------------------------------------------------------------

    def get_sblock(self, name: str) -> Block | None:
        """The block of a name; None for one that was inlined."""
        return next((b for b in self.blocks() if b.name == name), None)

    def get_loops(self, block: Block) -> list[Loop]:
        """The loops around a block, outermost first."""
        return _path(block)

    def get(self, loop: Loop) -> Loop:
        """The loop itself, which has its extent."""
        return loop

    def blocks(self, under: Loop | None = None) -> list[Block]:
        """The blocks under a loop, in order."""
        found: list[Block] = []
        for child in (under or self.top).children:
            found += [child] if isinstance(child, Block) else self.blocks(child)
        return found

    def iterates(self, loop: Loop) -> str:
        """The use that blocks make of a loop: "spatial", "reduce" or "both"."""
        uses = {
            name in b.reduced
            for b in self.blocks(loop)
            for name, e in b.bound.items()
            if any(atom.loop is loop for atom, _ in e.terms)
        }
        return "both" if len(uses) > 1 else "reduce" if uses == {True} else "spatial"

    # -- loops ---------------------------------------------------------------------------------------------------

    def split(self, loop: Loop, factors: list[Lane | None], **_: Any) -> list[Loop]:
        """Loops of these extents, outermost first; of what is None, as many trips as it takes.

        Where a remainder is left, a condition keeps the last trips off, which features do not see.
        """
        given = product([f for f in factors if f is not None])
        if all(f is not None for f in factors) and not uniform(given == loop.extent):
            raise Uninterpreted("factors of a split are not all of its extent")
        self.cut = self.cut | (np.asarray(loop.extent) % given != 0)
        extents = [-(-loop.extent // given) if f is None else f for f in factors]
        made = [Loop(e) for e in extents]
        index = Affine()
        for i, part in enumerate(made):
            index = index + Affine.of(part) * product(extents[i + 1 :])
        self._replace([loop], made, {id(loop): index})
        return made

    def enclose(self, trips: int) -> Loop:
        """Put all nests into one loop, whose variable no index has."""
        loop = Loop(trips, parent=self.top, children=self.top.children)
        for child in loop.children:
            child.parent = loop
        for block in self.blocks():
            block.above = None if block.above is None else (loop, *block.above)
        self.top.children = [loop]
        return loop

    def fuse(self, *loops: Loop, **_: Any) -> Loop:
        fused = Loop(product([x.extent for x in loops]))
        kinds = {x.kind for x in loops}
        if kinds != {"serial"} or any(np.any(x.unroll) for x in loops):
            raise Uninterpreted("loops that are annotated are fused")
        digits = {}
        for i, loop in enumerate(loops):
            below = product([x.extent for x in loops[i + 1 :]])
            digits[id(loop)] = Affine(((Atom(fused, below, loop.extent), 1),))
        self._replace(list(loops), [fused], digits)
        return fused

    def fuse_where(self, loops: list[Loop], masks: list[Any], kind: str) -> None:
        """Fuse those of a chain of loops that each program's mask names, the outermost or the innermost ones.

        The fused loop stands at the end where they are; what is not fused stays where it is.
        """
        zero = np.zeros_like(masks[0])
        fused = Loop(1, kind, where=np.logical_or.reduce(masks, initial=False) if len(masks) > 1 else masks[0] | zero)
        sizes = [np.where(m, x.extent, 1) for x, m in zip(loops, masks, strict=True)]
        left = [Loop(np.where(m, 1, x.extent), where=~m & x.where) for x, m in zip(loops, masks, strict=True)]
        fused.extent = product(sizes)
        digits = {}
        for i, (loop, rest) in enumerate(zip(loops, left, strict=True)):
            digit = Atom(fused, product(sizes[i + 1 :]), sizes[i])
            digits[id(loop)] = Affine(((digit, 1), (Atom(rest, 1, rest.extent), 1)))
        self._replace(loops, [fused, *left] if kind == "parallel" else [*left, fused], digits)

    def reorder(self, *loops: Loop) -> None:
        wanted = {id(x) for x in loops}
        last = max(loops, key=lambda x: len(_path(x)))
        first = min(loops, key=lambda x: len(_path(x)))
        chain = [*_path(last), last][len(_path(first)) :]
        if any(len(x.children) != 1 for x in chain[:-1]) or not wanted <= {id(x) for x in chain}:
            raise Uninterpreted("loops that are reordered are not one chain")
        order = iter(loops)
        new = [next(order) if id(x) in wanted else x for x in chain]
        above, inside = chain[0].parent, chain[-1].children
        if above is None:
            raise Uninterpreted("a loop is no longer there")
        at = _where(above, chain[0])
        for parent, child in itertools.pairwise(new):
            parent.children, child.parent = [child], parent
        new[0].parent, above.children[at] = above, new[0]
        new[-1].children = inside
        for child in inside:
            child.parent = new[-1]

    def parallel(self, loop: Loop) -> None:
        loop.kind = "parallel"

    def unroll(self, loop: Loop) -> None:
        loop.kind = "unrolled"

    def vectorize(self, loop: Loop) -> None:
        loop.kind = "vectorized"

    # -- blocks --------------------------------------------------------------------------------------------------

    def compute_inline(self, block: Block | None) -> None:
        if block is not None:
            raise Uninterpreted(f"block {block.name} was to be inlined before")

    def set_scope(self, block: Block, index: int, scope: str) -> None:
        self._rename(block.target, f"{block.target.name}_{scope}")

    def cache_write(self, block: Block, index: int, scope: str) -> Block:
        """Store to a new buffer, and copy that in a nest of its own after the block's."""
        out = block.target
        local = Buffer(f"{out.name}_{scope}", out.shape, out.bytes, False)
        self.buffers[local.name] = local
        block.target = local
        block.loads = tuple(replace(x, buffer=local) if x.buffer is out else x for x in block.loads)
        names = [f"{i}" for i in range(len(out.shape))]
        copy = Block(
            name=local.name,
            iters=dict(zip(names, out.shape, strict=True)),
            reduced=frozenset(),
            target=out,
            written=tuple(names),
            loads=(Load(local, tuple((lambda bound, n=n: bound[n]) for n in names)),),
            counts={},
            guards=(),
        )
        top = _path(block)[0] if _path(block) else block
        at = _where(self.top, top) + 1
        self._grow(self.top, at, copy, {i: Affine() for i in names}, dict(copy.iters))
        return copy

    def compute_at(self, block: Block, loop: Loop, preserve_unit_loops: bool = True, index: int = -1) -> None:
        """Compute what the blocks under `loop` read, before the first of them."""
        everyone = [b for b in self.blocks() if b is not block and any(x.buffer is block.target for x in b.loads)]
        inside = {id(b) for b in self.blocks(loop)}
        readers = [b for b in everyone if id(b) in inside]
        if not readers or not preserve_unit_loops or index != -1:
            raise Uninterpreted("nothing under the loop reads the block")
        wanted = [[i(b.bound) for i in x.indices] for b in readers for x in b.loads if x.buffer is block.target]
        if len(readers) != len(everyone):
            raise Uninterpreted(f"block {block.name} is read outside the loop it is computed at")
        at = min(_where(loop, next(x for x in [*_path(b), b] if x.parent is loop)) for b in readers)
        self._move(block, loop, at, dict(zip(block.written, zip(*wanted, strict=True), strict=True)))

    def reverse_compute_at(self, block: Block, loop: Loop, preserve_unit_loops: bool = True, index: int = -1) -> None:
        """Compute from what the blocks under `loop` store, after the last of them."""
        makers = {id(b.target): b for b in self.blocks(loop)}
        loads = [x for x in block.loads if id(x.buffer) in makers]
        if len(loads) != 1 or not preserve_unit_loops or index != -1:
            raise Uninterpreted("not one block under the loop is read by the block")
        maker, unit = makers[id(loads[0].buffer)], {i: Affine.of(Loop(2)) for i in block.iters}
        regions: dict[str | int, tuple[Affine, ...]] = {}
        for dim, i in zip(maker.written, loads[0].indices, strict=True):
            made = i(unit)
            name = next((k for k, v in unit.items() if made.terms == v.terms and made.base == 0), None)
            if name is None or isinstance(dim, int):
                raise Uninterpreted("a block that is moved reads at an index that is not one of its iterators")
            regions[name] = (maker.bound[dim],)
        if set(regions) != set(block.iters):
            raise Uninterpreted("a block that is moved has iterators that no index tells")
        self._move(block, loop, len(loop.children), regions)

    def decompose_reduction(self, block: Block, loop: Loop) -> None:
        """Note where the initialisation is: it stores constants, which have no features."""
        path = _path(block)
        block.above = tuple(path[: next(i for i, x in enumerate(path) if x is loop)])

    # -- inside --------------------------------------------------------------------------------------------------

    def _move(self, block: Block, loop: Loop, at: int, regions: dict[str | int, tuple[Affine, ...]]) -> None:
        fixed = [*_path(loop), loop]
        lows, extents = {}, {}
        for name, extent in block.iters.items():
            if name in regions:
                lows[name], extents[name] = region(regions[name], fixed, extent, self.cut)
            else:
                lows[name], extents[name] = Affine(), extent
        before = loop.children[at] if at < len(loop.children) else None
        self._cut(block)
        at = len(loop.children) if before is None else _where(loop, before)
        self._grow(loop, at, block, lows, extents)

    def _grow(self, parent: Loop, at: int, block: Block, lows: dict[str, Affine], extents: dict[str, Lane]) -> None:
        """Put a block under loops of its own."""
        below = parent
        for name, extent in extents.items():
            loop = Loop(extent, parent=below)
            if below is parent:
                below.children.insert(at, loop)
            else:
                below.children.append(loop)
            block.bound[name] = lows[name] + Affine.of(loop)
            below = loop
        if below is parent:
            below.children.insert(at, block)
        else:
            below.children.append(block)
        block.parent = below

    def _cut(self, block: Block) -> None:
        """Take a block out, with the loops that hold nothing else."""
        node: Any = block
        while len(node.parent.children) == 1 and node.parent is not self.top:
            node = node.parent
        del node.parent.children[_where(node.parent, node)]

    def _replace(self, old: list[Loop], new: list[Loop], digits: dict[int, Affine]) -> None:
        """Put a chain of loops in the place of another, and rewrite the indices under it."""
        if any(x.kind != "serial" for x in old):
            raise Uninterpreted("a loop is annotated before it is split")
        for outer, inner in itertools.pairwise(old):
            if outer.children != [inner]:
                raise Uninterpreted("loops that are fused are not nested directly")
        above, inside = old[0].parent, old[-1].children
        if above is None:
            raise Uninterpreted("a loop is no longer there")
        above.children[_where(above, old[0])] = new[0]
        new[0].parent = above
        for parent, child in itertools.pairwise(new):
            parent.children, child.parent = [child], parent
        new[-1].children = inside
        for child in inside:
            child.parent = new[-1]
        for block in self.blocks(new[-1]):
            block.bound = {name: _rewritten(e, digits) for name, e in block.bound.items()}

    def _rename(self, buffer: Buffer, name: str) -> None:
        del self.buffers[buffer.name]
        buffer.name = name
        self.buffers[name] = buffer


def region(indices: tuple[Affine, ...], fixed: list[Loop], most: int, cut: Lane) -> tuple[Affine, Lane]:
    """The least index that accesses in all iterations of the other loops touch, and how many; `most` at most, where a
    tile that leaves a remainder is `cut`."""
    parts = [e.split(fixed) for e in indices]
    base = parts[0][0]
    if any(not p.same(base) for p, _ in parts[1:]):
        raise Uninterpreted("accesses of a buffer do not move together")
    low: Lane = parts[0][0].base + parts[0][1].low()
    high: Lane = parts[0][0].base + parts[0][1].high()
    for mine, rest in parts[1:]:
        low, high = np.minimum(low, mine.base + rest.low()), np.maximum(high, mine.base + rest.high())
    extent = high - low + 1
    if not always((np.asarray(extent) <= most) | cut):
        raise Uninterpreted("an access lies outside its buffer")
    return Affine(base.terms, low), np.minimum(extent, most)


def _rewritten(e: Affine, digits: dict[int, Affine]) -> Affine:
    """An index with loops' variables replaced."""
    terms: list[tuple[Atom, Lane]] = []
    base = e.base
    for atom, c in e.terms:
        new = digits.get(id(atom.loop))
        if new is None:
            terms.append((atom, c))
            continue
        whole = atom.size is atom.loop.extent or always(np.asarray(atom.size) == atom.loop.extent)
        if whole:
            terms += [(a, k * c) for a, k in new.terms]
        elif len(new.terms) == 1:  # a digit of a loop that is fused again
            outer = new.terms[0][0]
            terms.append((Atom(outer.loop, outer.below * atom.below, atom.size), c))
        else:
            raise Uninterpreted("a fused loop is split")
        base = base + new.base * c
    return Affine(tuple(terms), base)


def _path(node: Any) -> list[Loop]:
    """The loops around a node, outermost first."""
    found: list[Loop] = []
    while node.parent is not None and node.parent.parent is not None:
        node = node.parent
        found.append(node)
    return found[::-1]


def _where(parent: Loop, child: Any) -> int:
    return next(i for i, x in enumerate(parent.children) if x is child)
