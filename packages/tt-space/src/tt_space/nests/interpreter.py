"""Features of a space's rows by interpretation, where that was seen to equal TVM's extractor."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import numpy as np
from tt_spec import Space, draw

from tt_space.nests.blocks import Block
from tt_space.nests.index import Differs, Uninterpreted
from tt_space.nests.schedule import NestSchedule

__all__ = ["Interpreter", "Structure", "columns", "fresh"]

PROBES = 16
"""Rows on which a space's interpretation is compared with TVM's features, before any of them is given."""

DRAWN = 16 * PROBES
"""Rows among which those are found: of a sketch's random rows, many have a compute location that TVM replaces."""


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

    Asked first, it compares 16 rows, drawn by a fixed seed, with TVM; where one differs, none is interpreted.

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
        self.checked: int | None = None
        self.unknown: Counter[str] = Counter()

    def __call__(self, codes: np.ndarray) -> list[np.ndarray | None]:
        """Features `(statements, 164)` of each row; None where only TVM can tell."""
        codes = np.asarray(codes, dtype=np.int64)
        if self.checked is None:
            self._check()
        none: list[np.ndarray | None] = [None] * len(codes)
        if self._structure is None or self.refusal is not None or not len(codes):
            return none
        fits = np.flatnonzero(self.space.in_range(codes))
        for i, f in zip(fits, self._rows(codes[fits]), strict=True):
            none[i] = f
        return none

    def _check(self) -> None:
        self.checked = 0
        try:
            self._structure = self._make()
        except Uninterpreted as e:
            self.refusal = str(e)
            return
        rows = self.space.canonical(draw(self.space, set(), DRAWN, np.random.default_rng(0)))
        known: list[tuple[np.ndarray, np.ndarray]] = []
        for some in np.split(rows, range(2 * PROBES, len(rows), 2 * PROBES)):
            found = zip(some, self._rows(some), strict=True)
            known += [(row, mine) for row, mine in found if mine is not None]
            if len(known) >= PROBES:
                break
        self.unknown.clear()
        for row, mine in known[:PROBES]:
            try:
                theirs = self._exact(row)
            except ValueError:
                self.refusal = f"row {row.tolist()} has no program, and was interpreted"
                return
            if mine.shape != theirs.shape or not np.allclose(mine, theirs, rtol=1e-5, atol=1e-6):
                self.refusal = f"row {row.tolist()}: its features are not TVM's"
                return
            self.checked += 1
        if not self.checked:
            self.refusal = f"none of {len(rows)} rows could be interpreted"

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
