"""The main job: a model in, measured programs, a faster verified file out."""

from __future__ import annotations

import dataclasses
import math
import platform
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import Measurement, Outcome, Pipeline, Plugins, RunInfo, StoreError, Task, WallClock, logfiles, summary
from tt_spec.assembly import Assembled, about_the_history, assemble, open_store, start_measurer, start_models
from tt_spec.errors import PieceError, ProgramError
from tt_spec.faults import Audience
from tt_spec.past import Past
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.recipe import SUGGESTED, Recipe
from tt_spec.roles import Doubts, Listener, Remembers, Service, Store, Traces
from tt_spec.serial import JsonObject

from tt_core import elsewhere
from tt_core.assembly import peak_of, place_of, prepared, workers
from tt_core.causes import Causes
from tt_core.compiler.mode import denormals_as
from tt_core.compiler.target import compiler, cores, device_fingerprint, threads_of, use_all_cores
from tt_core.errors import one_line
from tt_core.events.log import EventLog, folder
from tt_core.events.transfer import TransferNotes
from tt_core.prepared import Prepared
from tt_core.request import Asked, Request
from tt_core.requirements import require_tvm
from tt_core.result import LeftOut, Result, TaskResult
from tt_core.stages import Ending, Stages, clock_text, past_endings, search_s
from tt_core.suggested import taken

if TYPE_CHECKING:
    from typing import Unpack

    from tt_core.deploy.finalists import Network, Winners
    from tt_core.deploy.shipping import Shipped

__all__ = ["tune", "versions"]


def tune(
    model: object,
    *,
    log: bool = True,
    listeners: Sequence[Listener] = (),
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    plugins: Plugins | None = None,
    began: float | None = None,
    **asked: Unpack[Asked],
) -> Result:
    """Tune a model's operators on this machine and write the faster model.

    Args:
        model: A file, a name of the zoo, "op:…", or an object: whatever `tt_core.models.load` takes.
        log: Whether the run's events are kept in a file of their own beside the history (`tt_core.events.log`).
        listeners: Hear the run's events.
        halt: Asked after every measurement; a text ends the run with that reason.
        say: Told in one line what happens around the tuning.
        began: When the minutes began to count, seconds since the epoch; None is now.
        asked: The fields of `tt_core.request.Request`: target, recipe, set, minutes, trials, tasks, skip, only_heavy,
            shapes, fix, precision, denormals, history, out, seed.

    Returns:
        The `Result`; `failure` is set if a piece or the store broke on the way, after writing the best so far.

    Raises:
        UserError: Before anything is measured: unusable model, target, recipe, option, history or output path.
        VerificationError: The untuned model computes something else than its peer does; no file is written.
    """
    require_tvm()
    request, plugins = Request.of(model, asked), plugins or Plugins()
    stages = Stages(WallClock(), request.limit_minutes, say, began)
    with ExitStack() as stack:
        stack.enter_context(denormals_as(request.denormals))
        run = _open(request, plugins, stages, stack, halt)
        run.keep(log, say, stack)
        outcome = run.search([*plugins.listeners(), *listeners], halt)
        winners, shipped = run.ship(outcome, hurried=halt() is not None)
        return run.tell(outcome, winners, shipped, stages.spent_s)


def versions(recipe: Recipe) -> dict[str, str]:
    """Versions of all that takes part in a measurement, by distribution."""
    ours = {p.distribution: p.version for pieces in recipe.plugins.pieces.values() for p in pieces.values()}
    return {"python": platform.python_version(), **compiler(), "numpy": np.__version__, **ours}


def _open(request: Request, plugins: Plugins, stages: Stages, stack: ExitStack, halt: Callable[[], str | None]) -> _Run:
    """Check and open all that the run needs; the stack closes it."""
    service = elsewhere.service_of(request, plugins)
    recipe = elsewhere.recipe_here(request, service, plugins)
    request.budget(plugins)  # refused here, if at all
    use_all_cores()
    store = open_store(recipe, request.history, stack)
    ships = request.out is not None
    # workers load TVM while this process does; what threads a target has that is not this CPU, TVM must say
    known, native = request.recipe != SUGGESTED, request.target == "native" and request.device is None
    measurer = start_measurer(recipe, workers(recipe, cores()), stack, ships) if known and native else None
    if known:
        start_models(recipe)
    _check_writable(request)
    target, away = place_of(request, service, stages, halt)
    if known and measurer is None and away is None:
        measurer = start_measurer(recipe, workers(recipe, threads_of(target)), stack, ships)
    past = Past(store, away or device_fingerprint(target), compiler())
    with stages.stage("reading", f"reading {_named(request.model)}"):
        ready = prepared(request, recipe, target, past, service)
    recipe, said = taken(request, recipe, store, ready.tasks, past.device)
    if measurer is None and away is None:
        start_models(recipe)
        measurer = start_measurer(recipe, workers(recipe, threads_of(target)), stack, ships)
    untuned = _untuned(request, ready, plugins, stages, stack)
    with about_the_history(), stages.stage("opening"):
        about = _begin(store, recipe, ready, request, past.device)
        made = assemble(
            recipe,
            ready.tasks,
            measurer,
            clock=stages.clock,
            seed=request.seed,
            only_heavy=request.only_heavy,
            peak=peak_of(target) if away is None else None,
            known=past.known,
            warm=past.guides,
            lend=past.lend,
            surcharge=_alone if untuned is None else untuned.network.surcharge_s,
        )
        others = _restored(ready.left_out, past.known)
        ends = past_endings(store, ready.model.name, past.device, past.last)
        ending = Ending() if untuned is None else _ending(ready, untuned, ends, stages)
        budget = request.budget(plugins, stages.apart_s(ending), stages.first_s)
        made = dataclasses.replace(made, stoppers=[*made.stoppers, *budget])
    said += past.remarks
    kept = request, ready, store, measurer, stages, about, made, others, untuned, ending, plugins, said, service
    return _Run(*kept, away=away is not None)


