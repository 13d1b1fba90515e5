"""The distance of two tasks, by what a history knows without a compiler."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tt_spec.types import Task

__all__ = ["Neighbour", "distance", "neighbours"]

UNLIKE = 4.0
"""Distance of tensors that have another number of dimensions, or that only one of the tasks has: as much as sixteen
times the size."""


@dataclass(frozen=True)
class Neighbour:
    """A task in a history, seen from another.

    Args:
        weight: How often its model ran it.
        rows: Measured rows of it, on all devices.
        distance: In doublings: 1 is twice the work in shapes that are twice as long; 0 is the same workload.
    """

    key: str
    name: str
    op: str
    target: str
    shapes: str
    flops: float
    weight: float
    workload: str
    rows: int
    distance: float


def neighbours(task: Task, known: Iterable[dict[str, Any]], n: int) -> list[Neighbour]:
    """The `n` nearest of `known`, as `SqliteStore.tasks` gives them with `rows`; none without rows, not the task."""
    found = []
    for t in known:
        if t["key"] == task.key or t["op"] != task.op or not t["rows"]:
            continue
        equal = bool(task.workload) and t["workload"] == task.workload
        away = 0.0 if equal else distance((task.flops, task.shapes), (t["flops"], t["shapes"]))
        found.append(Neighbour(**t, distance=away))
    return sorted(found, key=lambda x: (x.distance, -x.rows, x.key))[:n]


def distance(a: tuple[float, str], b: tuple[float, str]) -> float:
    """Doublings between two tasks of one kind, each given by FLOP and shapes ("1x8x8x3, 3x3x3x4 -> 1x8x8x4").

    The mean of the FLOP's and of the shapes' distances: |log2| of the ratio, for shapes the root mean square over all
    dimensions, each tensor with the one in its place.
    """
    work = abs(_log2(a[0]) - _log2(b[0]))
    return (work + _apart(_tensors(a[1]), _tensors(b[1]))) / 2


def _log2(x: float) -> float:
    return math.log2(x) if x > 1 else 0.0


def _tensors(shapes: str) -> list[list[int]]:
    return [[int(d) for d in re.findall(r"\d+", part)] for part in re.split(r",|->", shapes) if part.strip()]


def _apart(a: list[list[int]], b: list[list[int]]) -> float:
    squares: list[float] = []
    for i in range(max(len(a), len(b))):
        if i >= len(a) or i >= len(b) or len(a[i]) != len(b[i]):
            squares.append(UNLIKE**2)
        else:
            squares += [(_log2(x) - _log2(y)) ** 2 for x, y in zip(a[i], b[i], strict=True)]
    return math.sqrt(sum(squares) / len(squares)) if squares else 0.0
