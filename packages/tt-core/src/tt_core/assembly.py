"""What a run and its plan set up alike: target, store, budget and scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tt_spec import Plugins, StoreError, Task

from tt_core.compiler.peak import peak_flops
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import resolve as resolve_target
from tt_core.compiler.target import runnable, threads_of
from tt_core.errors import FileError, OptionError, TargetError
from tt_core.light import LightScheduler
from tt_core.recipe import Recipe

__all__ = [
    "BACKEND",
    "about_the_history",
    "best_known",
    "capped",
    "check_target",
    "limits",
    "open_store",
    "start_measurer",
]

BACKEND = "tt_core.compiler.backend:TvmBackend"
MOST_MINUTES = 525_600


def check_target(target: Any) -> Any:
    """The TVM target, if this machine can run it."""
    with quiet():
        resolved = resolve_target(target)
    if (why := runnable(resolved)) is not None:
        raise TargetError(f"{why}: tune on a machine that has it; tt tasks --target shows what there is to tune")
    return resolved


def open_store(recipe: Recipe, history: str | Path | None, stack: ExitStack, write: bool = True) -> Any:
    """The recipe's store of that file, or one in memory; the stack closes it. Raises `FileError` if it is unusable."""
    store = recipe.plugins.build("store", "memory") if history is None else recipe.build("store", path=str(history))
    stack.callback(store.close)
    with about_the_history():  # a history that cannot be read or written is reported before any work
        next(iter(store.query(task_key="")), None)
        if write and hasattr(store, "remember"):
            store.remember([])
    return store


@contextmanager
def about_the_history() -> Iterator[None]:
    """Before anything is measured, what a store complains of is the user's file."""
    try:
        yield
    except StoreError as e:
        raise FileError(str(e)) from e


def best_known(store: Any, device: str) -> Callable[[Task], float]:
    """Seconds of a task's best program in the store; inf where there is none."""

    def best(task: Task) -> float:
        found = store.best(task.key, device)
        return math.inf if found is None else found.latency_s

    return best


def start_measurer(recipe: Recipe, target: Any, stack: ExitStack) -> Any:
    """The recipe's measurer for the target, its workers on their way; the stack closes it."""
    try:
        measurer = recipe.build(
            "measurer", backend=BACKEND, threads=threads_of(target), evaluator=recipe.build("evaluator")
        )
        stack.callback(measurer.close)
        measurer.prestart()
    except (TypeError, ValueError) as e:
        raise OptionError(f"recipe {recipe.name!r}, measurer: {e}") from e
    return measurer


def limits(minutes: float | None, trials: int | None, plugins: Plugins) -> list[Any]:
    """The stoppers of a run's budget."""
    if (minutes is not None and not 0 < minutes <= MOST_MINUTES) or (trials is not None and trials < 1):
        raise OptionError(
            f"the budget must be positive, and minutes at most {MOST_MINUTES}, got minutes={minutes}, trials={trials}"
        )
    stoppers = []
    if trials is not None:
        stoppers.append(plugins.build("stopper", "trials", trials=trials))
    if minutes is not None:
        stoppers.append(plugins.build("stopper", "minutes", minutes=minutes))
    return stoppers


def capped(recipe: Recipe, only_heavy: bool, target: Any = None) -> LightScheduler:
    """The recipe's scheduler, kept from spending much on light tasks; `only_heavy` has left none of those.

    A scheduler that asks for it is told the peak of the `target`, a CPU, which is measured for that.
    """
    scheduler = recipe.build("scheduler")
    tell = getattr(scheduler, "peak", None)
    if tell is not None and target is not None and target.kind.name == "llvm":
        tell(peak_flops(target))
    return LightScheduler(scheduler, recipe.light, **({"portion": 1.0} if only_heavy else {}))
