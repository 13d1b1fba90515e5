"""`tt history`: what was measured, and runs retold."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, TextIO

import typer
from tt_spec import Plugins, StoreError, VirtualClock
from tt_spec.errors import FileError, OptionError
from tt_spec.roles import ListsRuns, Summarises, missing
from tt_spec.serial import JsonObject

from tt_core.cli import progress, tables
from tt_core.events import retell

__all__ = ["app", "retold"]

app = typer.Typer(help="The store of every measurement.", no_args_is_help=True)


@app.command("show")
def show(
    history: Annotated[Path, typer.Argument(help="The database")] = Path("tt.db"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
    store: Annotated[str, typer.Option("--store", help="The store that wrote it (tt plugins)")] = "sqlite",
) -> None:
    """Show what a history holds: its runs, and the best of each task."""
    if not os.path.exists(history):  # unlike pathlib's, it takes any text
        raise FileError(f"no history {history}: tt tune writes one")
    kept = Plugins().build("store", store, path=str(history))
    if lacking := missing(kept, ListsRuns, Summarises):
        raise OptionError(f"--store {store}: it lacks {', '.join(lacking)}, which tt history show needs")
    try:
        runs, tasks = kept.runs(), kept.summary()
    except StoreError as e:
        raise FileError(str(e)) from e
    finally:
        kept.close()
    if as_json:
        print(json.dumps({"runs": runs, "tasks": tasks}, default=str))
        return
    try:  # a file may hold anything in any column
        listed, rows = [_run_row(r) for r in runs], [_task_row(t) for t in tasks]
        trials = sum(t["trials"] for t in tasks)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as e:
        raise FileError(f"history {history}: a row is damaged ({e}); was the file edited by hand?") from e
    tables.show(("run", "began", "model", "recipe", "ended"), listed, title=f"{len(runs)} runs")
    headings = ("task", "op", "best", "trials", "failed", "device")
    tables.show(headings, rows, title=f"{trials} measurements")


def _run_row(r: JsonObject) -> tuple[str, ...]:
    try:
        began = datetime.fromtimestamp(r["started"]).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):  # not a time of this world
        began = "?"
    recipe = r["info"].get("recipe")
    name = recipe.get("name", "") if isinstance(recipe, dict) else ""
    return r["id"][:8], began, str(r["info"].get("model", "")), str(name), r["reason"] or "unfinished"


def _task_row(t: JsonObject) -> tuple[str, ...]:
    best = progress.latency(math.inf if t["best_s"] is None else t["best_s"])
    name, op = str(t["name"] or t["task_key"]), str(t["op"] or "")
    return name, op, best, str(t["trials"]), str(t["failed"]), str(t["device"])


@app.command("replay", hidden=True)  # its name until the word was left to recordings
@app.command("retell")
def retell_run(
    run: Annotated[
        str, typer.Argument(help="Beginning of a run's id (tt history show), or a log file; else the newest")
    ] = "",
    history: Annotated[Path, typer.Option(help="The database")] = Path("tt.db"),
) -> None:
    """Retell a run from its event log, as it was shown while it went on."""
    from tt_core.result import Result

    log = retell.find(run, history)
    with retell.whole(log):
        told = retold(log, sys.stdout)
        if told.result is not None:
            tables.show_result(Result.of(told.result), told.run.options["options"]["history"])
        else:
            trials = sum(s.trials for s in told.states)
            print(f"stopped: {told.reason or 'its log ends here, the run was killed or goes on'}; {trials} trials")


def retold(path: Path, stream: TextIO) -> retell.Retold:
    """Print a run as the plain lines did while it went on."""
    events = retell.read(path)
    options = next(e for e in events if e["event"] == "run_started")["options"].get("options", {})
    clock = VirtualClock()
    lines = progress.PlainLines(stream, options.get("minutes"), options.get("trials"), clock)
    return retell.retell(events, [lines], clock)
