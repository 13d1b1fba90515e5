"""Features of a space's rows by interpretation, where that was seen to equal TVM's extractor."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
import tvm
import tvm_ffi
from tt_spec import Space

from tt_space.nests.blocks import Block
from tt_space.nests.index import Differs, Uninterpreted
from tt_space.nests.schedule import NestSchedule

__all__ = ["Interpreter", "Structure", "columns", "fresh", "signature"]

PROBES, FIRST, THEN = 16, 4, 2
"""Rows of a space that are compared with TVM's features, of those the first time that any are asked for, and of each
question after it."""

TRIES = 128
"""Rows after which a space of which none could be interpreted is given up: of some, one in four can be."""


_equal: Counter[Hashable] = Counter()
"""Rows that were equal in this process, by what their spaces have in common."""


class Structure(Protocol):
    """How the rows of a space are scheduled, for many rows at once."""

    def groups(self, codes: np.ndarray) -> list[tuple[Hashable, np.ndarray]]:
        """Rows that may have one structure: what they share, and their indices `(m,)`."""
        ...

    def features(self, shared: Any, codes: np.ndarray) -> np.ndarray:
        """Features `(n, statements, 164)` of rows of one group.

        Raises `Uninterpreted`, and `Differs` where they do not have one structure.
        """
        ...


class Interpreter:
    """Features of rows without TVM.

    Of the first rows asked, and of a few in each later question until there were 16, TVM's features are taken, and what
    was interpreted is compared with them; where one differs, none is interpreted any more. So a short search, in which
    many operators are asked for few rows each, does not pay for 16 comparisons of each.

    Args:
        space: The space of the rows.
        structure: How they are scheduled.
        exact: TVM's features `(statements, 164)` of a row. Raises `ValueError` where it has no program.
        like: What spaces have in common that are interpreted alike; see `signature`. Once 16 rows of such spaces were
            equal in this process, one of each further one is compared. None: it is like no other.

    Attributes:
        refusal: Why rows are not interpreted; None where they are, or before the first question.
        checked: Probes that were equal.
        unknown: Rows that only TVM could tell, by the reason.
    """

    def __init__(
        self,
        space: Space,
        structure: Callable[[], Structure],
        exact: Callable[[np.ndarray], np.ndarray],
        like: Hashable = None,
    ) -> None:
        self.space, self._make, self._exact = space, structure, exact
        self._like = object() if like is None else like
        self._structure: Structure | None = None
        self.refusal: str | None = None
        self.checked = self._tried = 0
        self.unknown: Counter[str] = Counter()

    def __call__(self, codes: np.ndarray) -> list[np.ndarray | None]:
        """Features `(statements, 164)` of each row; None where only TVM can tell."""
        codes = np.asarray(codes, dtype=np.int64)
        none: list[np.ndarray | None] = [None] * len(codes)
        fits = np.flatnonzero(self.space.in_range(codes))
        if self.refusal is not None or not len(fits):
            return none
        if self._structure is None:
            try:
                self._structure = self._make()
            except Uninterpreted as e:
                self.refusal = str(e)
                return none
        found = list(none)
        for i, f in zip(fits, self._rows(codes[fits]), strict=True):
            found[i] = f
        first, then, most = (1, 0, 1) if _equal[self._like] >= PROBES else (FIRST, THEN, PROBES)
        if self.checked < most:
            self._check(codes, found, min(then if self.checked else first, most - self.checked))
            self._tried += len(fits)
            if not self.checked and self._tried >= TRIES:
                self.refusal = f"none of {self._tried} rows could be interpreted"
        return found if self.refusal is None else none

    def _check(self, codes: np.ndarray, found: list[np.ndarray | None], most: int) -> None:
        """Compare rows with TVM, in as many structures as there are, and give TVM's features of them."""
        assert self._structure is not None
        told = np.array([i for i, f in enumerate(found) if f is not None], dtype=np.int64)
        groups = [told[ids].tolist() for _, ids in self._structure.groups(codes[told])] if len(told) else []
        turns = [i for ids in itertools.zip_longest(*groups) for i in ids if i is not None]
        for i in turns[:most]:
            mine, row = found[i], codes[i].tolist()
            try:
                theirs = found[i] = self._exact(codes[i])
            except ValueError:
                self._refuse(f"row {row} has no program, and was interpreted")
                return
            if mine is None or mine.shape != theirs.shape or not np.allclose(mine, theirs, rtol=1e-5, atol=1e-6):
                self._refuse(f"row {row}: its features are not TVM's")
                return
            self.checked += 1
            _equal[self._like] += 1

    def _refuse(self, why: str) -> None:
        """Interpret no row any more, and trust no further space because it is like this one."""
        self.refusal = why
        del _equal[self._like]

    def _rows(self, codes: np.ndarray) -> list[np.ndarray | None]:
        found: list[np.ndarray | None] = [None] * len(codes)
        structure = self._structure
        if structure is None or not len(codes):
            return found
        todo = structure.groups(codes)
        while todo:
            shared, ids = todo.pop()
            try:
                values = structure.features(shared, codes[ids])
            except Differs as e:
                todo += [(shared, ids[e.where]), (shared, ids[~e.where])]
                continue
            except Uninterpreted as e:
                self.unknown[str(e)] += len(ids)
                continue
            for i, v in zip(ids, values, strict=True):
                found[i] = v
        return found


def signature(mod: tvm.IRModule, space: Space) -> Hashable:
    """What workloads share that differ in their extents alone: the space's version, and of each block its name, the
    kinds of its iterators and how much it reads."""
    blocks: list[Hashable] = []

    def visit(block: tvm.s_tir.SBlock) -> None:
        kinds = tuple(int(v.iter_type) for v in block.iter_vars)
        blocks.append((str(block.name_hint).rstrip("0123456789"), kinds, len(block.reads)))

    tvm_ffi.structural_walk(mod["main"].body, (tvm.s_tir.SBlock, visit))
    return space.name, space.version, tuple(blocks)


def columns(space: Space, codes: np.ndarray, shared: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """The knobs' values of rows: of tiles a tuple of `(m,)`, of other numbers `(m,)`, of what is shared the value."""
    fixed = dict(shared)
    found: dict[str, Any] = {}
    for k, knob in enumerate(space.knobs):
        if k in fixed:
            found[knob.name] = knob.choices[fixed[k]]
            continue
        values = np.asarray(knob.choices, dtype=np.int64)[codes[:, k]]
        found[knob.name] = tuple(values.T) if knob.kind == "tile" else values
    return found


def fresh(blocks: list[Block]) -> NestSchedule:
    """A schedule of blocks that stay as they are."""
    return NestSchedule(copy.deepcopy(blocks))
