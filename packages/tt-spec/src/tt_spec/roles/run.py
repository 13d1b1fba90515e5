"""A run as others see it: listeners, services, the host of a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tt_spec.roles.measuring import Checks, Evaluator, Measurer, Races
from tt_spec.roles.stores import Store
from tt_spec.types import Batch, Measurement, Task, TaskState

if TYPE_CHECKING:
    from tt_spec.plugins import Plugins

__all__ = [
    "Errand",
    "Host",
    "Judges",
    "Listener",
    "Place",
    "RunInfo",
    "Service",
]


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

    def recall(self, key: str) -> Sequence[Task]:
        """The tasks that its histories know by a key, any of which may be another operator's by chance."""
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
