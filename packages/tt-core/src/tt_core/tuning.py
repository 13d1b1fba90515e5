"""The main job: a model in, measured programs, a faster verified file out."""

from __future__ import annotations

import fnmatch
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Outcome, Pipeline, Plugins, RunInfo, StoreError, Task, WallClock, nearest, run
from tt_spec.types import TaskState

from tt_core import eventlog
from tt_core.errors import FileError, ModelError, OptionError, TargetError, VerificationError
from tt_core.quiet import quiet
from tt_core.recipe import Recipe, resolve
from tt_core.target import cores, device_fingerprint, prepare_threads, runnable
from tt_core.target import resolve as resolve_target

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

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Result:
        """The result that `as_dict` described."""

        def number(x: float | None) -> float:
            return math.inf if x is None else x

        tasks = tuple(
            TaskResult(**{**{k: v for k, v in t.items() if k != "gflops"}, "best_s": number(t["best_s"])})
            for t in data["tasks"]
        )
        failure = None if data["failure"] is None else RuntimeError(data["failure"])
        return cls(**{**data, "tasks": tasks, "estimate_s": number(data["estimate_s"]), "failure": failure})

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinities become None."""
        data = asdict(replace(self, failure=None))  # an exception may refuse to be copied
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
    space: str = "both",
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
    if not lowered.tasks:
        raise ModelError(f"{loaded.name} has no operator to tune: it only passes on what it is given")
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
    log: bool = True,
    listeners: Sequence[Any] = (),
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    plugins: Plugins | None = None,
) -> Result:
    """Tune a model's operators on this machine and write the faster model.

    Args:
        model: What `tt_core.models.load` takes: a file, a name of the zoo, "op:…", or an object.
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
        log: Whether the run's events are kept in a file of their own beside the history (`tt_core.eventlog`).
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
    if minutes is None and trials is None:
        minutes = 5.0
    path = None if out is None else Path(out)
    clock = WallClock()
    began = clock.now()
    prepare_threads()
    from tt_core import deploy

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
            model, target=resolved, shapes=shapes, tasks=tasks, plugins=plugins, space=space[0] if space else "both"
        )
        untuned = None
        if path is not None:  # a model that cannot be deployed is refused before it is tuned
            with quiet():
                untuned = deploy.compile_library(ready.lowered, {}, plugins)
        options = {
            "minutes": minutes,
            "trials": trials,
            "tasks": tasks,
            "history": str(history),
            "out": out and str(out),
        }
        with _about_the_history():
            run_id, about = _begin(store, chosen, ready, seed, options)
            pipelines = _pipelines(ready, chosen, measurer, store, about["device"], seed, clock, plugins)
        where = eventlog.folder(history) if log else None
        kept = eventlog.EventLog(where and where / f"{run_id}.jsonl", clock, say)
        stack.callback(kept.close)

        def note(text: str) -> None:
            say(text)
            kept.note(text)

        for text in ready.model.notes:
            note(text)
        restored = sum(len(p.rows) for p in pipelines)
        if restored:
            note(f"continuing: {restored} measurements of these tasks are in {history}; none is repeated")
        outcome = run(
            pipelines,
            measurer,
            store,
            chosen.build("scheduler"),
            _stoppers(chosen, minutes, trials, plugins),
            clock,
            info=RunInfo(run_id, tuple(ready.tasks), about),
            batch=chosen.batch,
            listeners=[kept, plugins.hook, *listeners],
            halt=halt,
            stamp={"device": about["device"], "versions": about["versions"]},
        )
        if outcome.failure is not None and path is not None:
            note(f"the run broke off ({outcome.failure}); writing the best that was measured before")
        shipped: dict[str, Any] = {}
        best: dict[str, float] = {p.task.key: p.best_s for p in pipelines}
        try:
            if path is not None:
                note("re-timing and verifying the finalists")
                rows, best = _finalists(pipelines, measurer)
                shipped = _ship(ready, untuned, rows, best, path, measurer, chosen, plugins, note)
        except Exception as e:
            note(f"nothing was written ({e}); what was measured is kept in {history}")
            raise
        finally:
            _end(store, run_id, outcome.reason)
        result = _result(ready, outcome, pipelines, best, run_id, clock.now() - began, shipped, path)
        kept.emit("result", **result.as_dict())
        return result


@contextmanager
def _about_the_history() -> Iterator[None]:
    """Before anything is measured, what a store complains of is the user's file."""
    try:
        yield
    except StoreError as e:
        raise FileError(str(e)) from e


