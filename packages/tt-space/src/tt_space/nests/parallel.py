"""Which loops MetaSchedule runs in parallel, in vectors and unrolled, for many programs at once.

Source: TVM 0.27's postprocessor `RewriteParallelVectorizeUnroll`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tt_space.nests.blocks import Block
from tt_space.nests.index import Affine, Lane, Loop, Uninterpreted, uniform
from tt_space.nests.schedule import NestSchedule

__all__ = ["annotated"]


def annotated(s: NestSchedule, root: dict[str, Lane], n: int) -> None:
    """Rewrite all nests as the root's annotations ask.

    Args:
        root: Annotations of the root block: `meta_schedule.parallel`, `.vectorize` and `.unroll_explicit`.
    """
    known = {f"meta_schedule.{x}" for x in ("parallel", "vectorize", "unroll_explicit")}
    if set(root) != known:
        raise Uninterpreted(f"the root is annotated with {', '.join(sorted(root)) or 'nothing'}")
    most, lanes, unroll = (root[f"meta_schedule.{x}"] for x in ("parallel", "vectorize", "unroll_explicit"))
    for block in s.blocks():
        loops = s.get_loops(block)
        if not loops:
            continue
        outer = _outer(s, loops, most, n)
        inner = _inner(s, block, loops, lanes, n)
        outer = [a & ~b for a, b in zip(outer, inner, strict=True)]
        if loops[0].kind != "parallel" and np.any(outer):
            count = max(i for i, m in enumerate(outer) if np.any(m)) + 1
            s.fuse_where(loops[:count], outer[:count], "parallel")
        if np.any(inner):
            first = min(i for i, m in enumerate(inner) if np.any(m))
            s.fuse_where(loops[first:], inner[first:], "vectorized")
        if block.reduced:
            _unrolled(s.get_loops(block), unroll, n)


def _unrolled(loops: list[Loop], unroll: Lane, n: int) -> None:
    """Annotate the first loop of each program."""
    left = np.ones(n, bool) & (np.asarray(unroll) > 0)
    for loop in loops:
        here = left & loop.where
        loop.unroll = np.where(here, unroll, loop.unroll)
        left &= ~here


def _outer(s: NestSchedule, loops: list[Loop], most: Lane, n: int) -> list[np.ndarray]:
    """The loops that are fused and run in parallel, a mask `(n,)` for each."""
    masks = [np.zeros(n, bool) for _ in loops]
    trips, open_ = np.ones(n, dtype=np.int64), np.ones(n, bool)
    for i, loop in enumerate(loops):
        if s.iterates(loop) != "spatial":
            break
        open_ &= ~(np.asarray(loop.unroll) > 0)
        masks[i] |= open_
        trips = np.where(open_, trips * loop.extent, trips)
        open_ &= trips <= most
        if len(loop.children) != 1:
            break
    return [m & (trips > 1) for m in masks]


def _inner(s: NestSchedule, block: Block, loops: list[Loop], lanes: Lane, n: int) -> list[np.ndarray]:
    """The loops that are fused and vectorised, a mask `(n,)` for each."""
    masks = [np.zeros(n, bool) for _ in loops]
    first = len(loops)
    while first and s.iterates(loops[first - 1]) == "spatial" and len(loops[first - 1].children) == 1:
        first -= 1
    reach = _contiguous(block, loops[first:], n)
    if not first and not np.any([x.unroll for x in loops]) and not uniform(reach < len(loops)):
        raise Uninterpreted("all loops of a nest are fused")
    trips, open_, count = np.ones(n, dtype=np.int64), np.ones(n, bool), np.zeros(n, dtype=np.int64)
    for i in range(len(loops) - 1, first - 1, -1):
        loop = loops[i]
        open_ &= (count < reach) & ~(np.asarray(loop.unroll) > 0)
        trips = np.where(open_, trips * loop.extent, trips)
        open_ &= trips <= lanes
        masks[i] |= open_
        count += open_
    return [m & (trips > 1) for m in masks]


def _contiguous(block: Block, loops: list[Loop], n: int) -> np.ndarray:
    """How many of the innermost loops go through every buffer in order `(n,)`."""
    others = [x for x in block.loads if x.buffer is not block.target]
    accesses = [(x.buffer.shape, [i(block.bound) for i in x.indices]) for x in others]
    written = [Affine((), i) if isinstance(i, int) else block.bound[i] for i in block.written]
    most = np.full(n, 2**31 - 1)
    for shape, index in [*accesses, (block.target.shape, written)]:
        strides = _strides(shape, index)
        fusible, open_, used = np.zeros(n, dtype=np.int64), np.ones(n, bool), np.zeros(n, bool)
        before: Any = np.zeros(n, dtype=np.int64)  # the stride that the next loop must have
        for loop in reversed(loops):
            stride = np.asarray(strides.get(id(loop), 0))
            none = stride == 0
            open_ &= none | np.where(used, stride == before, (stride == 1) | (fusible == 0))
            fusible += open_
            moved = open_ & ~none
            before = np.where(moved, stride * loop.extent, before)
            used |= moved
        most = np.minimum(most, fusible)
    return most


def _strides(shape: tuple[int, ...], index: list[Affine]) -> dict[int, Lane]:
    """Elements by which each loop's variable moves an access, by the last dimension that has it."""
    found: dict[int, Lane] = {}
    step = 1
    for extent, e in zip(reversed(shape), reversed(index), strict=True):
        if not np.any(np.asarray(e.base) < 0):  # TVM reads no stride off an index from which a number is subtracted
            for atom, c in e.terms:
                if atom.size is atom.loop.extent:
                    found.setdefault(id(atom.loop), c * step)
        step *= extent
    return found
