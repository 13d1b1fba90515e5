"""Where candidates and models come from: spaces, model formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from tt_spec.space import Space

if TYPE_CHECKING:
    from tt_spec.plugins import Plugins

__all__ = [
    "Assures",
    "Interprets",
    "ModelFormat",
    "ReadsTraces",
    "Reopens",
    "SpaceBuilder",
    "Workload",
]


class Workload(Protocol):
    """One operator's space with the programs behind its rows, as a space builder opens it. `Any` is the compiler's."""

    space: Space

    def apply(self, row: np.ndarray) -> Any:
        """The scheduled program of a row, ready to build. Raises `ValueError` where there is none."""
        ...

    def read(self, schedule: Any, row: np.ndarray) -> np.ndarray:
        """The canonical row of the schedule that `apply` made of `row`."""
        ...

    def features(self, schedules: list[Any]) -> list[np.ndarray]:
        """Per-store features of each program, `(statements, 164)` float64."""
        ...

    def repack(self, row: np.ndarray) -> Any:
        """The constant argument that the row's program takes in another form, None where all stay as they are."""
        ...


@runtime_checkable
class Interprets(Protocol):
    """A workload that knows features of rows without making their programs."""

    def interpret(self, codes: np.ndarray) -> list[np.ndarray | None]:
        """Features `(statements, 164)` of each row, equal to those of its program; None where only that tells."""
        ...


@runtime_checkable
class Assures(Protocol):
    """A workload that knows of rows that they have programs, which so are made where they are built."""

    def assured(self, codes: np.ndarray) -> np.ndarray:
        """Which rows `(n, d)` have a program and are canonical, `(n,)` bool; False where only the program tells."""
        ...


@runtime_checkable
class ReadsTraces(Protocol):
    """A workload that knows the rows of another tuner's traces."""

    def trace_of(self, schedule: Any) -> Any:
        """The trace of a schedule that `apply` made, as JSON has it."""
        ...

    def row_of(self, trace: Any) -> np.ndarray:
        """The row `(d,)` whose program has that very trace. Raises `ValueError` with the reason, in few words, where
        there is none, and `TypeError` where it is no trace."""
        ...


@runtime_checkable
class SpaceBuilder(Protocol):
    """Derives design spaces."""

    def open(self, mod: Any, target: Any) -> Workload:
        """The space of one operator on a target."""
        ...

    def legalizers(self, target: Any) -> dict[str, Callable[..., Any]]:
        """Functions that lower an operator as the space wants it written, by the operator's name; may be empty."""
        ...


@runtime_checkable
class Reopens(Protocol):
    """A space builder that opens an operator sooner where its space is known, as it is in a worker."""

    def reopen(self, mod: Any, target: Any, space: Space) -> Workload:
        """As `open`, of the operator that this space was derived of. Where this version derives another one, that is
        the workload's, or its rows have no program."""
        ...


@runtime_checkable
class ModelFormat(Protocol):
    """Reads one kind of model file. Its entry under `tt_models` is called like the suffix: ".onnx"."""

    def read(self, path: Path, shapes: Mapping[str, tuple[int, ...]], plugins: Plugins | None = None) -> Any:
        """A `tt_core.models.Model`, or whatever `tt_core.models.load` takes.

        Args:
            shapes: Fixed shapes by input name, for dynamic dimensions.
            plugins: For formats to which other plug-ins contribute.

        Raises `UserError` for a file that cannot be used.
        """
        ...
