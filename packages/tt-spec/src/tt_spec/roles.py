"""The roles that pieces play, and what else the runner, the bench and the commands may ask of a piece.

Batch first: rows are `(n, d)` int64 matrices. Ownership: the pipeline owns visited, pending and failed rows and the
random share of a batch; learned state lives in the piece (attributes ending in `_`), one piece per task unless the
surrogate says `shared = True`. Randomness is always the argument `rng`.

A **role** is what every piece of its kind must do. A **capability** is what some can: a protocol of its own with one
method, checked by `isinstance` and listed in `CAPABILITIES`; whoever wraps a piece forwards all capabilities of its
role. Both have contracts in `tt_spec.testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from tt_spec.clock import Clock
from tt_spec.exchange import Content, Item
from tt_spec.space import Space
from tt_spec.types import (
    Bar,
    Batch,
    Context,
    Foreign,
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
    Trial,
)

if TYPE_CHECKING:
    from tt_spec.plugins import Plugins

__all__ = [
    "CAPABILITIES",
    "ROLES",
    "Backend",
    "Bounds",
    "Budgeted",
    "Candidate",
    "Checks",
    "Doubts",
    "Errand",
    "Evaluator",
    "Expects",
    "Fits",
    "Foreknows",
    "Foresees",
    "Format",
    "Gauges",
    "Host",
    "Interprets",
    "Judges",
    "Learns",
    "Lends",
    "LimitsRows",
    "LimitsTime",
    "Listener",
    "ListsRuns",
    "Measurer",
    "NudgesModels",
    "MeasurerOptions",
    "ModelFormat",
    "Overlaps",
    "Peaked",
    "Place",
    "Playable",
    "Played",
    "Prestarts",
    "Pretrains",
    "Progress",
    "Races",
    "RacesModels",
    "ReadsTraces",
    "Recalls",
    "Realised",
    "Replay",
    "Remarks",
    "Remembers",
    "Retimes",
    "RunInfo",
    "RunState",
    "RunsModels",
    "Sampler",
    "Saves",
    "Scheduler",
    "Searcher",
    "Service",
    "SpaceBuilder",
    "Stopper",
    "Store",
    "Summarises",
    "Surrogate",
    "Traces",
    "Transfer",
    "PROTOCOLS",
    "Work",
    "Workload",
    "Writes",
    "capabilities",
    "missing",
]


# -- programs and their timing -----------------------------------------------------------------------------------------


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

    A backend behind a measurer that races, checks or runs models has these methods too (`Races`, `Checks`,
    `Doubts`, `RacesModels`, `RunsModels`, `NudgesModels`); one that `Gauges` is timed in windows (`tt_spec.windows`).
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


# -- measurers ---------------------------------------------------------------------------------------------------------


@runtime_checkable
class Measurer(Protocol):
    """Rows in, trials out.

    The runner builds it with `MeasurerOptions`; to write a file it needs the capabilities `Races`, `Checks`,
    `RacesModels` and `RunsModels` too.
    """

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        """Yield one `Trial` per row, in order of completion; `config` is the row asked. A failed candidate is a trial
        with `error`, never an exception. Closing the iterator abandons what is not yet measured."""
        ...

    def realise(self, task: Task, codes: np.ndarray) -> Realised: ...

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]: ...

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
class Races(Protocol):
    """A measurer that times finalists in turns: the luckiest measurement of many is not the fastest program."""

    def race(
        self, task: Task, codes: np.ndarray, rounds: int = 10, min_ms: float = 10.0, untuned: bool = False
    ) -> list[list[float]]:
        """Seconds per execution of each round, one list per row of `codes` `(n, d)`, nothing else running.

        Args:
            min_ms: Length of a round's timing of one program, at least, milliseconds.
            untuned: The program that ships without tuning takes part; its list is the last one. If it is hopelessly
                slow, its list may have one entry.

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


# -- search ------------------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Progress:
    """Where a pre-training stands.

    Args:
        done, total: Rounds that are over, and in all: epochs, or trees.
        loss: Mean over what the last round learned from, in the model's own unit.
        state: Everything that is needed to go on from here, as arrays by name, without object arrays; made when called.
    """

    done: int
    total: int
    loss: float
    state: Callable[[], dict[str, np.ndarray]]


