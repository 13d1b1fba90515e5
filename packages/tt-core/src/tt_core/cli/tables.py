"""Tables and results that commands print: drawn in a terminal, plain lines for a file or a pipe."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tt_spec import Task
from tt_spec.serial import JsonObject

from tt_core.cli.progress import latency
from tt_core.errors import one_line

if TYPE_CHECKING:
    from tt_core.planning import Plan
    from tt_core.result import Result

__all__ = ["show", "show_plan", "show_result", "show_split", "show_tasks"]


def show(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", narrow: Sequence[str] | None = None
) -> None:
    """Print a table: drawn in a terminal; elsewhere a line per row, never wrapped and never cut.

    Args:
        headings: One that ends in a blank is of numbers, in one with dots long texts may be folded.
        rows: One text per heading.
        narrow: Lines to print in a terminal that is too narrow for the table; None folds it.
    """
    if not sys.stdout.isatty():
        _plain(headings, rows, title)
        return
    table = Table(title=title or None, title_justify="left")
    for h in headings:
        long = h.endswith("...") or narrow is None
        right = "right" if h.endswith(" ") else "left"
        least = 30 if h.endswith("...") else None
        table.add_column(h.rstrip(" ."), justify=right, no_wrap=not long, min_width=least, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(text)) for text in row))
    console = Console()
    needed = [c.min_width or max(len(str(text)) for text in (c.header, *c.cells)) for c in table.columns]
    if narrow is None or sum(needed) + 3 * len(needed) + 1 <= console.width:
        console.print(table)
    else:
        print("\n".join(narrow))


def _plain(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Columns of equal width, two blanks apart; control characters as blanks, so that a row is one line."""
    texts = [[h.rstrip(" .") for h in headings], *([one_line(text) for text in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [h.endswith(" ") for h in headings]
    if title:
        print(title)
    for row in texts:
        cells = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(row, widths, right, strict=True)]
        print("  ".join(cells).rstrip())


def show_tasks(tasks: Sequence[Task], shares: Sequence[float]) -> None:
    """Print a model's tasks; `shares` as fractions of the whole model's FLOP."""
    rows, lines = [], []
    for t, share in zip(tasks, shares, strict=True):
        flop, times, part = f"{t.flops / 1e6:.2f}", f"{t.weight:g}", f"{share:.1%}"
        knobs, size = str(len(t.space.knobs)), _size(t.space.size)
        rows.append((t.name, t.op, t.shapes, flop, times, part, t.space.name, knobs, size))
        lines += [f"{t.name}: {flop} MFLOP x {times}, {part} of the model", f"    {t.op} {t.shapes}"]
        lines += [f"    {t.space.name}: {knobs} knobs, {size} rows"]
    headings = ("task", "operator", "shapes ...", "MFLOP ", "weight ", "share ", "space", "knobs ", "size ")
    show(headings, rows, narrow=lines)
    total = sum(t.weight * t.flops for t in tasks)
    print(f"{len(tasks)} tasks, {total / 1e9:.2f} GFLOP for {tasks[0].target}")


def show_plan(plan: Plan) -> None:
    """Print what `tt tune --dry-run` found."""
    pieces = {role: p for role, p in plan.recipe.items() if isinstance(p, dict) and role != "kind"}
    kinds = {f"{role} of {op}": p for op, own in plan.recipe.get("kind", {}).items() for role, p in own.items()}
    plain = {k: v for k, v in plan.recipe.items() if k != "name" and not isinstance(v, dict)}
    limits = [f"{plan.minutes:g} minutes"] if plan.minutes else []
    limits += [f"{plan.trials} trials"] if plan.trials else []
    for name, text in (
        ("model", plan.model),
        ("target", f"{plan.target}, {plan.threads} threads"),
        ("recipe", f"{plan.recipe['name']} ({', '.join(f'{k} {v}' for k, v in plain.items())})"),
        *((f"  {role}", _piece(p)) for role, p in {**pieces, **kinds}.items()),
        ("history", f"{plan.history}, {sum(t.history for t in plan.tasks)} trials of these tasks"),
        ("budget", " or ".join(limits)),
    ):
        print(f"{name + ':':13}{text.rstrip()}")
    rows, lines = [], []
    for t in plan.tasks:
        flop, times, share, size = f"{t.flops / 1e6:.2f}", f"{t.weight:g}", f"{t.share:.1%}", _size(t.size)
        trials = str(t.planned) if t.cap is None or t.planned > t.cap else f"{t.planned} of {t.cap}"
        each = f"{t.trial_s:.2f}" if t.measured else f"({t.trial_s:.2f})"
        rows.append((t.name, times, flop, share, size, str(t.history), trials, each, f"{t.seconds:.0f}"))
        lines += [f"{t.name}: {flop} MFLOP x {times}, {share} of the model, {size} rows, {t.history} known"]
        lines += [f"    {trials} trials at {each} s: {t.seconds:.0f} s"]
    show(("task", "x ", "MFLOP ", "share ", "size ", "known ", "trials ", "s/trial ", "s "), rows, narrow=lines)
    known, read_s = sum(t.measured for t in plan.tasks), plan.start_s - plan.workers_s
    print(
        f"{plan.planned} trials, about {plan.seconds / 60:.1f} minutes: {plan.start_s:.0f} s to start (reading the"
        f" model took {read_s:.0f} s just now, workers take about {plan.workers_s:g}), then seconds per trial, search"
        f" included, as earlier runs took them ({known} tasks) or, in brackets, {plan.trial_s:g} by default"
        f" ({len(plan.tasks) - known} tasks); writing a file comes on top"
    )
    if plan.left_out:
        print(f"left out: {len(plan.left_out)} tasks ({', '.join(plan.left_out)})")


def show_result(result: Result, history: Path | str) -> None:
    """Print what a run achieved."""
    slowest = sorted(result.tasks, key=lambda t: -t.weight * t.best_s)[:12]
    rows = [(t.name, f"{t.weight:g}", latency(t.best_s), f"{t.gflops:.1f}", str(t.trials)) for t in slowest]
    show(("task", "x ", "latency ", "GFLOP/s ", "trials "), rows, title="where the model's time goes")
    if result.left_out:
        kept = sum(math.isfinite(t.best_s) for t in result.left_out)
        print(
            f"left out: {len(result.left_out)} tasks; {kept} keep their best program from {history},"
            f" {len(result.left_out) - kept} stay untuned"
        )
    print(f"stopped: {result.reason}; {result.trials} trials in {result.seconds:.0f} s, kept in {history}")
    if result.before_s is not None and result.after_s is not None:
        if result.untuned:
            print(f"faster untuned, so they ship untuned: {', '.join(result.untuned)}")
        print(f"verified against {' and '.join(result.verified)}")
        print(
            f"{result.model}: {latency(result.before_s)} untuned, {latency(result.after_s)} tuned"
            f" ({_times(result.before_s / result.after_s)}), written to {result.out}"
        )
    elif result.verified:
        if result.untuned:
            print(f"they ship untuned: {', '.join(result.untuned)}")
        said = "; ".join(f"{peer}, {how}" for peer, how in result.verified.items())
        print(f"verified against {said}; the whole model was not run, for this machine cannot run its target")
        print(f"{result.model}: estimated {latency(result.estimate_s)}, written to {result.out}")
    elif math.isfinite(result.estimate_s):
        what = "the chosen tasks take" if result.left_out else "estimated"
        print(f"{result.model}: {what} {latency(result.estimate_s)}; add --out FILE to write the library")


def show_split(order: Sequence[JsonObject], path: Path) -> None:
    """Print the steps of `tt split` and what stays outside."""
    rows = []
    for step in order:
        ends = [", ".join(v["name"] for v in step[side]) for side in ("inputs", "outputs")]
        nodes = ", ".join(dict.fromkeys(n["operator"] for n in step.get("nodes", ())))
        rows.append([step["file"], "outside: " + nodes if nodes else step.get("note", "part"), *ends])
    show(("file", "what", "inputs", "outputs"), rows)
    for node in (n for step in order for n in step.get("nodes", ())):
        print(f"node {node['node']} {node['name']!r} stays outside: {node['why']}")
    print(f"the order to run them in: {path}")


def _piece(piece: JsonObject) -> str:
    return f"{piece['piece']} " + " ".join(f"{k}={v}" for k, v in piece.items() if k != "piece")


def _times(faster: float) -> str:
    return f"{faster:.1f} times faster" if faster >= 1.05 else "no faster"


def _size(n: int) -> str:
    return f"{n:.3g}" if n > 99_999 else str(n)
