"""Features of a space's rows by interpretation, where that was seen to equal TVM's extractor."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
from tt_spec import Space

from tt_space.nests.blocks import Block
from tt_space.nests.index import Differs, Uninterpreted
from tt_space.nests.schedule import NestSchedule

__all__ = ["Interpreter", "Structure", "columns", "fresh"]

PROBES = 16
"""Rows of a space that are compared with TVM's features before any interpreted ones are given."""

TRIES = 128
"""Rows after which a space of which none could be interpreted is given up: of some, one in four can be."""


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

    The first 16 rows asked are TVM's, and what was interpreted is compared with them; where one differs, none is. So a
    short search, which asks for few rows, does not pay for a comparison.

    Args:
        space: The space of the rows.
        structure: How they are scheduled.
        exact: TVM's features `(statements, 164)` of a row. Raises `ValueError` where it has no program.

    Attributes:
        refusal: Why rows are not interpreted; None where they are, or before the first question.
        checked: Probes that were equal.
        unknown: Rows that only TVM could tell, by the reason.
    """

    def __init__(
        self, space: Space, structure: Callable[[], Structure], exact: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self.space, self._make, self._exact = space, structure, exact
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
        if self.checked < PROBES:
            self._check(codes, found)
            self._tried += len(fits)
            if not self.checked and self._tried >= TRIES:
                self.refusal = f"none of {self._tried} rows could be interpreted"
        return found if self.refusal is None else none

    def _check(self, codes: np.ndarray, found: list[np.ndarray | None]) -> None:
        """Compare rows with TVM, in as many structures as there are, and give TVM's features of them."""
        assert self._structure is not None
        told = np.array([i for i, f in enumerate(found) if f is not None], dtype=np.int64)
        groups = [told[ids].tolist() for _, ids in self._structure.groups(codes[told])] if len(told) else []
        turns = [i for ids in itertools.zip_longest(*groups) for i in ids if i is not None]
        for i in turns[: PROBES - self.checked]:
            mine, row = found[i], codes[i].tolist()
            try:
                theirs = found[i] = self._exact(codes[i])
            except ValueError:
                self.refusal = f"row {row} has no program, and was interpreted"
                return
            if mine is None or mine.shape != theirs.shape or not np.allclose(mine, theirs, rtol=1e-5, atol=1e-6):
                self.refusal = f"row {row}: its features are not TVM's"
                return
            self.checked += 1

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