@runtime_checkable
class Pretrains(Protocol):
    """A cost model that learns from many tasks beforehand, so that it can rank a task's rows before it has seen any;
    `fit` then goes on from there."""

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Learn from one group per task and device; programs are compared within a group only.

        Args:
            report: Called after every round, when `predict` answers as learned so far; False ends the training.
            start: A `state` of a training with the same groups, options and seed of `rng`: the model is as it was
                then, that round is reported again, and training goes on as if it had never stopped.

        Raises `UserError` where the model's options exclude it, e.g. over knobs whose columns differ from task to task,
        and for a `start` of another model.
        """
        ...


@runtime_checkable
class Saves(Protocol):
    """A cost model that keeps in a file what it learned beforehand."""

    weights: str | Path | None
    """A file that `save` wrote: an option of the constructor, read at `prestart` or when first needed, which raises
    `UserError` where it cannot be used. None learns from nothing."""

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        """Write what `pretrain` learned, whole or not at all; `fit` does not change it.

        Args:
            card: Plain data that goes with it: what it learned from, and how well.
        """
        ...


@runtime_checkable
class Foreknows(Protocol):
    """A cost model that may rank a task's rows before it has seen one of them, because it learned beforehand."""

    def foreknows(self, task: Task) -> str | None:
        """Where it learned, e.g. the CPU, if it can rank the task's rows before its first `fit`; else None. Raises
        `UserError` where what it should know cannot be read."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Proposes configurations."""

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Distinct, canonical rows that are `ctx.fresh`: `n` or a small multiple, so that the sampler has a choice;
        fewer when the space is exhausted."""
        ...


@runtime_checkable
class Learns(Protocol):
    """A searcher that learns from results."""

    def tell(self, ctx: Context, rows: np.ndarray, y: np.ndarray) -> None:
        """Rows `(n, d)` of a batch that were measured, and their labels `(n,)`."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Picks which proposed rows to measure."""

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        """Up to `n` distinct rows that are `ctx.fresh`; `complete=True` where fewer are meant to be the whole batch."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """Lets rows of other tasks and devices guide a task's search. One per task; holds nothing that is learned.

    A second model of the recipe's kind learns from what it chooses, and has a say beside the task's own as long as it
    weighs something (`tt_spec.Guidance`).
    """

    most: int
    """Rows asked of a store, at most."""
    random_share: float
    """Share of random rows in the task's batches before it has a program of its own."""

    def choose(self, task: Task, lent: Sequence[Foreign], inputs: Literal["knobs", "statements"]) -> list[Foreign]:
        """The data that a model which reads `inputs` learns from: some of `lent`, or parts of their rows."""
        ...

    def encode(self, task: Task, foreign: Foreign) -> tuple[np.ndarray, np.ndarray] | None:
        """Foreign rows in the columns of `task.space.encode`: features `(m, p)`, and which of the rows `(n,)` bool
        have them; None where the spaces have nothing in common."""
        ...

    def rows(self, task: Task, lent: Sequence[Foreign], rng: np.random.Generator) -> np.ndarray:
        """Rows of the task's space to measure first `(n, d)`, canonical and allowed; may be none."""
        ...

    def weight(self, trials: int) -> float:
        """The foreign model's weight in [0, 1], after so many trials of the task; never grows with them."""
        ...

    def trust(self, predicted: np.ndarray, y: np.ndarray) -> float:
        """The share of its weight that a foreign model deserves, in [0, 1], from its means for the task's first rows
        `(n,)` and their labels `(n,)`."""
        ...

    def useless(self, predicted: np.ndarray, y: np.ndarray) -> str | None:
        """Why the foreign model is dropped, from its means for the task's first rows `(n,)` and their labels `(n,)`;
        None keeps it."""
        ...


# -- time --------------------------------------------------------------------------------------------------------------


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


# -- stores ------------------------------------------------------------------------------------------------------------


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
class Lends(Protocol):
    """A store whose records of other tasks and devices may guide a search."""

    def lend(self, task: Task, device: str, rows: int) -> list[Foreign]:
        """At most so many rows, in groups of one task, space and device, nearest first: this workload's on other
        devices, targets and spaces, then those of other tasks of its kind. Of the task's own space on this device only
        imported ones; of a row that was measured more than once the latest verdict counts."""
        ...


# -- exchange ----------------------------------------------------------------------------------------------------------


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


# -- replay ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Playable:
    """One task on which recipes can be replayed.

    Args:
        name: For people.
        digest: Of its rows: equal digests, equal rows.
        path: The file that holds it.
        place: Where in the file it is.
        rows: How many are known.
        trial_s: What a trial costs on average by the replay's clock, seconds.
        fitted: Whether rows that were never measured are answered by a model fitted to those that were.
    """

    name: str
    task_key: str
    op: str
    shapes: str
    flops: float
    device: str
    digest: str
    path: str
    place: tuple[str, ...]
    rows: int
    trial_s: float
    fitted: bool = False


@dataclass(frozen=True)
class Played:
    """A replayed run, trial by trial.

    Args:
        t: Seconds by the replay's clock since the run began; they never fall.
        quality: `best known / latency` of what the run would ship then, in [0, 1].
        lacking: Share of the rows asked for that nobody has measured.
    """

    t: tuple[float, ...]
    quality: tuple[float, ...]
    lacking: float = 0.0


