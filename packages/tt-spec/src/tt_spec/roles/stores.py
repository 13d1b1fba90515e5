"""Keeping measurements and exchanging them: stores, formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tt_spec.exchange import Content, Item
from tt_spec.types import Foreign, Measurement, Task

__all__ = [
    "Appends",
    "Format",
    "Lends",
    "ListsRuns",
    "RanksRuns",
    "Recalls",
    "Remembers",
    "Store",
    "Summarises",
    "Writes",
]


class Appends(Protocol):
    """Takes measurements: all that the loop asks of a store."""

    def append(self, batch: Sequence[Measurement]) -> None:
        """Durable when it returns."""
        ...


@runtime_checkable
class Store(Appends, Protocol):
    """Keeps every measurement. Append-only while tuning. What it cannot read or write is a `StoreError`."""

    def query(
        self, task_key: str | None = None, space_key: str | None = None, device: str | None = None
    ) -> Iterable[Measurement]:
        """In the order of arrival; None means any."""
        ...

    def best(self, task_key: str, device: str | None = None) -> Measurement | None:
        """The valid measurement of lowest median, or None; of a row measured more than once the latest counts."""
        ...

    def begin_run(self, info: dict[str, Any]) -> str:
        """Record a run's options, seed, recipe, versions, device and start; returns its id."""
        ...

    def end_run(self, run_id: str, reason: str) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Remembers(Protocol):
    """A store that keeps tasks, so that its records have names."""

    def remember(self, tasks: Sequence[Task]) -> None:
        """Keep each task once; with none, only try whether the store can be written."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A store that gives back the tasks that it keeps, so that an operator whose key another one has is told apart."""

    def task(self, key: str) -> Task | None:
        """A task as it was last remembered, None where it never was."""
        ...


@runtime_checkable
class ListsRuns(Protocol):
    """A store that tells its runs, for `tt history show`."""

    def runs(self) -> list[dict[str, Any]]:
        """Oldest first: `id`, `started` (seconds since the epoch), `reason` (None while unfinished) and `info`, what
        `begin_run` was told."""
        ...


@runtime_checkable
class Summarises(Protocol):
    """A store that tells each task's best, for `tt history show`."""

    def summary(self) -> list[dict[str, Any]]:
        """One entry per task and device: `task_key`, `name` and `op` (None where unknown), `device`, `trials`,
        `failed`, `best_s` (None without a valid program)."""
        ...


@runtime_checkable
class RanksRuns(Protocol):
    """A store that tells each run's best, for a server that starts again."""

    def bests(self) -> dict[tuple[str, str], float]:
        """Seconds (median) of the fastest program that a run measured of a task, by the run's id and the task's key;
        rows that were timed again (origin "again") do not count."""
        ...


@runtime_checkable
class Lends(Protocol):
    """A store whose records of other tasks and devices may guide a search."""

    def lend(self, task: Task, device: str, rows: int) -> list[Foreign]:
        """At most so many rows, in groups of one task, space and device, nearest first: this workload's on other
        devices, targets and spaces, then those of other tasks of its kind. Of the task's own space on this device only
        imported ones; of a row that was measured more than once the latest verdict counts."""
        ...


@runtime_checkable
class Format(Protocol):
    """A format in which histories are exchanged."""

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        """What a file, or folder, holds, item by item, each with its place for people: "line 7". A task comes before
        its records; what is no record of ours is a `LeftOut`. Nothing in the file is believed: the memory that it takes
        is bounded, and what cannot be read is a `FormatError` of one line with the place."""
        ...


@runtime_checkable
class Writes(Protocol):
    """A format that can be written."""

    def write(self, path: Path, content: Content) -> dict[str, int]:
        """Write all of it or, on an error, nothing; returns how many records were left out, by reason. What cannot be
        written is a `FormatError`."""
        ...
