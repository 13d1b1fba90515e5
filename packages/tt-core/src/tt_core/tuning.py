"""The main job: a model in, measured programs, a faster verified file out."""

from __future__ import annotations

import fnmatch
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import Outcome, Pipeline, Plugins, RunInfo, Task, WallClock, nearest, run
from tt_spec.types import TaskState

from tt_core.errors import OptionError, TargetError, UserError
from tt_core.quiet import quiet
from tt_core.recipe import Recipe, resolve
from tt_core.target import cores, device_fingerprint, prepare_threads, runnable
from tt_core.target import resolve as resolve_target

if TYPE_CHECKING:
    from tt_core.shipping import Shipped

__all__ = ["Prepared", "Result", "TaskResult", "prepare", "tune"]

BACKEND = "tt_core.backend:TvmBackend"


@dataclass(frozen=True)
class TaskResult:
    """One operator's outcome; `best_s` is the best program's latency, re-timed if a file was written."""

    name: str
    op: str
    weight: float
    flops: float
    best_s: float
    trials: int
    restored: int
    errors: dict[str, int]
    config: dict[str, Any]

    @property
    def gflops(self) -> float:
        """GFLOP/s of the best program; 0 if there is none."""
        return self.flops / self.best_s / 1e9 if math.isfinite(self.best_s) else 0.0


