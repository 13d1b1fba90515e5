"""Rows whose programs differ in one nest among several, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tt_spec import Space

from tt_space.nests.blocks import read_blocks
from tt_space.nests.features import features_of
from tt_space.nests.index import Uninterpreted
from tt_space.nests.interpreter import columns, fresh
from tt_space.nests.lower import lowered

__all__ = ["Part", "PartStructure"]


@dataclass(frozen=True)
class Part:
    """The nest in which rows differ that have all others in common.

    Args:
        mod: A module of that nest alone.
        schedule: Schedules it, a `NestSchedule` as it would TVM's schedule, given knobs' values.
        trips: Of the parallel loop that this nest shares with others, and in which what it stores is allocated; None
            for a nest of its own.
    """

    mod: tvm.IRModule
    schedule: Callable[[Any, dict[str, Any]], None]
    trips: int | None = None


class PartStructure:
    """Features of rows of which one part alone differs. The other parts' are those of one row, by TVM.

    Args:
        space: Of the rows. Text among its knobs' values is the part's structure.
        exact: TVM's features `(statements, 164)` of a row's whole program.
        part: The part, given the knobs' values of a row.
        apart: Of rows `(m, knobs)`, integers `(m, k)` that decide everything but the part.
    """

    def __init__(
        self,
        space: Space,
        exact: Callable[[np.ndarray], np.ndarray],
        part: Callable[[dict[str, Any]], Part],
        apart: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self.space, self._exact, self._part, self._apart = space, exact, part, apart
        self._text = [k for k, knob in enumerate(space.knobs) if isinstance(knob.choices[0], str)]
        self._known: dict[tuple[int, ...], tuple[np.ndarray, int, _Alone]] = {}

    def groups(self, codes: np.ndarray) -> list[tuple[Hashable, np.ndarray]]:
        apart = self._apart(codes)
        keys = np.concatenate([codes[:, self._text], apart], axis=1)
        _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        which = which.reshape(-1)
        return [(tuple(map(int, apart[at])), np.flatnonzero(which == i)) for i, at in enumerate(first)]

    def features(self, shared: Any, codes: np.ndarray) -> np.ndarray:
        if shared not in self._known:
            self._known[shared] = self._learn(codes[-1])  # the first of a group are compared
        whole, at, alone = self._known[shared]
        found = alone.features(codes)
        out = np.repeat(whole[None], len(codes), axis=0)
        out[:, at : at + found.shape[1]] = found
        return out

    def _learn(self, row: np.ndarray) -> tuple[np.ndarray, int, _Alone]:
        """A row's features, where its part's are among them, and the part."""
        alone = _Alone(self.space, self._text, self._part(self.space.decode(row)))
        whole, (mine,) = self._exact(row), alone.features(row[None])
        n = len(mine)
        places = [i for i in range(len(whole) - n + 1) if np.allclose(whole[i : i + n], mine, rtol=1e-5, atol=1e-6)]
        if len(places) != 1:
            raise Uninterpreted("the part's statements are not told apart")
        return whole, places[0], alone


class _Alone:
    """A part without the others."""

    def __init__(self, space: Space, text: list[int], part: Part) -> None:
        self.space, self._text, self.part = space, text, part
        self.blocks = read_blocks(part.mod)

    def features(self, codes: np.ndarray) -> np.ndarray:
        """Features `(n, statements, 164)` of rows that have all text in common."""
        s, trips = fresh(self.blocks), self.part.trips
        text = tuple((k, int(codes[0, k])) for k in self._text)
        self.part.schedule(s, columns(self.space, codes, text))
        if trips is not None:
            s.parallel(s.enclose(trips))
        stores = lowered(s)
        if trips is not None:  # what the part stores is its caller's here, and the loop's in the whole program
            stores = [replace(x, alloc_outer=trips) if s.buffers[x.accesses[0].name].param else x for x in stores]
        return features_of(stores, len(codes))
