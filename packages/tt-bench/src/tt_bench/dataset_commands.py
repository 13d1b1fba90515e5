"""`tt dataset …`: measured rows of many operators, for cost models that learn before they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["add", "features"]

FolderArgument = Annotated[Path, typer.Argument(help="Folder with a file per device")]


def add(
    histories: Annotated[list[Path], typer.Argument(help="SQLite histories, as tt tune --history writes them")],
    to: Annotated[Path, typer.Option(help="Folder with a file per device; made if missing")],
) -> None:
    """Take the rows of tuning histories into a data set, each row once; a run may still be writing them."""
    from tt_bench.dataset_add import add as run

    done = run(histories, to, _say)
    if done.held_out:
        names = ", ".join(done.held_out[:4]) + (", …" if len(done.held_out) > 4 else "")
        print(f"left out because no data set holds them: {len(done.held_out)} operators ({names})")
    if done.unknown:
        print(f"left out because their history does not know their space or workload: {done.unknown} operators")
    where = ", ".join(f"{p} ({p.stat().st_size / 1e6:.2f} MB)" for p in done.paths)
    print(f"{done.rows} new rows; written to {where}" if where else "no rows")


def features(ctx: typer.Context, folder: FolderArgument) -> None:
    """Compute the statements of every row into a cache beside the data set; a repeated call goes on."""
    from tt_bench.statements import compute

    with ctx.obj.interruptible() as halt:
        have, without = compute(ctx.obj, folder, halt=halt, say=_say)
        stopped = halt()
    if stopped:
        print("stopped; what was computed is kept, and the same command goes on")
        raise typer.Exit(130)
    print(f"{have} rows have statements" + (f", {without} have no program" if without else ""))


def _say(text: str) -> None:
    print(text, flush=True)