def _store(recipe: Recipe, history: str | Path | None, stack: ExitStack) -> Any:
    store = recipe.plugins.build("store", "memory") if history is None else recipe.build("store", path=str(history))
    stack.callback(store.close)
    with _about_the_history():  # a history that cannot be read or written is reported before any work
        next(iter(store.query(task_key="")), None)
        if hasattr(store, "remember"):
            store.remember([])
    return store


def _begin(
    store: Any, recipe: Recipe, ready: Prepared, seed: int, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Record the run; its id, and all that is to be known of it."""
    about = {
        "model": ready.model.name,
        "target": str(ready.target),
        "recipe": recipe.describe(),
        "seed": seed,
        "options": options,
        "device": device_fingerprint(ready.target),
        "versions": _versions(recipe),
    }
    if hasattr(store, "remember"):
        store.remember(ready.tasks)
    return store.begin_run(about), about


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
    if minutes is not None:
        stoppers.append(plugins.build("stopper", "minutes", minutes=minutes))
    return stoppers


def _finalists(
    pipelines: Sequence[Pipeline], measurer: Any, keep: int = 4, within: float = 1.1
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Each task's best few timed again, interleaved, and the winner verified; rows and seconds by task key."""
    rows: dict[str, np.ndarray] = {}
    best: dict[str, float] = {}
    for p in pipelines:
        top = p.top(keep)
        best[p.task.key] = p.best_s
        near = [row for row, s in top if s <= within * p.best_s]
        wrong = None
        while near:
            timed = measurer.call("race", p.task, np.stack(near), exclusive=True)
            medians = [float(np.median(t)) for t in timed]
            winner = int(np.argmin(medians))
            wrong = measurer.call("check", p.task, near[winner], exclusive=True)
            if wrong is None:
                rows[p.task.key], best[p.task.key] = near[winner], medians[winner]
                break
            p.disqualify(near.pop(winner))
        if wrong is not None and p.task.key not in rows:
            raise VerificationError(f"operator {p.task.name}: {wrong}; nothing was written")
    return rows, best


def _ship(
    ready: Prepared,
    baseline: Any,
    rows: dict[str, np.ndarray],
    best: dict[str, float],
    path: Path,
    measurer: Any,
    recipe: Recipe,
    plugins: Plugins,
    say: Callable[[str], None],
) -> dict[str, Any]:
    import json
    import tempfile

    from tt_core import deploy
    from tt_core.backend import random_array

    sidecar: dict[str, Any] = {
        "inputs": [_input(i) for i in ready.model.inputs],
        "outputs": list(ready.model.outputs),
        "target": str(ready.target),
        "threads": int(ready.target.attrs.get("num-cores", cores())),
        "recipe": recipe.describe(),
        "versions": _versions(recipe),
    }
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in ready.model.inputs}
    say("compiling the model")
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        untuned, tuned = Path(folder, "untuned.so"), Path(folder, "tuned.so")
        with quiet():
            deploy.write(baseline, untuned, sidecar)
            library = deploy.compile_library(ready.lowered, rows, plugins)
            deploy.write(library, tuned, sidecar)
        say("verifying the model")
        got = measurer.call("run_model", None, str(tuned), inputs, exclusive=True)
        want = measurer.call("run_model", None, str(untuned), inputs, exclusive=True)
        verified = deploy.verify(ready.model, inputs, got, want, say)
        say("timing the model before and after")
        before = float(np.median(measurer.call("time_model", None, str(untuned), inputs, exclusive=True)))
        after = float(np.median(measurer.call("time_model", None, str(tuned), inputs, exclusive=True)))
    sidecar["latency_before_s"], sidecar["latency_after_s"] = before, after
    sidecar["verified"] = verified
    sidecar["tasks"] = json.loads(
        json.dumps(
            [
                {
                    "name": t.name,
                    "weight": t.weight,
                    "latency_s": best.get(t.key),
                    "knobs": t.space.decode(rows[t.key]) if t.key in rows else None,
                }
                for t in ready.tasks
            ],
            default=str,
        )
    )
    with quiet():
        deploy.write(library, path, sidecar)
    return {"before_s": before, "after_s": after, "verified": verified}


def _input(i: Any) -> dict[str, Any]:
    """An input as the sidecar keeps it; integers with the range from which random ones are drawn."""
    range_ = {"below": i.below} if np.dtype(i.dtype).kind in "iu" else {}
    return {"name": i.name, "shape": list(i.shape), "dtype": i.dtype, **range_}


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
    shipped: dict[str, Any],
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
        **shipped,
    )
