"""The command `tt`."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from tt_spec import PluginError, Plugins, StoreError

from tt_core import progress
from tt_core.errors import FileError, ModelError, OptionError, RunError, UserError
from tt_core.target import prepare_threads

__all__ = ["app", "main"]

app = typer.Typer(
    name="tt",
    help="Tune the tensor programs of a model on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
history_app = typer.Typer(help="The store of every measurement.", no_args_is_help=True)
app.add_typer(history_app, name="history")

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="File (.onnx, .pt2, TVMScript .py), name of the zoo (tt plugins; resnet18@8 is a batch of 8), or operator"
        " (op:conv2d:N,CI,HW,CO,K,S,P, op:C2D:1)"
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Fix an input's shape: name=1,3,320,320 (repeatable)")
]
TargetOption = Annotated[str, typer.Option(help='"native", a TVM target string or JSON')]
TasksOption = Annotated[str, typer.Option(help="Pattern of task names, as in a shell")]
SpaceOption = Annotated[
    str | None, typer.Option(help="Where candidates come from: template, sketch, both (default), or a plug-in's")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output")]


@app.command()
def tune(
    model: ModelArgument,
    shape: ShapeOption = None,
    target: TargetOption = "native",
    recipe: Annotated[str, typer.Option(help="Name (tt recipes) or TOML file")] = "tt",
    trials: Annotated[int | None, typer.Option(help="Programs to measure in this run")] = None,
    minutes: Annotated[float | None, typer.Option(help="Tuning time; 5 if there is no other budget")] = None,
    tasks: TasksOption = "*",
    space: SpaceOption = None,
    history: Annotated[
        Path, typer.Option(help="Where every measurement is kept; a repeated run continues from it")
    ] = Path("tt.db"),
    out: Annotated[Path | None, typer.Option(help="Write the tuned library here, its sidecar beside it")] = None,
    seed: Annotated[int, typer.Option(help="Root of all randomness")] = 0,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override the recipe: searcher.population=256, scheduler=round-robin"),
    ] = None,
    log: Annotated[bool, typer.Option(help="Keep the run's events beside the history, for tt history replay")] = True,
    as_json: JsonOption = False,
) -> None:
    """Search faster programs for a model's operators, measure them here, and write the faster model."""
    from tt_core.tuning import tune as run

    shapes = _shapes(shape or [])
    limit = 5.0 if minutes is None and trials is None else minutes

    shown = progress.listener(as_json, limit, trials)
    with _interruptible() as halt:
        result = run(
            model,
            target=target,
            recipe=recipe,
            minutes=minutes,
            trials=trials,
            tasks=tasks,
            shapes=shapes,
            history=history,
            out=out,
            seed=seed,
            set=[*([f"space={space}"] if space else []), *(set or [])],
            log=log,
            halt=halt,
            say=shown.note,
            listeners=[shown],
        )
    if as_json:
        shown.emit("result", **result.as_dict())
    else:
        _report(result, history)
    if result.failure is not None:
        raise RunError(f"the run broke off ({result.failure}); everything measured before is kept in {history}")
    if result.reason == "interrupted":
        raise typer.Exit(130)
    if not any(math.isfinite(t.best_s) for t in result.tasks):
        raise RunError("no valid program was found; tt history show lists the errors")


