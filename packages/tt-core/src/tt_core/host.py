"""The host: what `tt` offers to a plug-in's command, the value of `typer.Context.obj` there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tt_spec import Plugins, Task
from tt_spec.roles import Evaluator, Listener, Place
from tt_spec.serial import JsonObject

if TYPE_CHECKING:
    from tt_spec.assembly import Assembled, Pieces
    from tt_spec.recipe import Recipe
    from tt_spec.roles import ProgramSource
    from tvm.target import Target

    from tt_core.events.retell import Retold
    from tt_core.prepared import Prepared

__all__ = ["Host", "by_rounds"]


def by_rounds(timed: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each of several things that were timed in turns, a list each: the median of the one that was the
    fastest in the first round, times the median of the ratios to it. Where the machine's state changes between rounds,
    medians of each alone may be of different states. A list may be shorter than others, not empty."""
    import numpy as np

    fastest = min(timed, key=lambda t: t[0])
    ratios = [np.median([mine / base for mine, base in zip(t, fastest, strict=False)]) for t in timed]
    return [float(np.median(fastest) * ratio) for ratio in ratios]


def by_races(races: Sequence[Sequence[float]]) -> list[float]:
    """Seconds of each of several things, of which each race says its own: the median of the first one, times the
    median of the ratios to it."""
    import numpy as np

    ratios = np.median([[mine / race[0] for mine in race] for race in races], axis=0)
    return [float(s) for s in np.median([race[0] for race in races]) * ratios]


class Host:
    """The runner's doors. Stateless and picklable, so that a command's worker processes can have it too."""

    def prepare(self, model: str, *, target: str = "native", tasks: str = "*", space: str = "both") -> Prepared:
        """A model, lowered for a target, with its tasks."""
        from tt_core.prepared import prepare

        return prepare(model, target=target, tasks=tasks, space=space)

    def recipe(self, name: str, sets: Sequence[str] = (), plugins: Plugins | None = None) -> Recipe:
        """A recipe, resolved."""
        from tt_spec.recipe import resolve

        return resolve(name, sets, plugins)

    def assemble(
        self, recipe: Pieces, tasks: Sequence[Task], programs: ProgramSource | None, **options: Any
    ) -> Assembled:
        """Pipelines, scheduler and stoppers as `tt tune` has them; `options` are those of `tt_spec.assembly.assemble`,
        `trials` for a budget of rows, and `target` whose peak a scheduler may want to know."""
        from tt_spec.assembly import assemble

        trials, target = options.pop("trials", None), options.pop("target", None)
        if target is not None:
            from tt_core.assembly import peak_of
            from tt_core.compiler.target import resolve

            options["peak"] = peak_of(resolve(target))
        budget = [] if trials is None else [recipe.plugins.build("stopper", "trials", trials=trials)]
        return assemble(recipe, tasks, programs, budget=budget, **options)

    def measurer(self, evaluator: Evaluator | None = None, threads: int | None = None) -> Any:
        """The pool that `tt tune` measures with; close it."""
        from tt_core.assembly import BACKEND
        from tt_core.compiler.target import cores

        return Plugins().build("measurer", "local", backend=BACKEND, threads=threads or cores(), evaluator=evaluator)

    def raced(self, files: Sequence[Path], rounds: int = 16, seconds: float = 0.2, races: int = 3) -> list[float]:
        """Seconds of files that `tt tune` wrote of one model, timed in turns on the same random inputs, alone: each
        by its ratio to the fastest, round by round (`by_rounds`), and the median of the races (`by_races`).

        What each command says of its own file was measured in a moment of its own, and machines have states of speed.
        One race may be of such a moment, too: of two files one said 1.12 and eight others 0.95 to 0.98. Six copies of
        one file were told 0.93 to 1.15 of the first by two races of six rounds, 0.97 to 1.02 by one of 24.

        Args:
            rounds: Turns of each, in a race.
            seconds: Of a turn.
            races: Each by a process of its own.
        """
        from tt_core.compiler.runtime import Runner

        paths = [str(p) for p in files]
        inputs, found = Runner(paths[0]).random_inputs(), []
        for _ in range(races):
            with closing(self.measurer()) as pool:
                found.append(by_rounds(pool.race_models(paths, inputs, rounds * seconds * len(paths), rounds)))
        return by_races(found)

    def device(self, target: Target) -> str:
        """The fingerprint that must be equal for two measurements to be comparable."""
        from tt_core.compiler.target import device_fingerprint

        return device_fingerprint(target)

    def place(self, target: str = "native") -> Place:
        """This machine, for a target that it can run."""
        from tt_core.assembly import check_target
        from tt_core.compiler.target import device_fingerprint, threads_of

        found = check_target(target)
        return Place(str(found), device_fingerprint(found), self.versions(), threads_of(found))

    def versions(self) -> dict[str, str]:
        """Of what takes part in a measurement."""
        from tt_core.tuning import versions

        return versions(self.recipe("random"))

    def cores(self) -> int:
        """Physical cores that this process may use."""
        from tt_core.compiler.target import cores

        return cores()

    def interruptible(self) -> AbstractContextManager[Callable[[], str | None]]:
        """Ctrl-C as in `tt tune`: what the context gives says "interrupted" after the first; the second ends all."""
        from tt_core.interrupt import interruptible

        return interruptible()

    def events(self, run: str, history: Path) -> list[JsonObject]:
        """The event log of a run (docs/eventlog.md): a file, the beginning of an id, or "" for the newest."""
        from tt_core.events import retell

        return retell.read(retell.find(run, history))

    def retell(self, events: Sequence[JsonObject], listeners: Sequence[Listener]) -> Retold:
        """The same events for any listener."""
        from tt_core.events import retell

        return retell.retell(events, listeners)
