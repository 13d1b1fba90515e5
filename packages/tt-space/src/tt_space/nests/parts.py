"""Rows whose programs differ in one nest among several, for many rows at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import tvm
from tt_spec import Space

from tt_space.nests.blocks import Block, read_blocks
from tt_space.nests.features import features_of
from tt_space.nests.index import Uninterpreted
from tt_space.nests.interpreter import columns, fresh
from tt_space.nests.lower import lowered
from tt_space.nests.templates import TemplateStructure
from tt_space.programs import copied

__all__ = ["PartStructure"]


class PartStructure:
    """Features of rows of which one part alone differs: nests that share no loop have features of their own.

    The other parts' are those of one row, by TVM; that part's are interpreted, or where a tile leaves a remainder,
    TVM's of a module that has nothing else.

    Args:
        space: Of the rows.
        exact: TVM's features `(statements, 164)` of a row's whole program.
        part: A module of that part alone, given knobs' values.
        schedule: Schedules the part's `NestSchedule` as it would schedule TVM's, given knobs' values.
        extract: TVM's features of schedules.
        apart: Name of the knob that decides what the parts compute.
    """

    def __init__(
        self,
        space: Space,
        exact: Callable[[np.ndarray], np.ndarray],
        part: Callable[[dict[str, Any]], tvm.IRModule],
        schedule: Callable[[Any, dict[str, Any]], Any],
        extract: Callable[[list[Any]], list[np.ndarray]],
        apart: str,
    ) -> None:
        self.space, self._exact, self._part, self._schedule, self._extract = space, exact, part, schedule, extract
        self._groups = TemplateStructure(space, lambda _: [], lambda *_: None, (apart,)).groups
        self._apart = next(k for k, knob in enumerate(space.knobs) if knob.name == apart)
        self._known: dict[int, tuple[np.ndarray, int, tvm.IRModule, list[Block]]] = {}

    def groups(self, codes: np.ndarray) -> list[tuple[Hashable, np.ndarray]]:
        return self._groups(codes)

    def features(self, shared: Any, codes: np.ndarray) -> np.ndarray:
        kind = int(codes[0, self._apart])
        if kind not in self._known:
            self._known[kind] = self._learn(codes[0])
        whole, at, mod, blocks = self._known[kind]
        try:
            s = fresh(blocks)
            self._schedule(s, columns(self.space, codes, shared))
            found = features_of(lowered(s), len(codes))
        except Uninterpreted:
            found = np.stack([self._alone(mod, row) for row in codes])
        out = np.repeat(whole[None], len(codes), axis=0)
        out[:, at : at + found.shape[1]] = found
        return out

    def _learn(self, row: np.ndarray) -> tuple[np.ndarray, int, tvm.IRModule, list[Block]]:
        """A row's features, where its part's are among them, and the part."""
        mod = self._part(self.space.decode(row))
        whole, mine = self._exact(row), self._alone(mod, row)
        places = [i for i in range(len(whole) - len(mine) + 1) if np.allclose(whole[i : i + len(mine)], mine)]
        if len(places) != 1:
            raise Uninterpreted("the part's statements are not told apart")
        return whole, places[0], mod, read_blocks(mod)

    def _alone(self, mod: tvm.IRModule, row: np.ndarray) -> np.ndarray:
        s = copied(mod)
        self._schedule(s, self.space.decode(row))
        return self._extract([s])[0]
