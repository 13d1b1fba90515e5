"""What `tt` offers to a plug-in's command: the value of `typer.Context.obj` there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tt_spec import Plugins

__all__ = ["Host"]


class Host:
    """The runner's doors. Stateless and picklable, so that a command's worker processes can have it too."""

    def prepare(self, model: str, *, target: str = "native", tasks: str = "*", space: str = "both") -> Any:
        """A `tt_core.tuning.Prepared`: model, target and tasks."""
        from tt_core.prepared import prepare

        return prepare(model, target=target, tasks=tasks, space=space)

    def recipe(self, name: str, sets: Sequence[str] = (), plugins: Plugins | None = None) -> Any:
        """A `tt_core.recipe.Recipe`."""
        from tt_core.recipe import resolve

        return resolve(name, sets, plugins)

    def measurer(self, evaluator: Any = None, threads: int | None = None) -> Any:
        """The pool that `tt tune` measures with; close it."""
        from tt_core.assembly import BACKEND
        from tt_core.compiler.target import cores

        return Plugins().build("measurer", "local", backend=BACKEND, threads=threads or cores(), evaluator=evaluator)

    def device(self, target: Any) -> str:
        """What must be equal for two measurements to be comparable."""
        from tt_core.compiler.target import device_fingerprint

        return device_fingerprint(target)

    def versions(self) -> dict[str, str]:
        """Of what takes part in a measurement."""
        from tt_core.tuning import _versions

        return _versions(self.recipe("random"))

    def cores(self) -> int:
        """Physical cores that this process may use."""
        from tt_core.compiler.target import cores

        return cores()

    def interruptible(self) -> AbstractContextManager[Callable[[], str | None]]:
        """Ctrl-C as in `tt tune`: what the context gives says "interrupted" after the first; the second ends all."""
        from tt_core.interrupt import interruptible

        return interruptible()

    def events(self, run: str, history: Path) -> list[dict[str, Any]]:
        """The event log of a run (docs/eventlog.md): a file, the beginning of an id, or "" for the newest."""
        from tt_core.events import retell

        return retell.read(retell.find(run, history))

    def retell(self, events: Sequence[dict[str, Any]], listeners: Sequence[Any]) -> Any:
        """The same events for any listener; a `tt_core.events.retell.Retold`."""
        from tt_core.events import retell

        return retell.retell(events, listeners)
