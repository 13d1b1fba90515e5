"""`tt train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["train"]


def train(
    ctx: typer.Context,
    folders: Annotated[list[str], typer.Argument(help="Folders with recordings, or with a data set")],
    model: Annotated[str, typer.Option(help="A cost model that can learn beforehand: atformer, xgb, … (tt plugins)")],
    out: Annotated[Path, typer.Option(help="File of the weights; the card is written beside it, as OUT.md")],
    sets: Annotated[list[str] | None, typer.Option("--set", help="An option of the model: width=96")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Short for --set epochs=…")] = None,
    seed: Annotated[int, typer.Option(help="Of the split and of the training")] = 0,
    hold_out: Annotated[
        list[str] | None,
        typer.Option("--hold-out", help="Names of operators to keep apart, patterns as in a shell; else a fifth"),
    ] = None,
    patience: Annotated[int, typer.Option(min=1, help="Rounds without a better one after which it ends")] = 10,
    with_held_out: Annotated[
        bool, typer.Option("--with-held-out", help="Also learn from operators on which shipped weights are judged")
    ] = False,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit", help="In the end learn anew, as many rounds as were best, from what was kept apart, too"
        ),
    ] = False,
) -> None:
    """Train a cost model on measured rows of many operators; the same command again goes on where it was stopped."""
    from tt_bench.train import Training, checkpoint_of
    from tt_bench.train import train as run

    options = dict(_option(text) for text in sets or [])
    if epochs is not None:
        options["epochs"] = epochs
    names = tuple(n.strip() for text in hold_out or [] for n in text.split(",") if n.strip())
    what = Training(tuple(folders), model, out, options, seed, names, patience, with_held_out, refit)
    with ctx.obj.interruptible() as halt:
        done = run(what, say=lambda text: print(text, flush=True), halt=halt)
    if done.stopped:
        print(f"stopped; {checkpoint_of(out)} holds what was learned, and the same command goes on")
        raise typer.Exit(130)
    for name, value in done.card["metrics"]["apart"].items():
        print(
            f"{name}: {value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"
            if isinstance(value, list)
            else f"{name}: {value:g}"
        )
    print(f"written to {out} ({out.stat().st_size / 1e6:.1f} MB) and {out}.md")


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise typer.BadParameter(f"--set needs option=value, got {text!r}")
    try:
        return name.strip(), json.loads(value)
    except ValueError:
        return name.strip(), value.strip().strip("'\"")