@runtime_checkable
class Replay(Protocol):
    """Plays recipes over what was measured before. Picklable, and a playable is: plays may run in other processes."""

    def playables(self, paths: Sequence[Path]) -> list[Playable]:
        """The tasks that these recordings hold and that can tell recipes apart. A file that cannot be read is a
        `UserError` of one line that names it."""
        ...

    def play(self, host: Host, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        """Run a recipe, a name or a TOML file, until `trials` rows are measured or `goal` of the best quality is held.
        The same seed draws the same rows."""
        ...


@runtime_checkable
class Fits(Protocol):
    """A replay that can also play over a history which is no recording: a model fitted to its rows answers for those
    that it lacks."""

    def fitted(self, history: Path, task_keys: Sequence[str], device: str) -> list[Playable]:
        """Those of these tasks of which a device has rows enough; `Playable.fitted` says what they are."""
        ...


# -- where candidates and models come from -----------------------------------------------------------------------------


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


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunInfo:
    """The run as event listeners are told of it.

    Args:
        options: Model, target, recipe, budget, versions: what the store's `begin_run` was told.
        states: Each task's state, in the order of `tasks`, as it changes; filled by the loop.
    """

    run_id: str
    tasks: tuple[Task, ...]
    options: dict[str, Any] = field(default_factory=dict)
    states: tuple[TaskState, ...] = ()


class Listener:
    """Hears a run's events. This base does nothing; override what you want to hear."""

    def tt_run_started(self, run: RunInfo) -> None:
        """Before the first batch."""

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        """After every batch, its results stored."""

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        """A task left the race."""

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        """After the last batch, however the run ended."""

    def note(self, text: str) -> None:
        """A line said around the tuning."""

    def stage(self, name: str, began: float, seconds: float, work: Sequence[Sequence[Any]] = ()) -> None:
        """A stage of the run is over, e.g. "reading" or "compiling". Those before the tuning are told when it begins.

        Args:
            began: By the run's clock.
            work: What was done in it, each `(who, what, began, seconds)` as in `tt_spec.spent.Did`.
        """


@dataclass(frozen=True)
class Errand:
    """A search that somebody else is to think for.

    Args:
        name: The model's, for people.
        recipe: A recipe of the service, or the name of `toml`, the text of one.
        sets: Overrides of the recipe, as `--set` takes them.
        device, versions: Of the machine whose figures are wanted; what others measured counts only if they agree.
        trials, minutes: The budget of the search; at least one of them.
        only_heavy: The tasks are the heavy ones alone.
        history: File of the run here; what a service keeps here lies beside it.
        peak_flops: Of the machine, FLOP/s, for a scheduler that wants it (`Peaked`); None is unknown.
    """

    name: str
    tasks: tuple[Task, ...]
    recipe: str
    toml: str | None = None
    sets: tuple[str, ...] = ()
    seed: int = 0
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    trials: int | None = None
    minutes: float | None = None
    only_heavy: bool = False
    history: str | None = None
    peak_flops: float | None = None


class Judges(Races, Checks, Protocol):
    """Races finalists and compares them with the untuned program, wherever that is done. Both may raise `UserError`
    where nobody is left to do it."""


class Service(Protocol):
    """Searches elsewhere for a run here. Its entry is built with `url`, `key_file`, `agent`, `private`, `insecure`,
    `wait` and `device`: the options of `tt tune --server`."""

    def recipes(self) -> list[dict[str, Any]]:
        """Its recipes: `name`, `summary` and `pieces`, as `Recipe.describe` gives them; where one cannot be used,
        `pieces` has "unusable" alone. Raises `UserError` if it cannot be reached, refuses the key or speaks another
        protocol."""
        ...

    def run(
        self,
        errand: Errand,
        pipelines: Sequence[Any],
        measurer: Measurer,
        store: Store,
        *,
        info: RunInfo,
        listeners: Sequence[Listener] = (),
        halt: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> Any:
        """The `tt_spec.Outcome` of the search: every row is in `store`, `pipelines` (one per task) know it, `listeners`
        heard of it, as if `tt_spec.Loop` had run here. A `halt` leaves the search where it is."""
        ...

    def place(
        self,
        target: str,
        device: str | None = None,
        halt: Callable[[], str | None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> str:
        """Fingerprint of the device whose agents measure for a run that does not: `device`, or the one whose agents run
        the target. Raises `UserError` where there is none, or more than one, and `KeyboardInterrupt` where `halt`
        ends the wait for it."""
        ...

    def judge(self, say: Callable[[str], None] = lambda text: None) -> Judges:
        """For the finalists of the last `run`, where this machine cannot run its target: agents do it."""
        ...


@dataclass(frozen=True)
class Place:
    """Where programs run.

    Args:
        target: The target's canonical text, as tasks have it.
        device: Fingerprint of the machine.
        versions: Of what takes part in a measurement.
        threads: Of a program.
    """

    target: str
    device: str
    versions: Mapping[str, str]
    threads: int


class Host(Protocol):
    """The doors that `tt` opens to a plug-in's command: the value of `typer.Context.obj` there.

    Stateless and picklable, so that a command's worker processes can have it too.
    """

    def prepare(self, model: str, *, target: str = "native", tasks: str = "*", space: str = "both") -> Any:
        """A model, lowered for a target: an object with `model`, `target` and `tasks`."""
        ...

    def recipe(self, name: str, sets: Sequence[str] = (), plugins: Plugins | None = None) -> Any:
        """A recipe, resolved: an object with `build(role, **more)`, `describe()` and `batch`."""
        ...

    def assemble(self, recipe: Any, tasks: Sequence[Task], programs: Any, **options: Any) -> Any:
        """Pipelines, scheduler and stoppers as `tt tune` has them: see `tt_spec.assembly.assemble`. `trials` is a
        budget of rows, `target` that of the machine that measures, None where nothing is measured."""
        ...

    def measurer(self, evaluator: Evaluator | None = None, threads: int | None = None) -> Measurer:
        """The pool that `tt tune` measures with; close it."""
        ...

    def device(self, target: Any) -> str:
        """The fingerprint that must be equal for two measurements to be comparable."""
        ...

    def place(self, target: str = "native") -> Place:
        """This machine, for a target that it can run; raises `UserError` for another."""
        ...

    def versions(self) -> dict[str, str]:
        """Of what takes part in a measurement."""
        ...

    def cores(self) -> int:
        """Physical cores that this process may use."""
        ...

    def interruptible(self) -> AbstractContextManager[Callable[[], str | None]]:
        """Ctrl-C as in `tt tune`: what the context gives says "interrupted" after the first; the second ends all."""
        ...

    def events(self, run: str, history: Path) -> list[dict[str, Any]]:
        """The event log of a run: a file, the beginning of an id, or "" for the newest."""
        ...

    def retell(self, events: Sequence[dict[str, Any]], listeners: Sequence[Listener]) -> Any:
        """The same events for any listener; an object with `run`, `curve`, `reason`, `result` and `states`."""
        ...


ROLES = (
    "evaluator",
    "measurer",
    "surrogate",
    "searcher",
    "sampler",
    "transfer",
    "scheduler",
    "stopper",
    "store",
    "format",
    "replay",
    "space",
    "model",
    "rewrite",
    "recipe",
    "service",
    "command",
)
"""Every role has a registration hook `tt_<role>s`."""

PROTOCOLS: dict[str, type] = {
    "evaluator": Evaluator,
    "measurer": Measurer,
    "surrogate": Surrogate,
    "searcher": Searcher,
    "sampler": Sampler,
    "transfer": Transfer,
    "scheduler": Scheduler,
    "stopper": Stopper,
    "store": Store,
    "format": Format,
    "replay": Replay,
    "space": SpaceBuilder,
}
"""The protocol of each role."""

CAPABILITIES: dict[str, tuple[type, ...]] = {
    "measurer": (Prestarts, Expects, Traces, Retimes, Races, Checks, Doubts, RacesModels, RunsModels, NudgesModels),
    "surrogate": (Prestarts, Pretrains, Saves, Foreknows),
    "searcher": (Learns,),
    "scheduler": (Budgeted, Foresees, Overlaps, Peaked),
    "stopper": (LimitsRows, LimitsTime, Bounds, Remarks),
    "store": (Remembers, Recalls, ListsRuns, Summarises, Lends),
    "space": (Prestarts,),
    "format": (Writes,),
    "replay": (Fits,),
}
"""The capabilities that a piece of a role may have."""


def capabilities(role: str, piece: Any) -> tuple[type, ...]:
    """The capabilities that a piece of the role has."""
    return tuple(c for c in CAPABILITIES.get(role, ()) if isinstance(piece, c))


def missing(piece: Any, *protocols: type) -> list[str]:
    """The members of these protocols that the piece lacks: "race (Races)"; of a role's own, the method alone."""
    own = set(PROTOCOLS.values())
    found = []
    for protocol in protocols:
        if not isinstance(piece, protocol):
            members = [*getattr(protocol, "__annotations__", {}), *vars(protocol)]
            names = [n for n in members if not n.startswith("_") and getattr(piece, n, None) is None]
            found += names if protocol in own else [f"{name} ({protocol.__name__})" for name in names]
    return found