def _check_writable(request: Request) -> None:
    from tt_core.deploy import library

    if request.path is not None:
        given = (request.model, request.recipe, request.history)
        library.check_writable(request.path, apart=[p for p in given if isinstance(p, str | Path)])


def _named(model: object) -> str:
    return str(model) if isinstance(model, str | Path) else "the model"


@dataclass(frozen=True)
class _Untuned:
    """The model's library without any winner.

    Args:
        seconds: What making it took.
        network: The network that it is, whose weights are most of the file's bytes.
    """

    path: Path
    seconds: float
    network: Network


def _alone(task: Task, row: np.ndarray) -> float:
    """What a network adds to a row's seconds where none is made."""
    return 0.0


def _untuned(request: Request, ready: Prepared, plugins: Plugins, stages: Stages, stack: ExitStack) -> _Untuned | None:
    """None where no file is asked for. A model that cannot be deployed is refused here, before it is tuned."""
    if request.path is None:
        return None
    from tt_core.deploy.finalists import Network
    from tt_core.deploy.shipping import write_untuned

    path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tt-")), "untuned.so")
    began = stages.spent_s
    with stages.stage("untuned", "compiling it untuned, to compare with"):
        write_untuned(ready, path, plugins)
    return _Untuned(path, stages.spent_s - began, Network.of(ready.lowered, path.stat().st_size))


