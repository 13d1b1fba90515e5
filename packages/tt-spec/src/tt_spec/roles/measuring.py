"""Making programs of rows and timing them: backends, evaluators, measurers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tt_spec.types import Bar, Statements, Task, Timing, Trial

__all__ = [
    "Backend",
    "Begins",
    "Candidate",
    "Checks",
    "Doubts",
    "Evaluator",
    "Expects",
    "Gauges",
    "Measurer",
    "MeasurerOptions",
    "Measures",
    "NudgesModels",
    "ProfilesModels",
    "Prestarts",
    "ProgramSource",
    "Races",
    "RacesModels",
    "Recalibrates",
    "Realised",
    "Retimes",
    "RunsModels",
    "Traces",
    "Work",
]


@dataclass(frozen=True)
class Realised:
    """The rows after their programs were made.

    Args:
        codes: `(n, d)` canonical rows, read back from the programs.
        why: One per row: None, or why there is no such program.
    """

    codes: np.ndarray
    why: tuple[str | None, ...]


class Candidate(Protocol):
    """A built program, ready to run in this process."""

    apply_s: float
    """Seconds that making the program took, of those that `Backend.build` took."""

    def run(self, n: int) -> float:
        """Execute `n` times back to back; returns the mean seconds per execution."""
        ...

    def check(self) -> str | None:
        """None if the outputs agree with the untuned program's, else by how much they do not."""
        ...


class Backend(Protocol):
    """The compiler's side. Lives in a worker process; `open` is called before a task's first use.

    A backend behind a measurer that races, checks, times or runs models has these methods too (`Races`, `Checks`,
    `Doubts`, `RacesModels`, `ProfilesModels`, `RunsModels`, `NudgesModels`); one that `Gauges` is timed in windows
    (`tt_spec.windows`).
    """

    def open(self, task: Task) -> None: ...

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        """Make each row's program and read its row back, without building it."""
        ...

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        """The statement features of the rows that have a program, in order, and which rows those are, `(n,)` bool."""
        ...

    def build(self, task: Task, row: np.ndarray) -> Candidate:
        """Compile one row. Raises with the compiler's message."""
        ...

    def threads(self) -> int:
        """Threads that a program runs with in this process."""
        ...