@dataclass(frozen=True)
class Result:
    """What a run achieved.

    Args:
        reason: Why it stopped.
        estimate_s: Weighted sum of the tasks' best latencies; inf while a task has no valid program.
        before_s: Median latency of the untuned model, seconds; None if no file was asked for.
        after_s: The same of the tuned file.
        verified: What the file's outputs were compared with.
    """

    model: str
    reason: str
    tasks: tuple[TaskResult, ...]
    trials: int
    restored: int
    run_id: str
    seconds: float
    estimate_s: float
    out: str | None = None
    before_s: float | None = None
    after_s: float | None = None
    verified: dict[str, str] = field(default_factory=dict)
    failure: Exception | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinities become None."""
        data = asdict(self)
        data["failure"] = None if self.failure is None else str(self.failure)
        for t, row in zip(self.tasks, data["tasks"], strict=True):
            row["gflops"] = t.gflops
            row["best_s"] = t.best_s if math.isfinite(t.best_s) else None
        data["estimate_s"] = self.estimate_s if math.isfinite(self.estimate_s) else None
        return data


@dataclass(frozen=True)
class Prepared:
    """A model, lowered for a target, with the tasks that were asked for."""

    model: Any
    target: Any
    lowered: Any
    tasks: list[Task]


def prepare(
    model: Any,
    *,
    target: Any = "native",
    shapes: Mapping[str, Sequence[int]] | None = None,
    tasks: str = "*",
    space: str = "sketch",
    plugins: Plugins | None = None,
) -> Prepared:
    """Import and lower a model, and pick the tasks whose name matches the pattern `tasks`."""
    prepare_threads()
    from tt_core import lower, models

    plugins = plugins or Plugins()
    with quiet():
        resolved = resolve_target(target)
        loaded = models.load(model, shapes, plugins)
        lowered = lower.lower(loaded.mod, resolved, plugins, space)
    chosen = [t for t in lowered.tasks if fnmatch.fnmatch(t.name, tasks)]
    if not chosen:
        names = [t.name for t in lowered.tasks]
        raise OptionError(f"--tasks {tasks!r} matches none of the {len(names)} tasks{nearest(tasks, names)}")
    return Prepared(loaded, resolved, lowered, chosen)


def tune(
    model: Any,
    *,
    target: Any = "native",
    recipe: str = "tt",
    minutes: float | None = None,
    trials: int | None = None,
    tasks: str = "*",
    shapes: Mapping[str, Sequence[int]] | None = None,
    history: str | Path | None = "tt.db",
    out: str | Path | None = None,
    seed: int = 0,
    set: Sequence[str] = (),
    listeners: Sequence[Any] = (),
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    plugins: Plugins | None = None,
) -> Result:
    """Tune a model's operators on this machine and write the faster model.

    Args:
        model: ONNX file, name of the zoo, "op:…", `onnx.ModelProto` or Relax `IRModule`.
        target: "native", a target string, JSON, dict or TVM target.
        recipe: Name or TOML file.
        minutes: Tuning time; with neither this nor `trials`, 5.
        trials: Rows measured in this run, all tasks together.
        tasks: Pattern of task names, as in a shell.
        shapes: Fixed input shapes by name.
        history: SQLite file that every measurement goes to and that a repeated run continues from; None: in memory.
        out: Where the tuned library goes; its sidecar is `out` + ".json".
        seed: Root of all randomness.
        set: Overrides of the recipe: "searcher.population=256", "scheduler=round-robin".
        listeners: Objects with any of the event hooks' methods.
        halt: Asked after every measurement; a text ends the run with that reason.
        say: Told in one line what happens around the tuning.

    Returns:
        The `Result`; `failure` is set if a piece or the store broke on the way, after writing the best so far.

    Raises:
        UserError: Before anything is measured: unusable model, target, recipe, option, history or output path.
        VerificationError: A tuned program computes something else; names the operator; no file is written.
    """
    plugins = plugins or Plugins()
    chosen = resolve(recipe, set, plugins)
    if (minutes is not None and not minutes > 0) or (trials is not None and trials < 1):
        raise OptionError(f"the budget must be positive, got minutes={minutes}, trials={trials}")
    path = None if out is None else Path(out)
    clock = WallClock()
    began = clock.now()
    prepare_threads()
    from tt_core import deploy, shipping

    if path is not None:
        deploy.check_writable(path)
    with ExitStack() as stack:
        with quiet():
            resolved = resolve_target(target)
        if (why := runnable(resolved)) is not None:
            raise TargetError(f"{why}: tune on a machine that has it; tt tasks --target shows what there is to tune")
        store = _store(chosen, history, stack)
        measurer = chosen.build(
            "measurer",
            backend=BACKEND,
            threads=int(resolved.attrs.get("num-cores", cores())),
            evaluator=chosen.build("evaluator"),
        )
        stack.callback(measurer.close)
        measurer.prestart()
        space = chosen.pieces["space"]
        ready = prepare(
            model, target=resolved, shapes=shapes, tasks=tasks, plugins=plugins, space=space[0] if space else "sketch"
        )
        untuned = None
        if path is not None:  # a model that cannot be deployed is refused before it is tuned
            with quiet():
                untuned = deploy.compile_library(ready.lowered, {}, plugins)
        run_id, stamp = _begin(store, chosen, ready, seed, {"minutes": minutes, "trials": trials, "tasks": tasks})
        pipelines = _pipelines(ready, chosen, measurer, store, stamp["device"], seed, clock, plugins)
        restored = sum(len(p.rows) for p in pipelines)
        if restored:
            say(f"continuing: {restored} measurements of these tasks are in {history}; none is repeated")
        outcome = run(
            pipelines,
            measurer,
            store,
            chosen.build("scheduler"),
            _stoppers(chosen, minutes, trials, plugins),
            clock,
            info=RunInfo(run_id, tuple(ready.tasks), chosen.describe()),
            batch=chosen.batch,
            listeners=[plugins.hook, *listeners],
            halt=halt,
            stamp=stamp,
        )
        shipped = None
        best: dict[str, float] = {p.task.key: p.best_s for p in pipelines}
        try:
            if path is not None:
                say("re-timing and verifying the finalists")
                winners = shipping.race(pipelines, measurer)
                best = winners.seconds
                about = {"recipe": chosen.describe(), "versions": stamp["versions"]}
                shipped = shipping.ship(ready, untuned, winners, path, measurer, about, plugins, say)
        finally:
            _end(store, run_id, outcome.reason)
        return _result(ready, outcome, pipelines, best, run_id, clock.now() - began, shipped, path)


def _store(recipe: Recipe, history: str | Path | None, stack: ExitStack) -> Any:
    store = recipe.plugins.build("store", "memory") if history is None else recipe.build("store", path=str(history))
    stack.callback(store.close)
    try:
        next(iter(store.query(task_key="")), None)  # opens it: a damaged history is reported before any work
    except Exception as e:  # each store has its own errors, all about the user's file
        raise UserError(str(e)) from e
    return store


def _begin(
    store: Any, recipe: Recipe, ready: Prepared, seed: int, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    versions = _versions(recipe)
    stamp = {"device": device_fingerprint(ready.target), "versions": versions}
    if hasattr(store, "remember"):
        store.remember(ready.tasks)
    run_id = store.begin_run(
        {
            "model": ready.model.name,
            "target": str(ready.target),
            "recipe": recipe.describe(),
            "seed": seed,
            "options": options,
            **stamp,
        }
    )
    return run_id, stamp


def _versions(recipe: Recipe) -> dict[str, str]:
    import tvm

    ours = {p.distribution: p.version for pieces in recipe.plugins.pieces.values() for p in pieces.values()}
    return {"python": platform.python_version(), "tvm": tvm.__version__, "numpy": np.__version__, **ours}


def _pipelines(
    ready: Prepared, recipe: Recipe, measurer: Any, store: Any, device: str, seed: int, clock: Any, plugins: Plugins
) -> list[Pipeline]:
    shared = recipe.build("surrogate")
    peers: list[Pipeline] = []
    for task in ready.tasks:
        warm = [np.asarray(rows, dtype=np.int64) for rows in plugins.hook.tt_warm_start(task=task) if rows is not None]
        pipeline = Pipeline(
            task,
            shared if shared.shared else recipe.build("surrogate"),
            recipe.build("searcher"),
            recipe.build("sampler"),
            programs=measurer,
            draft=recipe.build("draft"),
            verify=recipe.verify,
            seed=seed,
            clock=clock,
            peers=peers,
            warm=np.concatenate(warm) if warm else None,
        )
        pipeline.restore(store.query(task_key=task.key, space_key=task.space.key, device=device))
        peers.append(pipeline)
    return list(peers)


def _stoppers(recipe: Recipe, minutes: float | None, trials: int | None, plugins: Plugins) -> list[Any]:
    stoppers = [s for s in [recipe.build("stopper")] if s is not None]
    if trials is not None:
        stoppers.append(plugins.build("stopper", "trials", trials=trials))
    if minutes is not None or trials is None:
        stoppers.append(plugins.build("stopper", "minutes", minutes=5.0 if minutes is None else minutes))
    return stoppers


def _end(store: Any, run_id: str, reason: str) -> None:
    with suppress(Exception):  # a remark at the run's end; a store that broke has said so already
        store.end_run(run_id, reason)


def _result(
    ready: Prepared,
    outcome: Outcome,
    pipelines: Sequence[Pipeline],
    best: dict[str, float],
    run_id: str,
    seconds: float,
    shipped: Shipped | None,
    path: Path | None,
) -> Result:
    def one(state: TaskState, p: Pipeline) -> TaskResult:
        top = p.top(1)
        return TaskResult(
            p.task.name,
            p.task.op,
            p.task.weight,
            p.task.flops,
            best[p.task.key],
            state.trials,
            state.restored,
            dict(state.errors),
            p.space.decode(top[0][0]) if top else {},
        )

    tasks = tuple(one(s, p) for s, p in zip(outcome.states, pipelines, strict=True))
    return Result(
        ready.model.name,
        outcome.reason,
        tasks,
        outcome.trials,
        sum(t.restored for t in tasks),
        run_id,
        seconds,
        sum(t.weight * t.best_s for t in tasks),
        str(path) if path else None,
        failure=outcome.failure,
        **({} if shipped is None else vars(shipped)),
    )
