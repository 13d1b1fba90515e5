"""The roles that pieces play. Batch first: rows are `(n, d)` int64 matrices.

Ownership: the pipeline owns visited, pending and failed rows and the random share of a batch; learned state lives
in the piece (attributes ending in `_`), one piece per task unless the surrogate says `shared = True`. Randomness is
always the argument `rng`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from tt_spec.clock import Clock
from tt_spec.types import (
    Bar,
    Context,
    Group,
    Measurement,
    Prediction,
    Proposal,
    Selection,
    Slot,
    Statements,
    Task,
    TaskState,
    Timing,
)

__all__ = [
    "ROLES",
    "Backend",
    "Candidate",
    "Evaluator",
    "Measurer",
    "PieceError",
    "Realised",
    "RunInfo",
    "RunState",
    "Sampler",
    "Scheduler",
    "Searcher",
    "Stopper",
    "Store",
    "StoreError",
    "Surrogate",
]


class PieceError(Exception):
    """A piece cannot do its work for a reason that the user can mend; the message says what came and what to do."""


@dataclass(frozen=True)
class Realised:
    """What rows became when their programs were made.

    Args:
        codes: `(n, d)` canonical rows, read back from the programs.
        why: One per row: None, or why there is no such program.
    """

    codes: np.ndarray
    why: tuple[str | None, ...]


class Candidate(Protocol):
    """A built program, ready to run in this process."""

    def run(self, n: int) -> float:
        """Execute `n` times back to back; returns the mean seconds per execution."""
        ...

    def check(self) -> str | None:
        """None if the outputs agree with the untuned program's, else by how much they do not."""
        ...


class Backend(Protocol):
    """What knows a compiler. Lives in a worker process; `open` is called before a task's first use."""

    def open(self, task: Task) -> None: ...

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        """Make each row's program and read its row back, without building it."""
        ...

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        """Which rows have a program, `(n,)` bool, and the statement features of those, in order."""
        ...

    def build(self, task: Task, row: np.ndarray) -> Candidate:
        """Compile one row. Raises with the compiler's message."""
        ...


@runtime_checkable
class Measurer(Protocol):
    """Rows in, measurements out."""

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Measurement]:
        """Yield one `Measurement` per row, in order of completion; `config` is the row asked. A failed candidate is
        a measurement with `error`, never an exception. Closing the iterator abandons what is not yet measured."""
        ...

    def realise(self, task: Task, codes: np.ndarray) -> Realised: ...

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]: ...

    def close(self) -> None:
        """End every process and handle; may be called twice."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """Decides how many runs a candidate deserves. Must be picklable: it works inside the worker."""

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        """`run(n)` executes n times and returns the mean seconds. Stays within `bar.cap_s` as far as one run allows."""
        ...


@runtime_checkable
class Surrogate(Protocol):
    """A model of labels (`best / seconds`, failures 0)."""

    inputs: Literal["knobs", "statements"]
    shared: bool
    """Whether one model serves all tasks; else each task has its own."""

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None: ...

    def predict(self, task: Task, X: Any) -> Prediction: ...

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        """Acquisition `(n,)`, higher is better; `best` is the best label so far."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Proposes configurations. May also have `tell(ctx, batch_rows, y)` to learn from results."""

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Distinct, canonical rows that are `ctx.fresh`: `n` or a small multiple, so that the sampler has a choice;
        fewer when the space is exhausted."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Picks which proposed rows to measure."""

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        """Up to `n` distinct rows that are `ctx.fresh`; `complete=True` where fewer are meant to be the whole batch."""
        ...


@dataclass
class RunState:
    """The whole run as run-wide stoppers see it."""

    tasks: list[TaskState]
    started: float
    trials: int = 0
    slots: int = 0


@runtime_checkable
class Scheduler(Protocol):
    """Says which task gets the next slot.

    May also have `budget(rows)`: told before each `next` how many more rows the run is likely to measure, inf where
    nothing bounds it; and `peak(flops)`: told before the run what the device can do at most, as measured, FLOP/s.
    """

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        """A slot for a task that is not finished, or None when there is nothing left to do."""
        ...


@runtime_checkable
class Stopper(Protocol):
    """Says when to stop a task (`scope = "task"`) or the run (`scope = "run"`).

    One of the run may also have `room(state)`, how many more rows may be measured, and `left_s(state, clock)`, how
    many seconds are left.
    """

    scope: Literal["task", "run"]

    def stop(self, state: Any, clock: Clock) -> str | None:
        """`state` is a `TaskState` or a `RunState` by scope; returns the reason or None."""
        ...


class StoreError(PieceError):
    """A store cannot be read or written; the message is one line: which one, why, and what to do."""


@runtime_checkable
class Store(Protocol):
    """Keeps every measurement. Append-only while tuning. What it cannot read or write is a `StoreError`."""

    def append(self, batch: Sequence[Measurement]) -> None:
        """Durable when it returns."""
        ...

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


@dataclass(frozen=True)
class RunInfo:
    """What every event listener is told of the run.

    Args:
        options: Model, target, recipe, budget, versions: what the store's `begin_run` was told.
        states: Each task's state, in the order of `tasks`, as it changes; filled by the loop.
    """

    run_id: str
    tasks: tuple[Task, ...]
    options: dict[str, Any] = field(default_factory=dict)
    states: tuple[TaskState, ...] = ()


ROLES = (
    "evaluator",
    "measurer",
    "surrogate",
    "searcher",
    "sampler",
    "scheduler",
    "stopper",
    "store",
    "space",
    "model",
    "rewrite",
    "recipe",
    "command",
)
"""Every role has a registration hook `tt_<role>s`."""
