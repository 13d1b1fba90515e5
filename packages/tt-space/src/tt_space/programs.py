"""The programs behind the rows of a design space over TVM, for one workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tvm
import tvm_ffi
from tt_spec import Space
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir import meta_schedule as ms

from tt_space.intrinsics import import_intrinsics

__all__ = [
    "Features",
    "InvalidRow",
    "Programs",
    "Repacked",
    "Rows",
    "TemplateRows",
    "blocks_of",
    "copied",
    "first_line",
    "loads_of",
]


class InvalidRow(ValueError):
    """A row for which there is no program; the message says why."""


@dataclass(frozen=True)
class Repacked:
    """A constant argument that a program takes in another form, made when the model is compiled.

    Args:
        position: Index of the argument.
        form: Its name; the same name means the same form.
        make: The workload's array to the program's.
        extra: Bytes that it takes beyond those of the workload's array.
        again: Bytes that a second thread reads, too, where threads do not share them out.
    """

    position: int
    form: str
    make: Callable[[np.ndarray], np.ndarray] = field(compare=False)
    extra: int = field(default=0, compare=False)
    again: int = field(default=0, compare=False)


class Rows(Protocol):
    """Rows to schedules and back."""

    def apply(self, row: np.ndarray) -> Schedule:
        """The scheduled program of a row, ready to build. Raises `InvalidRow`."""
        ...

    def read(self, schedule: Schedule, row: np.ndarray) -> np.ndarray:
        """The canonical row of the schedule that `apply` made of `row`."""
        ...

    def repack(self, row: np.ndarray) -> Repacked | None:
        """The constant that the row's program takes in another form, or None where constants stay as they are."""
        ...

    def features(self, schedules: list[Schedule]) -> list[np.ndarray]:
        """Per-store features of each program, `(statements, 164)` float64."""
        ...


class Programs(Rows, Protocol):
    """Rows of a space.

    Args:
        space: The space of the rows.
    """

    space: Space


class TemplateRows(ABC):
    """The common part of spaces of templates: every row in range is its own canonical row and names its knobs' values.

    Attributes:
        space: The space of the rows; set by the subclass.
    """

    space: Space

    features: Callable[[list[Schedule]], list[np.ndarray]]

    @abstractmethod
    def scheduled(self, knobs: dict[str, Any]) -> Schedule:
        """The scheduled program of these knobs' values. May raise whatever TVM raises."""

    def apply(self, row: np.ndarray) -> Schedule:
        """The scheduled program of a row, ready to build. Raises `InvalidRow`."""
        row = np.asarray(row, dtype=np.int64)
        if not self.space.in_range(row[None])[0]:
            raise InvalidRow(f"row {row.tolist()} is outside the space's shape {self.space.shape}")
        try:
            return self.scheduled(self.space.decode(row))
        except Exception as e:  # TVM raises several types; all mean that there is no such program
            raise InvalidRow(f"TVM cannot schedule the row: {first_line(e)}") from e

    def read(self, schedule: Schedule, row: np.ndarray) -> np.ndarray:
        """The canonical row of the schedule that `apply` made of `row`: the row itself."""
        return self.space.canonical(np.asarray(row, dtype=np.int64)[None])[0]

    def assured(self, codes: np.ndarray) -> np.ndarray:
        """Which rows `(n, d)` are canonical, `(n,)` bool: all that are have programs."""
        codes = np.asarray(codes, dtype=np.int64)
        return self.space.allowed(codes) & (self.space.canonical(codes) == codes).all(axis=1)

    def exact(self, row: np.ndarray) -> np.ndarray:
        """TVM's features of a row. Raises `InvalidRow`."""
        return self.features([self.apply(row)])[0]

    def repack(self, row: np.ndarray) -> Repacked | None:
        """None: the programs take the workload's constants as they are."""
        return None


class Features:
    """Per-store features of scheduled programs.

    Source: Ansor, appendix B, as TVM's `PerStoreFeature` extracts them (already on a log scale).
    """

    def __init__(self, mod: tvm.IRModule, target: tvm.target.Target) -> None:
        self._mod, self._target = mod, target
        self._context: Any = None

    def __call__(self, schedules: list[Schedule]) -> list[np.ndarray]:
        if self._context is None:
            import_intrinsics(self._target)  # or TVM imports those of every target: half a minute
            self._context = ms.TuneContext(mod=self._mod, target=self._target, num_threads=1)
            self._extractor = ms.feature_extractor.PerStoreFeature()
        candidates = [ms.MeasureCandidate(s, []) for s in schedules]
        found: Any = self._extractor.extract_from(self._context, candidates)
        return [f.numpy() for f in found]


def first_line(e: BaseException) -> str:
    """The first line of TVM's message that is not blank, at most 300 characters."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    return (lines[0] if lines else type(e).__name__)[:300]


def blocks_of(mod: tvm.IRModule) -> list[SBlock]:
    """The blocks of a function that is a list of loop nests, in order; none of another, e.g. of a scan."""
    if getattr(getattr(mod["main"].body, "block", None), "name_hint", "") != "root":
        return []
    schedule = Schedule(mod, debug_mask="none")
    return [schedule.get(rv) for rv in schedule.get_child_blocks(schedule.get_sblock("root"))]


def loads_of(value: Any) -> list[Any]:
    """The loads in an expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, found.append))
    return found


def copied(mod: tvm.IRModule) -> Schedule:
    """A schedule of a copy: scheduling changes a function that other schedules share.

    New variables and buffers make all statements and blocks new, in 1 ms; by way of JSON, as `copy.deepcopy` goes, it
    takes 4. (A true deep copy copies operators, too, which code generation then does not know.)
    """
    fresh = {var: tvm.s_tir.renew_defs(func) for var, func in mod.functions_items()}
    return Schedule(tvm.IRModule(fresh, attrs=mod.attrs), debug_mask="none", error_render_level="none")
