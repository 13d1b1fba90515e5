"""The main job: a model in, measured programs, a faster verified file out."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import (
    Clock,
    Foreign,
    Measurement,
    Outcome,
    Pipeline,
    Plugins,
    RunInfo,
    StoreError,
    Task,
    WallClock,
    summary,
)
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.roles import Lends, Listener, Remembers, Store
from tt_spec.serial import JsonObject

from tt_core.assembly import (
    Assembled,
    about_the_history,
    assemble,
    best_known,
    check_target,
    open_store,
    prepared,
    start_measurer,
)
from tt_core.causes import Causes
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import device_fingerprint, use_all_cores
from tt_core.errors import VerificationError
from tt_core.events.log import EventLog, folder
from tt_core.events.transfer import TransferNotes
from tt_core.prepared import Prepared
from tt_core.recipe import Recipe, resolve
from tt_core.request import Asked, Request
from tt_core.requirements import require_tvm
from tt_core.result import LeftOut, Result, TaskResult

if TYPE_CHECKING:
    from typing import Unpack

    from tvm.relax import VMExecutable as Executable

    from tt_core.deploy.shipping import Shipped, Winners

__all__ = ["tune", "versions"]


def tune(
    model: object,
    *,
    log: bool = True,
    listeners: Sequence[Listener] = (),
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    plugins: Plugins | None = None,
    **asked: Unpack[Asked],
) -> Result:
    """Tune a model's operators on this machine and write the faster model.

    Args:
        model: A file, a name of the zoo, "op:…", or an object: whatever `tt_core.models.load` takes.
        log: Whether the run's events are kept in a file of their own beside the history (`tt_core.events.log`).
        listeners: Hear the run's events.
        halt: Asked after every measurement; a text ends the run with that reason.
        say: Told in one line what happens around the tuning.
        asked: The fields of `tt_core.request.Request`: target, recipe, set, minutes, trials, tasks, skip, only_heavy,
            shapes, fix, history, out, seed.

    Returns:
        The `Result`; `failure` is set if a piece or the store broke on the way, after writing the best so far.

    Raises:
        UserError: Before anything is measured: unusable model, target, recipe, option, history or output path.
        VerificationError: A tuned program computes something else; names the operator; no file is written.
    """
    require_tvm()
    request, plugins = Request.of(model, asked), plugins or Plugins()
    clock = WallClock()
    began = clock.now()
    with ExitStack() as stack:
        run = _open(request, plugins, clock, stack)
        run.keep(log, say, stack)
        outcome = run.search([*plugins.listeners(), *listeners], halt)
        winners, shipped = run.ship(outcome)
        return run.tell(outcome, winners, shipped, clock.now() - began)


def versions(recipe: Recipe) -> dict[str, str]:
    """Versions of all that takes part in a measurement, by distribution."""
    import tvm

    ours = {p.distribution: p.version for pieces in recipe.plugins.pieces.values() for p in pieces.values()}
    return {"python": platform.python_version(), "tvm": tvm.__version__, "numpy": np.__version__, **ours}


def _open(request: Request, plugins: Plugins, clock: Clock, stack: ExitStack) -> _Run:
    """Check and open all that the run needs; the stack closes it."""
    recipe = resolve(request.recipe, request.sets, plugins)
    budget = request.budget(plugins)
    use_all_cores()
    from tt_core.deploy import library

    if request.path is not None:
        given = (request.model, request.recipe, request.history)
        library.check_writable(request.path, apart=[p for p in given if isinstance(p, str | Path)])
    target = check_target(request.target)
    store = open_store(recipe, request.history, stack)
    measurer = start_measurer(recipe, target, stack, ships=request.out is not None)
    device = device_fingerprint(target)
    ready = prepared(request, recipe, target, best_known(store, device))
    untuned = None
    if request.path is not None:  # a model that cannot be deployed is refused before it is tuned
        with quiet():
            untuned = library.compile_library(ready.lowered, {}, plugins)
    with about_the_history():
        about = _begin(store, recipe, ready, request, device)

        def known(task: Task) -> list[Measurement]:
            return list(store.query(task_key=task.key, space_key=task.space.key, device=device))

        def lend(task: Task, rows: int) -> Sequence[Foreign]:
            return store.lend(task, device, rows) if isinstance(store, Lends) else ()

        made = assemble(
            recipe,
            ready.tasks,
            measurer,
            clock=clock,
            seed=request.seed,
            budget=budget,
            only_heavy=request.only_heavy,
            target=target,
            known=known,
            lend=lend,
        )
        others = _restored(ready.left_out, known)
    return _Run(request, ready, store, measurer, clock, about, made, others, untuned, plugins)


def _begin(store: Store, recipe: Recipe, ready: Prepared, request: Request, device: str) -> JsonObject:
    """Record the run; all that is to be known of it, its `run_id` among that."""
    about = {
        "model": ready.model.name,
        "target": str(ready.target),
        "recipe": recipe.describe(),
        "seed": request.seed,
        "options": request.options(),
        "device": device,
        "versions": versions(recipe),
    }
    if isinstance(store, Remembers):
        store.remember(ready.tasks)
    return {**about, "run_id": store.begin_run(about)}


def _restored(tasks: Sequence[Task], known: Callable[[Task], Sequence[Measurement]]) -> list[Pipeline]:
    """Pipelines of tasks that are not tuned, with all that is known of them."""
    pipelines = [Pipeline(t, NullSurrogate(), RandomSearcher(), TopSampler()) for t in tasks]
    for p in pipelines:
        p.restore(known(p.task))
    return pipelines


@dataclass
class _Run:
    """An opened run.

    Args:
        about: What the store was told, with `run_id`.
        others: The model's tasks that are not tuned.
        untuned: The model's compiled library without any winner; None where no file is asked for.
    """

    request: Request
    ready: Prepared
    store: Store
    measurer: Any
    clock: Clock
    about: JsonObject
    made: Assembled
    others: list[Pipeline]
    untuned: Executable | None
    plugins: Plugins

    def keep(self, log: bool, say: Callable[[str], None], stack: ExitStack) -> None:
        """Open the event log and say what the run starts from."""
        self.say = say
        where = folder(self.request.history) if log else None
        self.log = EventLog(where and where / f"{self.about['run_id']}.jsonl", self.clock, say)
        stack.callback(self.log.close)
        for text in self.ready.model.notes:
            self.note(text)
        restored = sum(len(p.rows) for p in self.made.pipelines)
        if restored:
            history = self.request.history
            self.note(f"continuing: {restored} measurements of these tasks are in {history}; none is repeated")

    def note(self, text: str) -> None:
        """Say a line, and keep it in the log."""
        self.say(text)
        self.log.note(text)

    @property
    def stamp(self) -> JsonObject:
        """Fields of every measurement of this run but for its id."""
        return {"device": self.about["device"], "versions": self.about["versions"]}

    def search(self, listeners: Sequence[Listener], halt: Callable[[], str | None]) -> Outcome:
        """Tune until the budget is spent or `halt` speaks."""
        about = {k: v for k, v in self.about.items() if k != "run_id"}
        info = RunInfo(self.about["run_id"], tuple(self.ready.tasks), about)
        heard = [self.log, TransferNotes(self.note), *listeners]
        loop = self.made.loop(
            self.measurer, self.store, self.clock, info=info, listeners=heard, halt=halt, stamp=self.stamp
        )
        return loop.run()

    def ship(self, outcome: Outcome) -> tuple[Winners, Shipped | None]:
        """Choose and verify the winners and, where a file is asked for, write it; the run ends here."""
        from tt_core.deploy.shipping import leaders

        winners, shipped = leaders([*self.made.pipelines, *self.others]), None
        try:
            if self.request.path is not None and self.found:
                if outcome.failure is not None:
                    why = summary(outcome.failure)
                    self.note(f"the run broke off ({why}); writing the best that was measured before")
                winners, shipped = self._written()
        except Exception as e:
            self.note(f"nothing was written ({e}); what was measured is kept in {self.request.history}")
            raise
        finally:
            with suppress(Exception):  # a remark at the run's end; a store that broke has said so already
                self.store.end_run(self.about["run_id"], outcome.reason)
        return winners, shipped

    @property
    def found(self) -> bool:
        """Whether any tuned task has a valid program."""
        return any(math.isfinite(p.best_s) for p in self.made.pipelines)

    def _written(self) -> tuple[Winners, Shipped]:
        from tt_core.deploy.shipping import Shipment, race, ship

        self.note("re-timing and verifying the finalists")
        winners = race(self.made.pipelines, self.measurer, self._wrong)
        for p in self.others:
            with suppress(VerificationError):  # nobody asked for this task: it stays untuned
                winners = winners.merged(race([p], self.measurer, self._wrong))
        told = {k: self.about[k] for k in ("recipe", "versions")}
        shipment = Shipment(self.ready, self.untuned, self.measurer, told, self.plugins, self.note)
        path = Path(str(self.request.path))
        return winners, ship(shipment, winners, path)

    def _wrong(self, m: Measurement) -> None:
        """Tell the history of a finalist that computes something else."""
        run_id = self.about["run_id"]
        with suppress(StoreError):  # a store that is broken has said so
            self.store.append([dataclasses.replace(m, at=self.clock.now(), run_id=run_id, **self.stamp)])

    def tell(self, outcome: Outcome, winners: Winners, shipped: Shipped | None, seconds: float) -> Result:
        """The result, also for the log."""
        pairs = zip(outcome.states, self.made.pipelines, strict=True)
        tasks = tuple(
            TaskResult.of(s, p.space, winners.seconds[p.task.key], winners.rows.get(p.task.key)) for s, p in pairs
        )
        result = Result(
            self.ready.model.name,
            outcome.reason,
            tasks,
            outcome.trials,
            sum(t.restored for t in tasks),
            self.about["run_id"],
            seconds,
            sum(t.weight * t.best_s for t in tasks),
            tuple(
                LeftOut(t.name, t.weight, winners.seconds[t.key] if t.key in winners.rows else math.inf)
                for t in self.ready.left_out
            ),
            None if self.request.path is None else str(self.request.path),
            failure=outcome.failure,
            causes=self._causes(),
            **({} if shipped is None else vars(shipped)),
        )
        self.log.emit("result", **result.as_dict())
        return result

    def _causes(self) -> Causes:
        """Why candidates failed, where no tuned task has a valid program."""
        if not self.found:
            with suppress(StoreError):  # the run's own end counts for more
                device = self.about["device"]
                return Causes.of(m for t in self.ready.tasks for m in self.store.query(task_key=t.key, device=device))
        return Causes()