@runtime_checkable
class Gauges(Protocol):
    """A backend that can tell how fast the machine is at this moment."""

    def gauge(self, task: Task) -> float | None:
        """Seconds of a fixed program of about 0.1 ms, run once now on the threads that the task's programs use; None
        where it would say nothing of them, e.g. of programs on a GPU. The task is open."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """Decides how many runs a candidate deserves. Must be picklable: it works inside the worker."""

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        """`run(n)` executes n times and returns the mean seconds. Stays within `bar.cap_s` as far as one run allows."""
        ...


class Measures(Protocol):
    """Rows in, trials out: all that the loop asks of a measurer."""

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        """Yield one `Trial` per row, in order of completion; `config` is the row asked. A failed candidate is a trial
        with `error`, never an exception. Closing the iterator abandons what is not yet measured."""
        ...


class ProgramSource(Protocol):
    """Makes programs of rows, whether they are timed or not: all that a pipeline asks of a measurer."""

    def realise(self, task: Task, codes: np.ndarray) -> Realised: ...

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]: ...


@runtime_checkable
class Measurer(Measures, ProgramSource, Protocol):
    """Builds programs and times them.

    The runner makes it with `MeasurerOptions`; to write a file it needs the capabilities `Races`, `Checks`,
    `RacesModels` and `RunsModels` too.
    """

    def close(self) -> None:
        """End every process and handle; may be called twice."""
        ...


@dataclass(frozen=True)
class MeasurerOptions:
    """The keywords with which the runner builds a measurer; a recipe's own options come on top.

    Args:
        backend: "module:attribute" of the `Backend`, made without arguments where programs are made.
        threads: Of a program.
        evaluator: Decides the runs of a candidate.
    """

    backend: str
    threads: int
    evaluator: Evaluator


@runtime_checkable
class Prestarts(Protocol):
    """A measurer, cost model or space builder that can begin to start before it has work."""

    def prestart(self) -> None:
        """Start what it needs and return at once; a space builder, asked in a worker that would wait, returns when it
        is done."""
        ...


@runtime_checkable
class Expects(Protocol):
    """A measurer that can build rows before they are to be measured, so that no core waits."""

    def expect(self, task: Task, codes: np.ndarray) -> None:
        """Rows `(n, d)` that `measure` will be asked for soon, in the order of the calls; returns at once. What comes
        of them is told when they are measured, as if nothing had been expected; rows that never are cost nothing. The
        rows of a task may be told again, once its turn comes: then it is these that are to be built first."""
        ...


@runtime_checkable
class Begins(Protocol):
    """A measurer that can measure while its caller thinks of other tasks, for it does so elsewhere."""

    def begin(self, task: Task, codes: np.ndarray, bar: Bar) -> None:
        """Rows `(n, d)` that `measure` will be asked for next of this task, with this bar; returns at once. What comes
        of them is told by `measure`, each row once; whether any was begun, or begun twice, does not show."""
        ...


@dataclass(frozen=True)
class Work:
    """What a worker of a measurer did.

    Args:
        who: The worker's number, from 0.
        what: A word: "build", "time", "realise" and such; see `tt_spec.spent.PART_OF`.
        ago_s: How many seconds ago it began, at the moment of telling.
        seconds: How long it took.
    """

    who: int
    what: str
    ago_s: float
    seconds: float


@runtime_checkable
class Traces(Protocol):
    """A measurer that tells what its workers did when, for the picture of where the wall clock went."""

    def trace(self) -> list[Work]:
        """What was done since the last call, in any order. Of work in hand the part so far is told, and the rest by
        the next call, so that no two calls tell of the same moment of a worker."""
        ...


@runtime_checkable
class Retimes(Protocol):
    """A measurer that holds the fastest programs it built for a while, so that timing them again costs no build."""

    def retime(self, task: Task, codes: np.ndarray) -> Iterator[Trial]:
        """Time these rows `(n, d)` in turns, nothing else running: a valid trial for each row whose program is still
        held, none for the others. An empty `codes` is no work."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """A measurer whose workers can build for `race` and `check` side by side; those two build one after the other what
    is not held."""

    def prepare(self, wanted: Sequence[tuple[Task, np.ndarray]]) -> None:
        """Build and hold the programs of these rows `(n, d)`, until the next call: each task's where they will race.
        What fails is told when it races. Of nothing, hold nothing any more."""
        ...


@runtime_checkable
class Recalibrates(Protocol):
    """A measurer whose seconds may become those of another state of the machine."""

    def rescaled(self, task: Task) -> float:
        """Asked before every batch: what the task's seconds must be multiplied by that were told before the last call,
        to be compared with those of the batch. An estimate; 1 where nothing has changed, and on the first call."""
        ...


@runtime_checkable
class Races(Protocol):
    """A measurer that times finalists in turns: the luckiest measurement of many is not the fastest program."""

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """Seconds per execution of each round, one list per row of `codes` `(n, d)`, nothing else running.

        Args:
            min_ms: Length of a round's timing of one program, at least, milliseconds.
            untuned: The program that ships without tuning takes part; its list is the last one. If it is hopelessly
                slow, its list may have one entry.
            cold: If above 0, each execution of a row's program takes other copies of the constants whose form some of
                the rows change, together so many bytes: the constants of the network around it.

        Raises `tt_spec.errors.ProgramError` if one of the programs crashes or hangs.
        """
        ...


@runtime_checkable
class Checks(Protocol):
    """A measurer that compares a row's outputs with the untuned program's."""

    def check(self, task: Task, row: np.ndarray) -> str | None:
        """The fault in the outputs of the row `(d,)`, or None. Raises `tt_spec.errors.ProgramError` if it crashes or
        hangs."""
        ...


@runtime_checkable
class Doubts(Protocol):
    """A measurer that says what its checks could not tell."""

    def doubts(self, task: Task, row: np.ndarray) -> list[str]:
        """Why outputs that the row `(d,)` was checked against tell nothing, e.g. being the same everywhere; empty if
        they do, or where the row was not checked."""
        ...


@runtime_checkable
class RacesModels(Protocol):
    """A measurer that times deployed libraries in turns."""

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        """Seconds per execution of each round, a list per library, nothing else running; `seconds` in all. One that is
        hopelessly slow may have one entry. Raises `tt_spec.errors.ProgramError` if one crashes or hangs."""
        ...


@runtime_checkable
class ProfilesModels(Protocol):
    """A measurer that times the functions of deployed libraries where they are called."""

    def profile_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[dict[str, list[float]]]:
        """Seconds of each round that a function takes in one execution, all its calls together, by its name; a
        dictionary per library. They take turns, nothing else running, for `seconds` in all. Raises
        `tt_spec.errors.ProgramError` if one crashes or hangs."""
        ...


@runtime_checkable
class RunsModels(Protocol):
    """A measurer that runs a deployed library."""

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Its outputs, in order. Raises `tt_spec.errors.ProgramError` if it crashes or hangs."""
        ...


@runtime_checkable
class NudgesModels(Protocol):
    """A measurer that tells what rounding may do to a deployed library's outputs."""

    def nudge_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """Its outputs for each seed, where every float that passes between its operators, inputs included, is changed
        by a half to the whole of `share` of itself, up or down. Raises `tt_spec.errors.ProgramError` if it crashes or
        hangs."""
        ...


@runtime_checkable
class StartsModels(Protocol):
    """A measurer that runs a deployed library while its caller does something else."""

    def start_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> Callable[[], tuple[list[np.ndarray], list[list[np.ndarray]]]]:
        """Begin what `run_model` and `nudge_model` do, where possible at once, and return. What is returned waits for
        both and gives their outputs, or raises `tt_spec.errors.ProgramError` as they do; it may be called later than
        other methods, or never."""
        ...
