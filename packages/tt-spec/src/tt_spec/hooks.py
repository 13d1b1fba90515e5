"""Every hook of tt. A plug-in implements those it needs in one module and names that module under the entry-point
group `tt`; the entry point's name is its distribution's name.

    [project.entry-points.tt]
    my-dist = "my_package.hooks"

Registration hooks take no argument and return a list of `Entry`; a piece is chosen by name, never by install order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

from tt_spec.ranges import Range

if TYPE_CHECKING:
    import numpy as np

    from tt_spec.roles import RunInfo
    from tt_spec.types import Batch, Measurement, Task, TaskState

__all__ = ["EVENTS", "Entry", "Specs", "hookimpl", "hookspec"]

EVENTS = ("tt_run_started", "tt_batch_measured", "tt_task_finished", "tt_run_stopped")
"""Hooks that are called while a run goes on."""

hookspec = pluggy.HookspecMarker("tt")
hookimpl = pluggy.HookimplMarker("tt")


@dataclass(frozen=True)
class Entry:
    """One named piece.

    Args:
        name: What users type.
        build: A callable, or "module:attribute" imported on first use so that registering stays cheap. Called with
            the piece's options as keywords.
        summary: One phrase.
        source: Paper or project it follows, with year.
        requires: What to `pip install` when `build` fails to import, e.g. "tt-surrogate[xgboost]".
        ranges: What may be tried for an option, by its name, e.g. {"steps": Integer(1, 10)}: `tt suggest` looks there
            for better values. An option without a range keeps its default.
    """

    name: str
    build: str | Callable[..., Any]
    summary: str = ""
    source: str = ""
    requires: str = ""
    ranges: Mapping[str, Range] = field(default_factory=dict, hash=False)


class Specs:
    """The hook specifications."""

    @hookspec
    def tt_evaluators(self) -> list[Entry]:
        """Pieces that decide how many runs a candidate deserves."""
        return []

    @hookspec
    def tt_measurers(self) -> list[Entry]:
        """Pieces that turn rows into trials."""
        return []

    @hookspec
    def tt_surrogates(self) -> list[Entry]:
        """Cost models."""
        return []

    @hookspec
    def tt_searchers(self) -> list[Entry]:
        """Pieces that propose configurations."""
        return []

    @hookspec
    def tt_samplers(self) -> list[Entry]:
        """Pieces that pick which proposals to measure."""
        return []

    @hookspec
    def tt_transfers(self) -> list[Entry]:
        """Pieces that let rows of other tasks and devices guide a search."""
        return []

    @hookspec
    def tt_schedulers(self) -> list[Entry]:
        """Pieces that share time between tasks."""
        return []

    @hookspec
    def tt_stoppers(self) -> list[Entry]:
        """Pieces that end a task or a run."""
        return []

    @hookspec
    def tt_stores(self) -> list[Entry]:
        """Where measurements are kept."""
        return []

    @hookspec
    def tt_formats(self) -> list[Entry]:
        """Formats in which histories are exchanged."""
        return []

    @hookspec
    def tt_replays(self) -> list[Entry]:
        """Pieces that play recipes over what was measured before."""
        return []

    @hookspec
    def tt_spaces(self) -> list[Entry]:
        """Where candidates come from: builders of design spaces over a compiler's workload."""
        return []

    @hookspec
    def tt_models(self) -> list[Entry]:
        """Named models, and file formats called like their suffix; `build()` returns what the runner imports, or a
        `ModelFormat`."""
        return []

    @hookspec
    def tt_rewrites(self) -> list[Entry]:
        """Rewritings of ONNX operators before the import; `build()` returns functions by (domain, operator)."""
        return []

    @hookspec
    def tt_recipes(self) -> list[Entry]:
        """Named recipes; `build()` returns the recipe as a dict (the content of a TOML file)."""
        return []

    @hookspec
    def tt_services(self) -> list[Entry]:
        """Services that search for a run elsewhere; `tt tune --server` uses the one called "http"."""
        return []

    @hookspec
    def tt_commands(self) -> list[Entry]:
        """Sub-commands of `tt`; `build()` returns a function that typer can call. "history stats" is one of a group."""
        return []

    @hookspec
    def tt_warm_start(self, task: Task) -> np.ndarray:
        """Rows `(n, d)` of the task's space to measure first; from transfer, a library, an expert."""
        raise NotImplementedError

    @hookspec
    def tt_run_started(self, run: RunInfo) -> None:
        """Before the first batch; `run` names tasks and options, and `run.states` says what is known of each task."""

    @hookspec
    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        """After every batch, its results stored; a stopped batch has fewer results than rows."""

    @hookspec
    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        """A task left the race; `state.finished` says why."""

    @hookspec
    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        """After the last batch, however the run ended."""
