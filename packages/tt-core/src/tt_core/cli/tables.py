"""Tables that commands print."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tt_core.cli.progress import latency

__all__ = ["show_plan", "show_result", "show_tasks"]


def show_tasks(tasks: Sequence[Any], shares: Sequence[float]) -> None:
    """What `tt tasks` prints; `shares` as fractions of the whole model's FLOP."""
    table = _table("task", "operator", "shapes ...", "MFLOP ", "weight ", "share ", "space", "knobs ", "size ")
    lines = []
    for t, share in zip(tasks, shares, strict=True):
        flop, times, part = f"{t.flops / 1e6:.2f}", f"{t.weight:g}", f"{share:.1%}"
        knobs, size = str(len(t.space.knobs)), _size(t.space.size)
        table.add_row(t.name, t.op, t.shapes, flop, times, part, t.space.name, knobs, size)
        lines += [f"{t.name}: {flop} MFLOP x {times}, {part} of the model", f"    {t.op} {t.shapes}"]
        lines += [f"    {t.space.name}: {knobs} knobs, {size} rows"]
    _show(table, lines)
    total = sum(t.weight * t.flops for t in tasks)
    print(f"{len(tasks)} tasks, {total / 1e9:.2f} GFLOP for {tasks[0].target}")


def show_plan(plan: Any) -> None:
    """What `tt tune --dry-run` prints."""
    pieces = {role: p for role, p in plan.recipe.items() if isinstance(p, dict)}
    plain = {k: v for k, v in plan.recipe.items() if k != "name" and not isinstance(v, dict)}
    limits = [f"{plan.minutes:g} minutes"] if plan.minutes else []
    limits += [f"{plan.trials} trials"] if plan.trials else []
    for name, text in (
        ("model", plan.model),
        ("target", f"{plan.target}, {plan.threads} threads"),
        ("recipe", f"{plan.recipe['name']} ({', '.join(f'{k} {v}' for k, v in plain.items())})"),
        *((f"  {role}", _piece(p)) for role, p in pieces.items()),
        ("history", f"{plan.history}, {sum(t.history for t in plan.tasks)} trials of these tasks"),
        ("budget", " or ".join(limits)),
    ):
        print(f"{name + ':':13}{text.rstrip()}")
    table = _table("task", "x ", "MFLOP ", "share ", "size ", "known ", "trials ", "s/trial ", "s ")
    lines = []
    for t in plan.tasks:
        flop, times, share, size = f"{t.flops / 1e6:.2f}", f"{t.weight:g}", f"{t.share:.1%}", _size(t.size)
        trials = str(t.planned) if t.cap is None or t.planned > t.cap else f"{t.planned} of {t.cap}"
        each = f"{t.trial_s:.2f}" if t.measured else f"({t.trial_s:.2f})"
        table.add_row(t.name, times, flop, share, size, str(t.history), trials, each, f"{t.seconds:.0f}")
        lines += [f"{t.name}: {flop} MFLOP x {times}, {share} of the model, {size} rows, {t.history} known"]
        lines += [f"    {trials} trials at {each} s: {t.seconds:.0f} s"]
    _show(table, lines)
    known, read_s = sum(t.measured for t in plan.tasks), plan.start_s - plan.workers_s
    print(
        f"{plan.planned} trials, about {plan.seconds / 60:.1f} minutes: {plan.start_s:.0f} s to start (reading the"
        f" model took {read_s:.0f} s just now, workers take about {plan.workers_s:g}), then seconds per trial, search"
        f" included, as earlier runs took them ({known} tasks) or, in brackets, {plan.trial_s:g} by default"
        f" ({len(plan.tasks) - known} tasks); writing a file comes on top"
    )
    if plan.left_out:
        print(f"left out: {len(plan.left_out)} tasks ({', '.join(plan.left_out)})")


def show_result(result: Any, history: Path | str) -> None:
    """What `tt tune` ends with."""
    shares = sorted(result.tasks, key=lambda t: -t.weight * t.best_s)
    table = Table(title="where the model's time goes", title_justify="left")
    for heading in ("task", "x", "latency", "GFLOP/s", "trials"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    for t in shares[:12]:
        table.add_row(t.name, f"{t.weight:g}", latency(t.best_s), f"{t.gflops:.1f}", str(t.trials))
    console = Console()
    console.print(table)
    if result.left_out:
        kept = sum(math.isfinite(t.best_s) for t in result.left_out)
        print(
            f"left out: {len(result.left_out)} tasks; {kept} keep their best program from {history},"
            f" {len(result.left_out) - kept} stay untuned"
        )
    print(f"stopped: {result.reason}; {result.trials} trials in {result.seconds:.0f} s, kept in {history}")
    if result.before_s is not None:
        if result.untuned:
            print(f"faster untuned, so they ship untuned: {', '.join(result.untuned)}")
        print(f"verified against {' and '.join(result.verified)}")
        print(
            f"{result.model}: {latency(result.before_s)} untuned, {latency(result.after_s)} tuned"
            f" ({_times(result.before_s / result.after_s)}), written to {result.out}"
        )
    elif math.isfinite(result.estimate_s):
        what = "the chosen tasks take" if result.left_out else "estimated"
        print(f"{result.model}: {what} {latency(result.estimate_s)}; add --out FILE to write the library")


def _show(table: Table, lines: Sequence[str]) -> None:
    """The table, or these lines where the terminal is too narrow for it; without a terminal there is room for most."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    needed = [c.min_width or max(len(str(text)) for text in (c.header, *c.cells)) for c in table.columns]
    if sum(needed) + 3 * len(needed) + 1 <= console.width:
        console.print(table)
    else:
        print("\n".join(lines))


def _table(*headings: str) -> Table:
    """Columns whose heading ends in a blank hold numbers, in those with dots long texts may be folded."""
    table = Table()
    for h in headings:
        long = h.endswith("...")
        table.add_column(
            h.rstrip(" ."),
            justify="right" if h.endswith(" ") else "left",
            no_wrap=not long,
            min_width=30 if long else None,
            overflow="fold",
        )
    return table


def _piece(piece: dict[str, Any]) -> str:
    return f"{piece['piece']} " + " ".join(f"{k}={v}" for k, v in piece.items() if k != "piece")


def _times(faster: float) -> str:
    return f"{faster:.1f} times faster" if faster >= 1.05 else "no faster"


def _size(n: int) -> str:
    return f"{n:.3g}" if n > 99_999 else str(n)