def _ending(ready: Prepared, untuned: _Untuned, past: Sequence[tuple[float, float]], stages: Stages) -> Ending:
    """What the end of the run is expected to take, after what earlier ones took."""
    tasks, network = ready.lowered.tasks, untuned.network
    several = sum(network.several(t) for t in tasks) if network.cold else 0
    flops = sum(t.weight * t.flops for t in tasks)
    minutes = math.inf if stages.minutes is None else stages.minutes
    return Ending.of(len(tasks), untuned.seconds, flops, network.constants, past, several, minutes)


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
        ending: The expected end of the run.
        remarks: On the suggested recipe, and on rows of the history that the run does not believe.
        service: Searches elsewhere; None for the loop here.
        away: Only the service's agents can run the target: they race and verify the finalists.
    """

    request: Request
    ready: Prepared
    store: Store
    measurer: Any
    stages: Stages
    about: JsonObject
    made: Assembled
    others: list[Pipeline]
    untuned: _Untuned | None
    ending: Ending
    plugins: Plugins
    remarks: list[str]
    service: Service | None = None
    away: bool = False

    def keep(self, log: bool, say: Callable[[str], None], stack: ExitStack) -> None:
        """Open the event log and say what the run starts from."""
        self.say = say
        where = folder(self.request.history) if log else None
        pruned = None if where is None else logfiles.prune(where)
        self.log = EventLog(where and where / f"{self.about['run_id']}.jsonl", self.stages.clock, say)
        stack.callback(self.log.close)
        for text in self.stages.said:
            self.log.note(text)
        self.stages.say = self.note
        for text in (*self.ready.model.notes, *self.remarks):
            self.note(text)
        if pruned is not None and pruned.removed:
            size = f"{pruned.removed_bytes / 1e6:.1f} MB"
            self.note(f"removed {pruned.removed} old event logs ({size}) from {where}; the measurements are kept")
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
        stages = self.stages
        about["stages"] = {"at": stages.clock.now(), "spent_s": stages.spent_s, "ending_s": self.ending.total_s}
        info = RunInfo(self.about["run_id"], tuple(self.ready.tasks), about)
        audience = Audience([self.log, *listeners])
        stages.hear(lambda **stage: self._over(audience, **stage))
        if self.request.limit_minutes is not None:
            self.note(self._promise(self.request.limit_minutes))
        heard = [self.log, TransferNotes(self.note), *listeners]
        if self.service is not None:
            return self._search_elsewhere(self.service, info, heard, halt)
        loop = self.made.loop(
            self.measurer,
            self.store,
            stages.clock,
            info=info,
            listeners=heard,
            halt=halt,
            stamp=self.stamp,
        )
        with stages.stage("tuning"):
            return loop.run()

    def _search_elsewhere(
        self, service: Service, info: RunInfo, heard: list[Listener], halt: Callable[[], str | None]
    ) -> Outcome:
        """The service searches, this machine measures; rows come into the store here as if it had searched."""
        minutes = self.request.limit_minutes
        if minutes is not None:
            minutes -= self.stages.apart_s(self.ending) / 60.0
        asked = elsewhere.errand(self.request, tuple(self.ready.tasks), self.ready.model.name, minutes)
        asked = dataclasses.replace(asked, **self.stamp)
        peak = peak_of(self.ready.target)
        if peak is not None and not self.away and elsewhere.wants_peak(self.request, service, self.plugins):
            asked = dataclasses.replace(asked, peak_flops=peak())
        with self.stages.stage("tuning"):
            about = {"info": info, "listeners": heard, "halt": halt, "say": self.note}
            return service.run(asked, self.made.pipelines, self.measurer, self.store, **about)

    def _over(self, audience: Audience, name: str, began: float, seconds: float) -> None:
        """Tell of a stage that is over, with what the workers did that no batch has told."""
        work = []
        if isinstance(self.measurer, Traces):
            now = self.stages.clock.now()
            work = [(w.who, w.what, now - w.ago_s, w.seconds) for w in self.measurer.trace()]
        audience.tell("stage", name, began, seconds, work)

    def _promise(self, minutes: float) -> str:
        """The minutes' use, in words."""
        search, ending = search_s(minutes, self.stages.spent_s, self.ending), self.ending.total_s
        text = f"tuning for {clock_text(search)}"
        if self.untuned is not None:
            text += f", then about {clock_text(ending)} to re-time, compile, verify and write"
        late = self.stages.spent_s + search + ending - 60.0 * minutes
        return text if late < 1 else f"{text}; that is {clock_text(late)} late: the minutes are few for this model"

    def ship(self, outcome: Outcome, hurried: bool = False) -> tuple[Winners, Shipped | None]:
        """Choose and verify the winners and, where a file is asked for, write it; the run ends here.

        Args:
            hurried: Somebody ended the run, and waits for the file.
        """
        from tt_core.deploy.finalists import leaders

        winners, shipped = leaders([*self.made.pipelines, *self.others]), None
        try:
            if self.request.path is not None and self.found:
                if outcome.failure is not None:
                    why = summary(outcome.failure)
                    self.note(f"the run broke off ({why}); writing the best that was measured before")
                winners, shipped = self._written(hurried or outcome.failure is not None)
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

    def _written(self, hurried: bool) -> tuple[Winners, Shipped]:
        from tt_core.deploy.composing import Inside
        from tt_core.deploy.finalists import race
        from tt_core.deploy.shipping import Shipment, ship, ship_unseen

        assert self.untuned is not None, "made wherever a file is asked for"
        after_s, path = self.ending.total_s - self.ending.retime_s, Path(str(self.request.path))

        def enough() -> bool:
            return self.stages.left_s < after_s

        rules = self._failed, enough, self.untuned.network, self.note
        if self.away and self.service is not None:
            with self.stages.stage("re-timing", "agents re-time and verify the finalists"):
                winners = race(self.made.pipelines, self.service.judge(self.note), *rules)
            told = {**self._told, "device": self.about["device"]}
            return winners, ship_unseen(self.ready, winners, path, told, self.plugins, self.stages)
        with self.stages.stage("re-timing", "re-timing and verifying the finalists"):
            winners = race(self.made.pipelines, self.measurer, *rules)
            for p in self.others:
                with suppress(PieceError):  # nobody asked for this task: it stays untuned
                    winners = winners.merged(race([p], self.measurer, *rules))
            self._doubt(winners)
        pipelines = [*self.made.pipelines, *self.others]
        inside = None if hurried else Inside(pipelines, self.untuned.network, self._failed, self.ending.models_s)
        shipment = Shipment(self.ready, self.untuned.path, self.measurer, self._told, self.plugins, self.stages, inside)
        return winners, ship(shipment, winners, path)

    @property
    def _told(self) -> JsonObject:
        """What the sidecar says of the run."""
        return {k: self.about[k] for k in ("recipe", "versions")}

    def _doubt(self, winners: Winners) -> None:
        """Say which winners were compared with outputs that tell nothing."""
        if not isinstance(self.measurer, Doubts):
            return
        for task in self.ready.lowered.tasks:
            if (row := winners.rows.get(task.key)) is not None:
                with suppress(ProgramError):  # it was checked; this is a remark
                    for text in self.measurer.doubts(task, row):
                        self.note(f"{task.name}: comparing its outputs tells nothing on {one_line(text)}")

    def _failed(self, m: Measurement) -> None:
        """Tell the history of a finalist that computes something else, crashes or hangs."""
        name = next((t.name for t in self.ready.lowered.tasks if t.key == m.task_key), m.task_key)
        self.note(f"{name}: a finalist failed ({m.error}: {one_line(m.why)}); the next one takes its place")
        run_id = self.about["run_id"]
        with suppress(StoreError):  # a store that is broken has said so
            self.store.append([dataclasses.replace(m, at=self.stages.clock.now(), run_id=run_id, **self.stamp)])

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
