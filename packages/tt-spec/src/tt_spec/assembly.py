"""Assembly: a run's pieces put together, the same for `tt tune`, its dry run, `tt bench`, the service and whoever else
runs recipes. It needs no compiler: what a target is, the runner knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tt_spec.clock import Clock
from tt_spec.errors import FileError, OptionError, StoreError
from tt_spec.faults import blame
from tt_spec.guidance import Guidance
from tt_spec.light import LightScheduler
from tt_spec.loop import Loop
from tt_spec.pipeline import Pipeline
from tt_spec.plugins import Plugins
from tt_spec.recipe import Recipe
from tt_spec.roles import (
    Appends,
    Checks,
    Measurer,
    MeasurerOptions,
    Measures,
    Peaked,
    Prestarts,
    ProgramSource,
    Races,
    RacesModels,
    Remembers,
    RunsModels,
    Scheduler,
    Stopper,
    Store,
    missing,
)
from tt_spec.statements import KeptStatements
from tt_spec.types import Foreign, Measurement, Task
from tt_spec.warm import warm_rows

__all__ = ["Assembled", "Pieces", "about_the_history", "assemble", "open_store", "start_measurer", "start_models"]


class Pieces(Protocol):
    """The part of a recipe that assembly needs: `tt_spec.recipe.Recipe`, or one whose pieces are watched."""

    plugins: Plugins
    batch: int
    verify: int
    light: int

    def build(self, role: str, **more: Any) -> Any: ...

    def of(self, op: str) -> Pieces: ...


@dataclass(frozen=True)
class Assembled:
    """A run's pieces, ready for the loop.

    Args:
        pipelines: One per task, restored.
        scheduler: The recipe's, kept from spending much on light tasks.
        stoppers: The recipe's and those of the budget.
        batch: Rows asked at once.
    """

    pipelines: list[Pipeline]
    scheduler: LightScheduler
    stoppers: list[Stopper]
    batch: int

    def loop(self, measurer: Measures, store: Appends, clock: Clock, **options: Any) -> Loop:
        """The loop over them; `options` as in `tt_spec.Loop`: `info`, `listeners`, `halt`, `stamp`."""
        return Loop(self.pipelines, measurer, store, self.scheduler, self.stoppers, clock, batch=self.batch, **options)


def assemble(
    recipe: Pieces,
    tasks: Sequence[Task],
    programs: ProgramSource | None,
    *,
    clock: Clock | None = None,
    seed: int = 0,
    budget: Sequence[Stopper] = (),
    only_heavy: bool = False,
    peak: Callable[[], float] | None = None,
    known: Callable[[Task], Iterable[Measurement]] = lambda task: (),
    warm: Callable[[Task], np.ndarray | None] = lambda task: None,
    lend: Callable[[Task, int], Sequence[Foreign]] = lambda task, rows: (),
    surcharge: Callable[[Task, np.ndarray], float] = lambda task, row: 0.0,
    pipeline: Callable[..., Pipeline] = Pipeline,
) -> Assembled:
    """Pipelines, scheduler and stoppers of a run.

    Args:
        programs: Makes programs of rows: the measurer.
        budget: Stoppers beside the recipe's own.
        only_heavy: The tasks are the heavy ones alone, so that none is kept short.
        peak: Measures FLOP/s of the machine that measures, for a scheduler that wants to know them.
        known: Rows of a task that were measured before.
        warm: Rows `(n, d)` of a task to measure first, before those of plug-ins.
        lend: At most so many rows of other tasks and devices that may guide a task; for a recipe with a transfer.
        surcharge: Seconds that a row's program of a task takes longer in the network than alone.
        pipeline: Makes a pipeline: `tt_spec.Pipeline` or one like it.
    """
    models: dict[str, Any] = {}
    peers: list[Pipeline] = []
    kept = KeptStatements()
    for task in tasks:
        mine = recipe.of(task.op)
        kind = "" if mine is recipe else task.op
        shared = models[kind] if kind in models else models.setdefault(kind, mine.build("surrogate"))
        made = pipeline(
            task,
            shared if shared.shared else mine.build("surrogate"),
            mine.build("searcher"),
            mine.build("sampler"),
            programs=programs,
            draft=mine.build("draft"),
            verify=recipe.verify,
            batch=recipe.batch,
            seed=seed,
            clock=clock,
            peers=peers,
            warm=_first(warm(task), warm_rows(task, recipe.plugins)),
            guidance=_guidance(mine, task, lend, seed, kept),
            surcharge=partial(surcharge, task),
        )
        made.restore(known(task))
        peers.append(made)
    own = recipe.build("stopper")
    return Assembled(
        list(peers), _scheduler(recipe, only_heavy, peak), [*([] if own is None else [own]), *budget], recipe.batch
    )


def _guidance(
    recipe: Pieces, task: Task, lend: Callable[[Task, int], Sequence[Foreign]], seed: int, kept: KeptStatements
) -> Guidance | None:
    """The joint of the recipe's transfer, None without one, or where the first batch measures the whole space anyway.
    What is lent is asked for when the task is first asked."""
    piece = recipe.build("transfer")
    if piece is None or task.space.size <= recipe.batch:
        return None
    return Guidance(piece, task, lambda: lend(task, piece.most), recipe.build, seed=seed, kept=kept)


def _first(rows: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    return more if rows is None else np.concatenate([rows, more])


def _scheduler(recipe: Pieces, only_heavy: bool, peak: Callable[[], float] | None) -> LightScheduler:
    scheduler: Scheduler = recipe.build("scheduler")
    if isinstance(scheduler, Peaked) and peak is not None:
        scheduler.peak(peak())
    return LightScheduler(scheduler, recipe.light, **({"portion": 1.0} if only_heavy else {}))


# -- what a run and its plan open alike ------------------------------------------------------------------------------


def open_store(recipe: Recipe, history: str | Path | None, stack: ExitStack, write: bool = True) -> Store:
    """The recipe's store of that file, or one in memory; the stack closes it. Raises `FileError` if it is unusable."""
    store: Store = recipe.plugins.build("store", "memory")
    if history is not None:
        store = recipe.build("store", path=str(history))
    if lacking := missing(store, Store):
        raise OptionError(f"recipe {recipe.name!r}, store: it lacks {', '.join(lacking)}, see tt_spec.roles.Store")
    stack.callback(store.close)
    with about_the_history():  # a history that cannot be read or written is reported before any work
        next(iter(store.query(task_key="")), None)
        if write and isinstance(store, Remembers):
            store.remember([])
    return store


