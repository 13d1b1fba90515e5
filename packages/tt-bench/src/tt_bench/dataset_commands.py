"""`tt dataset …`: measured rows of many operators, for cost models that learn before they are needed."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bench.errors import BenchError

if TYPE_CHECKING:
    from tt_bench.ceilings import Line, Shown
    from tt_bench.dataset_add import Added

__all__ = ["add", "features", "record", "show"]

FolderArgument = Annotated[Path, typer.Argument(help="Folder with a file per device")]


def add(
    histories: Annotated[list[Path], typer.Argument(help="SQLite histories, as tt tune --history writes them")],
    to: Annotated[Path, typer.Option(help="Folder with a file per device; made if missing")],
) -> None:
    """Take the rows of tuning histories into a data set, each row once; a run may still be writing them."""
    from tt_bench.dataset_add import add as run

    _told(run(histories, to, _say))


def _told(done: Added) -> None:
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


def record(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the data set; record.db in it grows with every result")],
    models: Annotated[
        Path | None,
        typer.Argument(metavar="[LIST]", help="Text file, a model a line: op:…, name of the zoo, ONNX file; else ours"),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each operator")] = 400,
    runs: Annotated[int, typer.Option(min=1, help="Timings of 5 ms of a row; the median counts")] = 3,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="Of this session; else until the list is done")
    ] = None,
    target: Annotated[str, typer.Option(help='"native", a TVM target string or JSON')] = "native",
    seed: Annotated[int, typer.Option(help="Of the random rows")] = 0,
) -> None:
    """Measure rows of many operators for a data set; the same command again goes on where it was stopped."""
    from tt_bench.dataset_record import LIST, Plan, read_list
    from tt_bench.dataset_record import record as run

    lines = read_list(models or LIST)
    with ctx.obj.interruptible() as halt:
        done, failed = run(ctx.obj, lines, out, Plan(rows, runs, minutes, target, seed), halt, _say)
        stopped = halt()
    _told(done)
    if stopped:
        print("stopped; everything measured is kept, and the same command goes on")
        raise typer.Exit(130)
    if failed:
        raise BenchError(f"{len(failed)} models or operators could not be recorded, all others are", failed)


def show(
    folder: FolderArgument, as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output")] = False
) -> None:
    """Say what a data set holds and the most that a model can rank right on it."""
    from tt_bench.ceilings import show as run

    for shown in run(folder):
        if as_json:
            print(json.dumps(_plain(shown)))
        else:
            _print(shown)


def _print(shown: Shown) -> None:
    from tt_bench import tables

    data, total = shown.data, shown.total
    print(f"{data.device}, TVM {data.tvm}: {shown.size / 1e6:.2f} MB, SHA-256 {data.sha256[:16]}")
    head = ("", "operators", "rows", "failed", "median / best", "slow / best", "repeat", "twins", "twin rows")
    lines = [_cells(line) for line in (*shown.kinds, *shown.parts, total)]
    tables.show(head, lines, 1)
    errors = ", ".join(f"{n} {e}" for e, n in total.failed.items()) or "none"
    print(f"failures: {errors}")
    if math.isnan(total.repeats):
        print("noise ceiling: unknown, no two rows of an operator were timed twice")
    else:
        far = "" if math.isnan(total.apart) else f", of those 5 % apart {total.apart:.3f}"
        print(f"noise ceiling: {total.repeats:.3f} of {total.pairs} pairs timed twice had the same order again{far}")
    if math.isnan(total.twins):
        print("twin ceiling: unknown; tt dataset features computes the statements")
    else:
        told = f"{total.twins:.1%} of pairs share all statement features, {total.twin_rows:.0%} of rows with another"
        print(f"twin ceiling: {total.twin_ceiling:.3f}; {told}")
    names = ", ".join(shown.held_out[:4]) + (", …" if len(shown.held_out) > 4 else "")
    print(f"held out: {f'{len(shown.held_out)} operators that no data set should hold ({names})' if names else 'none'}")


def _cells(line: Line) -> tuple[str, ...]:
    failed = sum(line.failed.values())
    counts = (str(line.operators), str(line.rows), str(failed))
    return (line.name, *counts, *map(_figure, (line.median, line.slow, line.repeats, line.twins, line.twin_rows)))


def _figure(x: float) -> str:
    return "-" if math.isnan(x) else f"{x:.3f}" if x < 1 else f"{x:.2f}"


def _plain(shown: Shown) -> dict[str, Any]:
    def line(x: Line) -> dict[str, Any]:
        found = {**dataclasses.asdict(x), "twin_ceiling": x.twin_ceiling}
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in found.items()}

    return {
        "device": shown.data.device,
        "tvm": shown.data.tvm,
        "sha256": shown.data.sha256,
        "bytes": shown.size,
        "total": line(shown.total),
        "kinds": [line(x) for x in shown.kinds],
        "parts": [line(x) for x in shown.parts],
        "held_out": list(shown.held_out),
    }


def _say(text: str) -> None:
    print(text, flush=True)