@app.command("tasks")
def list_tasks(
    model: ModelArgument,
    shape: ShapeOption = None,
    target: TargetOption = "native",
    tasks: TasksOption = "*",
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a model's tunable operators: shapes, work, weight and the size of their spaces."""
    from tt_core.tuning import prepare

    ready = prepare(model, target=target, shapes=_shapes(shape or []), tasks=tasks, space=space or "both")
    for note in ready.model.notes:
        print(note, file=sys.stderr)
    found = ready.tasks
    if as_json:
        rows = [
            {
                "name": t.name,
                "key": t.key,
                "op": t.op,
                "shapes": t.shapes,
                "flops": t.flops,
                "weight": t.weight,
                "space": t.space.name,
                "knobs": len(t.space.knobs),
                "size": t.space.size,
                "target": t.target,
            }
            for t in found
        ]
        print(json.dumps(rows))
        return
    console = Console()
    progress.show_tasks(console, found)
    total = sum(t.weight * t.flops for t in found)
    console.print(f"{len(found)} tasks, {total / 1e9:.2f} GFLOP for {found[0].target}")


@app.command("run")
def run_library(
    library: Annotated[Path, typer.Argument(help="What tt tune --out wrote")],
    seconds: Annotated[float, typer.Option(help="How long to time, about")] = 3.0,
    as_json: JsonOption = False,
) -> None:
    """Time a tuned library on random inputs: median, p10 and p90."""
    import numpy as np

    from tt_core.runtime import Runner, read_sidecar

    prepare_threads(read_sidecar(library).get("threads"))
    runner = Runner(library)
    times = np.array(runner.time(runner.random_inputs(), seconds))
    p10, median, p90 = (float(v) for v in np.percentile(times, [10, 50, 90]))
    if as_json:
        print(json.dumps({"median_s": median, "p10_s": p10, "p90_s": p90, "runs": len(times)}))
    else:
        latency = progress.latency
        print(f"median {latency(median)}, p10 {latency(p10)}, p90 {latency(p90)} over {len(times)} runs")


@app.command("plugins")
def list_plugins(as_json: JsonOption = False) -> None:
    """List every piece with its distribution, version and source."""
    plugins = Plugins()
    rows = [
        {
            "role": role,
            "name": p.entry.name,
            "distribution": p.distribution,
            "version": p.version,
            "summary": p.entry.summary,
            "source": p.entry.source,
        }
        for role, pieces in plugins.pieces.items()
        for p in pieces.values()
    ]
    if as_json:
        print(json.dumps({"pieces": rows, "broken": [vars(b) for b in plugins.broken]}))
        return
    table = Table()
    for heading in ("role", "name", "distribution", "version", "what it is", "source"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(str(v) for v in row.values()))
    console = Console()
    console.print(table)
    for b in plugins.broken:
        console.print(f"left out: {b.distribution} {b.version}: {b.why}", markup=False)


@app.command("recipes")
def list_recipes(as_json: JsonOption = False) -> None:
    """List the recipes and the pieces they name."""
    from tt_core.recipe import resolve

    plugins = Plugins()
    rows = []
    for name in plugins.names("recipe"):
        try:
            pieces = resolve(name, (), plugins).describe()
        except OptionError as e:
            pieces = {"unusable": str(e)}
        rows.append({"name": name, "summary": plugins.find("recipe", name).entry.summary, "pieces": pieces})
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        shown = ", ".join(
            f"{role} {p['piece']}" if isinstance(p, dict) else f"{role} {p}"
            for role, p in row["pieces"].items()
            if role not in ("name", "store", "measurer", "space")
        )
        print(f"{row['name']}: {row['summary']}\n    {shown}")


@history_app.command("show")
def history_show(
    history: Annotated[Path, typer.Argument(help="The database")] = Path("tt.db"), as_json: JsonOption = False
) -> None:
    """Show what a history holds: its runs, and the best of each task."""
    if not history.exists():
        raise FileError(f"no history {history}: tt tune writes one")
    store = Plugins().build("store", "sqlite", path=str(history))
    try:
        runs, tasks = store.runs(), store.summary()
    except StoreError as e:
        raise FileError(str(e)) from e
    finally:
        store.close()
    if as_json:
        print(json.dumps({"runs": runs, "tasks": tasks}, default=str))
        return
    console = Console()
    table = Table(title=f"{len(runs)} runs", title_justify="left")
    for heading in ("run", "began", "model", "recipe", "ended"):
        table.add_column(heading, overflow="fold")
    for r in runs:
        began = datetime.fromtimestamp(r["started"]).strftime("%Y-%m-%d %H:%M")
        model, recipe = r["info"].get("model", ""), r["info"].get("recipe", {}).get("name", "")
        table.add_row(r["id"][:8], began, model, recipe, r["reason"] or "not in order")
    console.print(table)
    table = Table(title=f"{sum(t['trials'] for t in tasks)} measurements", title_justify="left")
    for heading in ("task", "op", "best", "trials", "failed", "device"):
        table.add_column(heading, overflow="fold")
    for t in tasks:
        best = t["best_s"]
        table.add_row(
            str(t["name"] or t["task_key"]),
            str(t["op"] or ""),
            progress.latency(math.inf if best is None else best),
            str(t["trials"]),
            str(t["failed"]),
            str(t["device"]),
        )
    console.print(table)


@history_app.command("replay")
def history_replay(
    run: Annotated[
        str, typer.Argument(help="Beginning of a run's id (tt history show), or a log file; else the newest")
    ] = "",
    history: Annotated[Path, typer.Option(help="The database")] = Path("tt.db"),
) -> None:
    """Retell a run from its event log, as it was shown while it went on."""
    from tt_core import retell
    from tt_core.tuning import Result

    told = retell.show(retell.find(run, history), sys.stdout)
    if told.result is not None:
        _report(Result.of(told.result), told.run.options["options"]["history"])
    else:
        trials = sum(s.trials for s in told.states)
        print(f"stopped: {told.reason or 'its log ends here, the run was killed or goes on'}; {trials} trials")


def main() -> None:
    """Entry point: one line per mistake, exit code by kind, 130 for Ctrl-C; `TT_DEBUG=1` shows tracebacks."""
    prepare_threads()
    try:
        _add_commands()
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as e:
        sys.exit(e.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (UserError, PluginError) as e:
        if os.environ.get("TT_DEBUG"):
            raise
        print(f"tt: {e}", file=sys.stderr)
        sys.exit(getattr(e, "exit_code", 2))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as e:
        if hasattr(e, "format_message") and hasattr(e, "exit_code"):  # click's usage errors
            print(f"tt: {e.format_message()} (see tt --help)", file=sys.stderr)  # type: ignore[attr-defined]
            sys.exit(e.exit_code)  # type: ignore[attr-defined]
        if os.environ.get("TT_DEBUG"):
            raise
        print(f"tt: internal error, {type(e).__name__}: {e} (TT_DEBUG=1 shows where)", file=sys.stderr)
        sys.exit(70)


def _add_commands() -> None:
    plugins = Plugins()
    for name in plugins.names("command"):
        entry = plugins.find("command", name).entry
        app.command(name, help=entry.summary)(plugins.build("command", name))


def _shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for text in texts:
        name, equals, dims = text.rpartition("=")
        try:
            shapes[name] = tuple(int(d) for d in dims.split(","))
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ModelError(f"--shape needs name=1,3,224,224, got {text!r}")
    return shapes


@contextmanager
def _interruptible() -> Iterator[Any]:
    """The first Ctrl-C asks the run to finish the candidate in hand and write the best so far; the second ends it."""
    pressed = []

    def on_signal(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)
        print("\nstopping after the candidate in hand; Ctrl-C again to leave at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: "interrupted" if pressed else None
    finally:
        signal.signal(signal.SIGINT, before)


def _report(result: Any, history: Path | str) -> None:
    latency = progress.latency
    shares = sorted(result.tasks, key=lambda t: -t.weight * t.best_s)
    table = Table(title="where the model's time goes", title_justify="left")
    for heading in ("task", "x", "latency", "GFLOP/s", "trials"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for t in shares[:12]:
        table.add_row(t.name, f"{t.weight:g}", latency(t.best_s), f"{t.gflops:.1f}", str(t.trials))
    console = Console()
    console.print(table)
    print(f"stopped: {result.reason}; {result.trials} trials in {result.seconds:.0f} s, kept in {history}")
    if result.before_s is not None:
        print(f"verified against {' and '.join(result.verified)}")
        print(
            f"{result.model}: {latency(result.before_s)} untuned, {latency(result.after_s)} tuned"
            f" ({result.before_s / result.after_s:.1f} times faster), written to {result.out}"
        )
    elif math.isfinite(result.estimate_s):
        print(f"{result.model}: estimated {latency(result.estimate_s)}; add --out FILE to write the library")
