"""How the rows of a template's space are scheduled, for many rows at once: by the template's own code."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from tt_spec import Space

from tt_space.nests.blocks import Block
from tt_space.nests.features import features_of
from tt_space.nests.interpreter import columns, fresh
from tt_space.nests.lower import lowered
from tt_space.nests.schedule import NestSchedule

__all__ = ["TemplateStructure"]


class TemplateStructure:
    """A template as a function of a schedule and knobs.

    Args:
        space: Knobs whose choices are text decide the structure; those that are numbers, extents.
        blocks: The workload's, by the values of the knobs named in `apart`.
        schedule: Schedules a `NestSchedule` as it would schedule TVM's, given knobs' values.
        apart: Names of numeric knobs that decide the structure too.
    """

    def __init__(
        self,
        space: Space,
        blocks: Callable[[dict[str, Any]], list[Block]],
        schedule: Callable[[Any, dict[str, Any]], Any],
        apart: tuple[str, ...] = (),
    ) -> None:
        self.space, self._blocks, self._schedule = space, blocks, schedule
        self._shared = [
            k for k, knob in enumerate(space.knobs) if isinstance(knob.choices[0], str) or knob.name in apart
        ]

    def groups(self, codes: np.ndarray) -> list[tuple[Hashable, np.ndarray]]:
        if not self._shared:
            return [((), np.arange(len(codes)))]
        kinds, which = np.unique(codes[:, self._shared], axis=0, return_inverse=True)
        which = which.reshape(-1)
        return [
            (tuple(zip(self._shared, map(int, kind), strict=True)), np.flatnonzero(which == i))
            for i, kind in enumerate(kinds)
        ]

    def features(self, shared: Any, codes: np.ndarray) -> np.ndarray:
        return features_of(lowered(self.scheduled(shared, codes)), len(codes))

    def scheduled(self, shared: Any, codes: np.ndarray) -> NestSchedule:
        knobs = columns(self.space, codes, shared)
        s = fresh(self._blocks(knobs))
        self._schedule(s, knobs)
        return s
