"""Several spaces of an operator as one, so that the search compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np
import tvm
from tt_spec import Knob, Limit, Space
from tt_spec.roles import Assures, Interprets
from tvm.s_tir import Schedule, ScheduleError

from tt_space.intrinsics import import_intrinsics
from tt_space.packing import legalizers
from tt_space.pointwise import PointwisePrograms
from tt_space.pooling import PoolingPrograms
from tt_space.programs import InvalidRow, Programs, Repacked, Rows
from tt_space.recurrent import STEP, RecurrentPrograms, has_step
from tt_space.rows import RowPrograms
from tt_space.sketch import VERSION, SketchPrograms
from tt_space.template import TemplatePrograms, has_template
from tt_space.winograd import has_winograd, winograd_parts

__all__ = ["Both", "Later", "Template", "Union"]

PRIOR = {
    "template": 5.0,
    "recurrent": 5.0,
    "pointwise": 5.0,
    "winograd": 3.0,
    "steps": 2.0,
    "rows": 2.0,
    "pooling": 2.0,
    "sketch": 1.0,
}
"""Shares of random rows by part of a space: good programs are frequent in templates."""


class Template:
    """Templates of convolutions, matrix products, recurrent steps, reductions of rows, pools, and of what reduces
    nothing; sketches elsewhere."""

    legalizers = staticmethod(legalizers)

    def open(self, mod: tvm.IRModule, target: tvm.target.Target) -> Programs:
        """The space of one workload, with the programs behind its rows.

        Args:
            mod: One PrimFunc named "main", lowered with `legalizers`.
            target: With `num-cores` set.
        """
        return _joined(_templates(mod, target) or [SketchPrograms(mod, target)])


class Both:
    """Templates and sketches of an operator side by side; sketches alone where there is no template."""

    legalizers = staticmethod(legalizers)

    def prestart(self) -> None:
        """Load what every space on this CPU needs: half of the time of a process's first `open`."""
        import_intrinsics(tvm.target.Target("llvm"))

    def open(self, mod: tvm.IRModule, target: tvm.target.Target) -> Programs:
        """As `Template.open`. Where TVM's rules derive no sketches, as of a softmax that a mask is added to, templates
        are alone."""
        templates = _templates(mod, target)
        try:
            return _joined([*templates, SketchPrograms(mod, target)])
        except ScheduleError:
            if not templates:
                raise
            return _joined(templates)

    def reopen(self, mod: tvm.IRModule, target: tvm.target.Target, space: Space) -> Programs:
        """As `open`, of a workload whose space is known: sketches are derived when the first of their rows is asked
        for. To derive them is most of an `open`."""
        templates = _templates(mod, target)
        if templates and _joined(templates).space.key == space.key:
            return _joined(templates)
        if not templates or not _begins(space, _joint([p.space for p in templates])):
            return self.open(mod, target)

        def sketches() -> Rows:
            made = SketchPrograms(mod, target)
            whole = _joint([*(p.space for p in templates), made.space])
            if whole.key != space.key:
                raise InvalidRow(f"this process derives space {whole.key}, and the row is of space {space.key}")
            return made

        return Union([*templates, Later(sketches)], space)


def _templates(mod: tvm.IRModule, target: tvm.target.Target) -> list[Programs]:
    if STEP in (mod["main"].attrs or {}):  # a step's constants stay as they are: no Winograd
        return [RecurrentPrograms(mod, target)] if has_step(mod) else []
    if not has_template(mod):
        return _light(mod, target) if target.kind.name == "llvm" else []
    found: list[Programs] = [TemplatePrograms(mod, target)]
    return [*found, *winograd_parts(mod, target)] if has_winograd(mod) else found


def _light(mod: tvm.IRModule, target: tvm.target.Target) -> list[Programs]:
    """The template of an operator without packed weights, if one fits."""
    for kind in (PointwisePrograms, RowPrograms, PoolingPrograms):
        with suppress(ValueError):
            return [kind(mod, target)]
    return []


def _joined(parts: list[Programs]) -> Programs:
    return parts[0] if len(parts) == 1 else Union(parts, _joint([p.space for p in parts]))


