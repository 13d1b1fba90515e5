"""Dividing a run among its tasks, and ending it: schedulers, stoppers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

__all__ = [
    "Bounds",
    "Budgeted",
    "Foresees",
    "LimitsRows",
    "LimitsTime",
    "Overlaps",
    "Peaked",
    "Remarks",
    "RunState",
    "Scheduler",
    "Stopper",
]


@dataclass
class RunState:
    """The whole run as run-wide stoppers see it."""

    tasks: list[TaskState]
    started: float
    trials: int = 0
    slots: int = 0


@runtime_checkable
class Scheduler(Protocol):
    """Says which task gets the next slot."""

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        """A slot for a task that is not finished, or None when there is nothing left to do."""
        ...


@runtime_checkable
class Budgeted(Protocol):
    """A scheduler that plans with what is left."""

    def budget(self, rows: float) -> None:
        """Told before each `next` how many more rows the run is likely to measure, inf where nothing bounds it."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """A scheduler that knows some of its slots beforehand, whatever the ones before them find."""

    def ahead(self, states: Sequence[TaskState], clock: Clock, slot: Slot, rows: int) -> list[Slot]:
        """The slots after `slot`, in order, each of another task and with a number of trials, `rows` in all at most;
        may be none. The loop gives these before it asks for a `next` again."""
        ...


@runtime_checkable
class Overlaps(Protocol):
    """A scheduler that can choose a slot before it knows what the one before finds, so that its rows are thought of
    while those are built."""

    def beside(self, states: Sequence[TaskState], clock: Clock, slot: Slot) -> Slot | None:
        """The slot after `slot`, with a number of trials; None where it is better to wait for what `slot` finds. Of
        `states` the task of `slot` has the trials of its batch, whose results are not known, and is finished. A None
        changes nothing of later answers."""
        ...


@runtime_checkable
class Peaked(Protocol):
    """A scheduler that wants to know what the device can do at most."""

    def peak(self, flops: float) -> None:
        """Told before the run, as measured, FLOP/s; not told where it cannot be measured."""
        ...


@runtime_checkable
class Stopper(Protocol):
    """Says when to stop a task (`scope = "task"`) or the run (`scope = "run"`)."""

    scope: Literal["task", "run"]

    def stop(self, state: Any, clock: Clock) -> str | None:
        """`state` is a `TaskState` or a `RunState` by scope; returns the reason or None."""
        ...


@runtime_checkable
class LimitsRows(Protocol):
    """A stopper of the run with a budget of rows, so that the last batch is cut to it."""

    def room(self, state: RunState) -> int:
        """Rows that may still be measured."""
        ...


@runtime_checkable
class LimitsTime(Protocol):
    """A stopper of the run with a budget of seconds."""

    def left_s(self, state: RunState, clock: Clock) -> float:
        """Seconds left."""
        ...


@runtime_checkable
class Bounds(Protocol):
    """A stopper of a task that knows how many trials the task may still have."""

    def rows_left(self, state: TaskState) -> float:
        """Rows of the task until it would stop as things stand; inf without a bound."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """A stopper of a task with something to say after each batch."""

    def info(self, state: TaskState) -> dict[str, Any]:
        """Plain data for the event log, under "stopper" in the batch's `info`; `im` is the most trials so far."""
        ...
