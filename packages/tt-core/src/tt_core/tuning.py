"""The main job: a model in, measured programs, a faster verified file out."""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import Measurement, Outcome, Pipeline, Plugins, RunInfo, StoreError, Task, WallClock, run, summary
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.types import TaskState

from tt_core.assembly import about_the_history, best_known, capped, check_target, limits, open_store, start_measurer
from tt_core.causes import Causes
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import device_fingerprint, prepare_threads
from tt_core.errors import OptionError, VerificationError
from tt_core.events import log as eventlog
from tt_core.prepared import Prepared, prepare
from tt_core.recipe import Recipe, resolve
from tt_core.requirements import require_tvm
from tt_core.result import LeftOut, Result, TaskResult
from tt_core.warm import warm_rows

if TYPE_CHECKING:
    from tt_core.deploy.shipping import Shipped, Winners

__all__ = ["tune"]


def tune(
    model: Any,
    *,
    target: Any = "native",
    recipe: str = "tt",
    minutes: float | None = None,
    trials: int | None = None,
    tasks: str | Sequence[str] = "*",
    skip: str | Sequence[str] = (),
    only_heavy: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fix: Mapping[str, Any] | None = None,
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
        model: What `tt_core.models.load.load` takes: a file, a name of the zoo, "op:…", or an object.
        target: "native", a target string, JSON, dict or TVM target.
        recipe: Name or TOML file.
        minutes: Tuning time; with neither this nor `trials`, 5.
        trials: Rows measured in this run, all tasks together.
        tasks: Patterns of task names or operators, as in a shell; commas may join several.
        skip: The same, for tasks to leave out. What is left out ships with its best program from the history, or
            untuned.
        only_heavy: Only the fewest tasks that hold 95 % of the model's latency.
        shapes: Fixed input shapes by name.
        fix: Values of inputs by name, which are no inputs any more; of ONNX models.
        history: SQLite file that every measurement goes to and that a repeated run continues from; None: in memory.
        out: Where the tuned library goes; its sidecar is `out` + ".json".
        seed: Root of all randomness.
        set: Overrides of the recipe: "searcher.population=256", "scheduler=round-robin".
        log: Whether the run's events are kept in a file of their own beside the history (`tt_core.events.log`).
        listeners: Objects with any of the event hooks' methods.
        halt: Asked after every measurement; a text ends the run with that reason.
        say: Told in one line what happens around the tuning.

    Returns:
        The `Result`; `failure` is set if a piece or the store broke on the way, after writing the best so far.

    Raises:
        UserError: Before anything is measured: unusable model, target, recipe, option, history or output path.
        VerificationError: A tuned program computes something else; names the operator; no file is written.
    """
    require_tvm()
    plugins = plugins or Plugins()
    chosen = resolve(recipe, set, plugins)
    if minutes is None and trials is None:
        minutes = 5.0
    budget = limits(minutes, trials, plugins)
    if seed < 0:
        raise OptionError(f"the seed must be a whole number, at least 0, got {seed}")
    path = None if out is None else Path(out)
    clock = WallClock()
    began = clock.now()
    prepare_threads()
    from tt_core.deploy import library as deploy
    from tt_core.deploy import shipping

    if path is not None:
        deploy.check_writable(path, apart=[p for p in (model, recipe, history) if isinstance(p, str | Path)])
    with ExitStack() as stack:
        resolved = check_target(target)
        store = open_store(chosen, history, stack)
        measurer = start_measurer(chosen, resolved, stack)
        ready = prepare(
            model,
            target=resolved,
            shapes=shapes,
            fix=fix,
            tasks=tasks,
            skip=skip,
            only_heavy=only_heavy,
            best=best_known(store, device_fingerprint(resolved)),
            space=chosen.space,
            plugins=plugins,
        )
        untuned = None
        if path is not None:  # a model that cannot be deployed is refused before it is tuned
            with quiet():
                untuned = deploy.compile_library(ready.lowered, {}, plugins)
        options = {
            "minutes": minutes,
            "trials": trials,
            "tasks": tasks,
            "skip": skip,
            "only_heavy": only_heavy,
            "history": str(history),
            "out": out and str(out),
        }
        with about_the_history():
            run_id, about = _begin(store, chosen, ready, seed, options)
            pipelines = _pipelines(ready, chosen, measurer, store, about["device"], seed, clock, plugins)
            others = _restored(ready.left_out, store, about["device"])
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
        stamp = {"device": about["device"], "versions": about["versions"]}
        outcome = run(
            pipelines,
            measurer,
            store,
            capped(chosen, only_heavy, resolved),
            [*_stopper(chosen), *budget],
            clock,
            info=RunInfo(run_id, tuple(ready.tasks), about),
            batch=chosen.batch,
            listeners=[kept, *plugins.listeners(), *listeners],
            halt=halt,
            stamp=stamp,
        )
        shipped = None
        winners = shipping.leaders([*pipelines, *others])

        def wrong(m: Measurement) -> None:
            with suppress(StoreError):  # a store that is broken has said so
                store.append([dataclasses.replace(m, at=clock.now(), run_id=run_id, **stamp)])

        found = any(math.isfinite(p.best_s) for p in pipelines)
        try:
            if path is not None and found:
                if outcome.failure is not None:
                    note(f"the run broke off ({summary(outcome.failure)}); writing the best that was measured before")
                note("re-timing and verifying the finalists")
                winners = shipping.race(pipelines, measurer, wrong)
                for p in others:
                    with suppress(VerificationError):  # nobody asked for this task: it stays untuned
                        winners = winners.merged(shipping.race([p], measurer, wrong))
                told = {k: about[k] for k in ("recipe", "versions")}
                shipped = shipping.ship(ready, untuned, winners, path, measurer, told, plugins, note)
        except Exception as e:
            note(f"nothing was written ({e}); what was measured is kept in {history}")
            raise
        finally:
            _end(store, run_id, outcome.reason)
        causes = Causes()
        if not found:
            with suppress(StoreError):  # the run's own end counts for more
                here = about["device"]
                causes = Causes.of(m for t in ready.tasks for m in store.query(task_key=t.key, device=here))
        seconds = clock.now() - began
        result = _result(ready, outcome, pipelines, others, winners, run_id, seconds, shipped, path, causes)
        kept.emit("result", **result.as_dict())
        return result


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
        warm = warm_rows(task, plugins)
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
            warm=warm,
        )
        pipeline.restore(store.query(task_key=task.key, space_key=task.space.key, device=device))
        peers.append(pipeline)
    return list(peers)


def _restored(tasks: Sequence[Task], store: Any, device: str) -> list[Pipeline]:
    """What is known of tasks that are not tuned."""
    pipelines = [Pipeline(t, NullSurrogate(), RandomSearcher(), TopSampler()) for t in tasks]
    for p in pipelines:
        p.restore(store.query(task_key=p.task.key, space_key=p.space.key, device=device))
    return pipelines


def _stopper(recipe: Recipe) -> list[Any]:
    stopper = recipe.build("stopper")
    return [] if stopper is None else [stopper]


def _end(store: Any, run_id: str, reason: str) -> None:
    with suppress(Exception):  # a remark at the run's end; a store that broke has said so already
        store.end_run(run_id, reason)


def _result(
    ready: Prepared,
    outcome: Outcome,
    pipelines: Sequence[Pipeline],
    others: Sequence[Pipeline],
    winners: Winners,
    run_id: str,
    seconds: float,
    shipped: Shipped | None,
    path: Path | None,
    causes: Causes,
) -> Result:
    def one(state: TaskState, p: Pipeline) -> TaskResult:
        row = winners.rows.get(p.task.key)
        return TaskResult(
            p.task.name,
            p.task.op,
            p.task.weight,
            p.task.flops,
            winners.seconds[p.task.key],
            state.trials,
            state.restored,
            dict(state.errors),
            {} if row is None else p.space.decode(row),
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
        tuple(
            LeftOut(p.task.name, p.task.weight, winners.seconds[p.task.key] if p.task.key in winners.rows else math.inf)
            for p in others
        ),
        str(path) if path else None,
        failure=outcome.failure,
        causes=causes,
        **({} if shipped is None else vars(shipped)),
    )
