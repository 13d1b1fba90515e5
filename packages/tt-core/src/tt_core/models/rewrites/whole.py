"""Sums of products of small whole numbers: in float32 where that is exact, else in int32.

Float32 holds every whole number up to 2^24, so a sum of which no part can be larger is exact in it, in whatever order
it is added. How large a part can become is known beforehand: quantised operands have 256 values, and weights are
constants. A sum that is too long for that is cut into parts, each exact, that are added in int32. So integer semantics
are kept bit for bit, at the speed and with the programs of floats: products of int32 have no templates, and theirs of
vectors take two to three times as long as a multiply-add.

Source: IEEE 754-2008, 3.3 (24 bits of significand); Higham (2002), Accuracy and Stability of Numerical Algorithms, 2.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tt_core.models.rewrites.graph import Graph

__all__ = ["LARGEST", "Whole", "convolved", "multiplied"]

LARGEST = 2**24
"""Up to here float32 holds every whole number."""

MOST_PARTS = 16
"""Parts that a sum is cut into at most: each costs a slice of its operands and an addition of its results."""


@dataclass(frozen=True)
class Whole:
    """A tensor of int32 whose values are known to be small.

    Args:
        name: The value's.
        most: Largest magnitude; None where nothing is known.
        spread: Largest value less smallest one, 0 counted among them.
    """

    name: str
    most: int | None
    spread: int = 0


def convolved(x: Whole, w: Whole, g: Graph, **attributes: Any) -> str:
    """The int32 sums of a convolution of x (N, C, ...) and w (O, C / group, ...)."""
    rank = len(g.shape(w.name))
    return _summed("Conv", x, w, (1, 1), tuple(range(1, rank)), g, **attributes)


def multiplied(a: Whole, b: Whole, g: Graph) -> str:
    """The int32 sums of a matrix product."""
    axis = max(0, len(g.shape(b.name)) - 2)
    return _summed("MatMul", a, b, (len(g.shape(a.name)) - 1, axis), (axis,), g)


def _summed(op: str, a: Whole, b: Whole, along: tuple[int, int], over: tuple[int, ...], g: Graph, **kept: Any) -> str:
    """`along` are the axes of a and b that a long sum is cut along, `over` those of b that are summed."""
    whole = g.shape(b.name)[along[1]]
    parts = next((p for p in range(1, MOST_PARTS + 1) if _exact(a, b, _ends(whole, p), along[1], over, g)), None)
    if parts is None or (parts > 1 and int(kept.get("group", 1)) > 1):
        return g.op(op, a.name, b.name, **kept)
    ends = _ends(whole, parts)
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    left, right = (g.split(g.cast(x.name, np.float32), sizes, i) for x, i in zip((a, b), along, strict=True))
    sums = [g.whole(g.op(op, x, y, **kept), np.int32) for x, y in zip(left, right, strict=True)]
    total = sums[0]
    for part in sums[1:]:
        total = g.op("Add", total, part)
    return total


def _ends(size: int, parts: int) -> list[int]:
    """Where parts of equal size end, but for the last."""
    each = max(1, math.ceil(size / parts))
    return [min(i + each, size) for i in range(0, size, each)]


def _exact(a: Whole, b: Whole, ends: list[int], axis: int, over: tuple[int, ...], g: Graph) -> bool:
    """Whether no part of a sum between two ends, whatever its order, is larger than `LARGEST`."""
    if a.most is None or b.most is None or not ends:
        return False
    values, shape = g.value(b.name), g.shape(b.name)
    if values is None:
        terms = math.prod(shape[i] for i in over) // shape[axis] * max(np.diff([0, *ends]))
        return a.most * b.most * int(terms) <= LARGEST
    cuts = np.array([0, *ends[:-1]])
    positive, negative = (
        np.add.reduceat(np.clip(sign * values.astype(np.int64), 0, None), cuts, axis) for sign in (1, -1)
    )
    rest = tuple(i for i in over if i != axis)
    above, below = (x.sum(axis=rest) for x in (positive, negative))
    # all terms of one sign: x's largest times the weights of that sign, its smallest times the others
    reached = np.minimum(a.spread * np.maximum(above, below), a.most * (above + below))
    return bool((reached <= LARGEST).all())