def _joint(spaces: Sequence[Space]) -> Space:
    """Several spaces as one: the first knob says whose row it is; the others are called after the space they are of."""
    names = tuple(s.name for s in spaces)
    knobs = [Knob("space", "choice", names, prior=tuple(PRIOR[n] for n in names))]
    limits: list[Limit] = []
    for i, space in enumerate(spaces):
        first = len(knobs)
        for k in space.knobs:
            parent, codes = (0, (i,)) if k.active_if is None else (k.active_if[0] + first, k.active_if[1])
            knobs.append(replace(k, name=f"{space.name}.{k.name}", active_if=(parent, codes)))
        limits += [replace(x, factors=tuple((k + first, f) for k, f in x.factors)) for x in space.limits]
    return Space(tuple(knobs), "+".join(s.version for s in spaces), tuple(limits), "+".join(names))


def _begins(whole: Space, templates: Space) -> bool:
    """Whether a space is these templates and then sketches of this version."""
    knobs, limits = len(templates.knobs), len(templates.limits)
    return (
        whole.name == f"{templates.name}+sketch"
        and whole.version == f"{templates.version}+{VERSION}"
        and whole.knobs[1:knobs] == templates.knobs[1:]
        and whole.limits[:limits] == templates.limits
    )


class Later:
    """Programs that are opened when the first row of them is asked for; see `Rows`."""

    def __init__(self, opened: Callable[[], Rows]) -> None:
        self._opened = opened

    @cached_property
    def _programs(self) -> Rows:
        return self._opened()

    def apply(self, row: np.ndarray) -> Schedule:
        return self._programs.apply(row)

    def read(self, schedule: Schedule, row: np.ndarray) -> np.ndarray:
        return self._programs.read(schedule, row)

    def repack(self, row: np.ndarray) -> Repacked | None:
        return self._programs.repack(row)

    def features(self, schedules: list[Schedule]) -> list[np.ndarray]:
        return self._programs.features(schedules)

    def interpret(self, codes: np.ndarray) -> list[np.ndarray | None]:
        return list(self._programs.interpret(codes)) if isinstance(self._programs, Interprets) else [None] * len(codes)


class Union:
    """Several spaces of one workload as one.

    Args:
        parts: Programs of each space; the names of the spaces must differ.
        space: Theirs together, as `_joint` makes it.
    """

    def __init__(self, parts: Sequence[Rows], space: Space) -> None:
        self.parts, self.space = parts, space
        owners = [k.name.partition(".")[0] for k in space.knobs]
        names = space.knobs[0].choices
        self._columns = [slice(owners.index(n), len(owners) - owners[::-1].index(n)) for n in names]

    def apply(self, row: np.ndarray) -> Schedule:
        row = np.asarray(row, dtype=np.int64)
        if not self.space.in_range(row[None])[0]:
            raise InvalidRow(f"row {row.tolist()} is outside the space's shape {self.space.shape}")
        return self.parts[row[0]].apply(row[self._columns[row[0]]])

    def read(self, schedule: Schedule, row: np.ndarray) -> np.ndarray:
        mine = self._columns[row[0]]
        found = np.zeros(len(self.space.knobs), dtype=np.int64)
        found[0], found[mine] = row[0], self.parts[row[0]].read(schedule, row[mine])
        return found

    def repack(self, row: np.ndarray) -> Repacked | None:
        return self.parts[row[0]].repack(row[self._columns[row[0]]])

    def interpret(self, codes: np.ndarray) -> list[np.ndarray | None]:
        """Features of each row by the part it is of; None where only its program tells."""
        codes = np.asarray(codes, dtype=np.int64)
        found: list[np.ndarray | None] = [None] * len(codes)
        for i, part in enumerate(self.parts):
            mine = np.flatnonzero(codes[:, 0] == i)
            if isinstance(part, Interprets) and len(mine):
                for k, f in zip(mine, part.interpret(codes[mine][:, self._columns[i]]), strict=True):
                    found[k] = f
        return found

    def assured(self, codes: np.ndarray) -> np.ndarray:
        """Which rows `(n, d)` have programs by what their part knows, `(n,)` bool."""
        codes = np.asarray(codes, dtype=np.int64)
        found = self.space.allowed(codes) & (self.space.canonical(codes) == codes).all(axis=1)
        for i, part in enumerate(self.parts):
            mine = np.flatnonzero(found & (codes[:, 0] == i))
            if len(mine):
                found[mine] = isinstance(part, Assures) and part.assured(codes[mine][:, self._columns[i]])
        return found

    def features(self, schedules: list[Schedule]) -> list[np.ndarray]:
        return self.parts[0].features(schedules)
