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
from rich.console import Console
from rich.table import Table
from tt_spec import Plugins, StoreError, VirtualClock

from tt_core.cli import progress
from tt_core.cli import tables as report
from tt_core.errors import FileError
from tt_core.events import retell

__all__ = ["app", "retold"]

app = typer.Typer(help="The store of every measurement.", no_args_is_help=True)


@app.command("show")
def show(
    history: Annotated[Path, typer.Argument(help="The database")] = Path("tt.db"),
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False,
) -> None:
    """Show what a history holds: its runs, and the best of each task."""
    if not os.path.exists(history):  # unlike pathlib's, it takes any text
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


@app.command("replay")
def replay(
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
            report.show_result(Result.of(told.result), told.run.options["options"]["history"])
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