@contextmanager
def about_the_history() -> Iterator[None]:
    """Turn a store's complaint before anything is measured into one about the user's file."""
    try:
        yield
    except StoreError as e:
        raise FileError(str(e)) from e


def start_models(recipe: Recipe) -> None:
    """Let cost models load what they need, beside all that comes before the first batch, which they may choose. Named
    weights that cannot be used are refused here."""
    for mine in (recipe, *map(recipe.of, recipe.kinds)):
        for role in ("surrogate", "draft"):
            model = mine.build(role)
            if isinstance(model, Prestarts):
                with blame("surrogate", model):
                    model.prestart()


def start_measurer(recipe: Recipe, options: MeasurerOptions, stack: ExitStack, ships: bool) -> Any:
    """The recipe's measurer, its workers on their way; the stack closes it.

    Args:
        options: Whatever the runner gives a measurer; the recipe's own win.
        ships: The run writes a file, for which the measurer races and checks finalists and runs models.

    Raises `OptionError` naming what the measurer lacks.
    """
    try:
        measurer = recipe.build("measurer", **vars(options))
        _able(recipe, measurer, ships)
        stack.callback(measurer.close)
        if isinstance(measurer, Prestarts):
            measurer.prestart()
    except (TypeError, ValueError) as e:
        raise OptionError(f"recipe {recipe.name!r}, measurer: {e}") from e
    return measurer


def _able(recipe: Recipe, measurer: object, ships: bool) -> None:
    """Raise `OptionError` naming what the measurer lacks."""
    needed = (Measurer, Races, Checks, RacesModels, RunsModels) if ships else (Measurer,)
    if lacking := missing(measurer, *needed):
        purpose = "a run that writes a file (--out) needs" if ships else "every run needs"
        raise OptionError(
            f"recipe {recipe.name!r}, measurer: it lacks {', '.join(lacking)}, which {purpose}; see tt_spec.roles"
        )
