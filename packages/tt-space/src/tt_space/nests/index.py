"""Integers and affine indices of many programs at once: one lane per program.

A lane value is an int, the same for all programs, or an array `(n,)` int64. An index is a sum of atoms times
coefficients; an atom is a loop's variable or, where loops were fused, one digit of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

__all__ = [
    "Affine",
    "Atom",
    "Differs",
    "Lane",
    "Loop",
    "Uninterpreted",
    "always",
    "divided",
    "product",
    "remainder",
    "uniform",
]

Lane = Any
"""An int, or `(n,)` int64."""


class Uninterpreted(ValueError):
    """A program that the interpreter does not know; the message says why."""


class Differs(Exception):
    """Programs that were to have one structure have two: `where` `(n,)` bool tells them apart."""

    def __init__(self, where: np.ndarray) -> None:
        super().__init__("programs differ in structure")
        self.where = where


@dataclass(eq=False)
class Loop:
    """A loop of a nest.

    Args:
        extent: Trips.
        kind: "serial", "parallel", "vectorized" or "unrolled".
        unroll: The annotation `pragma_auto_unroll_max_step`; 0 is none.
        where: The programs that have the loop; in the others it has one trip.
    """

    extent: Lane
    kind: str = "serial"
    unroll: Lane = 0
    where: Any = True
    parent: Loop | None = None
    children: list[Any] = field(default_factory=list)

    @property
    def present(self) -> Any:
        """Where the loop is still there when features are taken: plain loops of one trip are not."""
        there = np.asarray(self.where)
        if self.kind != "serial":
            return there
        return there & ((np.asarray(self.extent) > 1) | (np.asarray(self.unroll) > 0))


@dataclass(frozen=True)
class Atom:
    """`loop // below % size`: the whole variable where `below` is 1 and `size` the extent."""

    loop: Loop
    below: Lane
    size: Lane

    def same(self, other: Atom) -> bool:
        """Whether two atoms are the same digit of the same loop."""
        if self.loop is not other.loop:
            return False
        return all(
            mine is theirs or always(mine == theirs)
            for mine, theirs in ((self.below, other.below), (self.size, other.size))
        )


@dataclass(frozen=True)
class Affine:
    """`sum(coefficient * atom) + base`, in the order in which TVM writes it."""

    terms: tuple[tuple[Atom, Lane], ...] = ()
    base: Lane = 0

    @staticmethod
    def of(loop: Loop) -> Affine:
        return Affine(((Atom(loop, 1, loop.extent), 1),))

    def __add__(self, other: Affine) -> Affine:
        terms = list(self.terms)
        for atom, c in other.terms:
            for i, (mine, have) in enumerate(terms):
                if mine.same(atom):
                    terms[i] = mine, have + c
                    break
            else:
                terms.append((atom, c))
        return Affine(tuple(terms), self.base + other.base)

    def __mul__(self, factor: Lane) -> Affine:
        return Affine(tuple((a, c * factor) for a, c in self.terms), self.base * factor)

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def split(self, fixed: Iterable[Loop]) -> tuple[Affine, Affine]:
        """The part in `fixed` loops' variables with the base, and the rest."""
        held = set(map(id, fixed))
        mine = tuple(t for t in self.terms if id(t[0].loop) in held)
        rest = tuple(t for t in self.terms if id(t[0].loop) not in held)
        return Affine(mine, self.base), Affine(rest)

    def low(self) -> Lane:
        """The least value."""
        return self.base + sum(np.minimum(c, 0) * (a.size - 1) for a, c in self.terms)

    def high(self) -> Lane:
        """The greatest value."""
        return self.base + sum(np.maximum(c, 0) * (a.size - 1) for a, c in self.terms)

    def active(self) -> list[Any]:
        """For each term, where it is written: an atom with one value is 0."""
        return self._active

    @cached_property
    def _active(self) -> list[Any]:
        return [(np.asarray(a.size) > 1) & (np.asarray(c) != 0) for a, c in self.terms]

    def same(self, other: Affine) -> bool:
        """Whether two indices are equal in every program, the base aside."""
        gone = (self - other).terms
        return all(always((np.asarray(c) == 0) | (np.asarray(a.size) == 1)) for a, c in gone)


def divided(e: Affine, by: int) -> Affine:
    """`e // by` where that is affine. Raises `Uninterpreted`."""
    whole, _ = _parted(e, by)
    return Affine(tuple((a, c // by) for a, c in whole.terms), whole.base // by)


def remainder(e: Affine, by: int) -> Affine:
    """`e % by` where that is affine. Raises `Uninterpreted`."""
    return _parted(e, by)[1]


def _parted(e: Affine, by: int) -> tuple[Affine, Affine]:
    """Multiples of `by`, and the rest, which is never negative and less than `by`."""
    goes = [always((np.asarray(c) % by == 0) | (np.asarray(a.size) == 1)) for a, c in e.terms]
    whole = [t for t, g in zip(e.terms, goes, strict=True) if g]
    rest = [t for t, g in zip(e.terms, goes, strict=True) if not g]
    over = e.base % by
    small = Affine(tuple(rest), over)
    if not always((small.low() >= 0) & (small.high() < by)):
        raise Uninterpreted(f"an index divided by {by} is not affine")
    return Affine(tuple(whole), e.base - over), small


def always(condition: Any) -> bool:
    """Whether a condition holds in every lane."""
    return bool(np.all(condition))


def uniform(condition: Any) -> bool:
    """A condition that decides the structure of all programs. Raises `Differs`."""
    if isinstance(condition, np.ndarray) and condition.ndim and condition.any() != condition.all():
        raise Differs(condition)
    return bool(np.all(condition))


def product(values: Sequence[Lane]) -> Lane:
    """The product of lane values; 1 of none."""
    result: Lane = 1
    for v in values:
        result = result * v
    return result
