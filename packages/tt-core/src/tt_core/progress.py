"""What a run shows while it works: a live table in a terminal, plain lines elsewhere, JSON events for programs."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from tt_spec import Batch, Measurement, RunInfo, TaskState

__all__ = ["JsonLines", "LiveTable", "PlainLines", "latency", "listener", "show_plan", "show_tasks"]


def listener(as_json: bool, minutes: float | None, trials: int | None) -> Any:
    """The listener that fits where the output goes."""
    if as_json:
        return JsonLines(sys.stdout)
    console = Console()
    return LiveTable(console, minutes, trials) if console.is_terminal else PlainLines(sys.stdout, minutes, trials)


class _Progress:
    """What all of them know: the latest state of every task."""

    def __init__(self, minutes: float | None, trials: int | None) -> None:
        self.minutes, self.trials = minutes, trials
        self.states: dict[str, TaskState] = {}
        self.started = time.monotonic()
        self.last = ""

    def tt_run_started(self, run: RunInfo) -> None:
        self.started = time.monotonic()
        self.states = {t.key: TaskState(t) for t in run.tasks}

    def update(self, state: TaskState) -> None:
        self.states[state.task.key] = state
        self.last = state.task.key

    @property
    def model_s(self) -> float:
        """Weighted sum of the best latencies; inf while a task has none."""
        return sum(s.weight * s.best_s for s in self.states.values())

    def left(self) -> str:
        """What is left of the budget."""
        parts = []
        if self.minutes is not None:
            seconds = max(0.0, 60 * self.minutes - (time.monotonic() - self.started))
            parts.append(f"{int(seconds // 60)}:{int(seconds % 60):02d} left")
        if self.trials is not None:
            parts.append(f"{max(0, self.trials - sum(s.trials for s in self.states.values()))} trials left")
        return ", ".join(parts)

    def summary(self) -> str:
        """One line about the whole model."""
        missing = sum(not math.isfinite(s.best_s) for s in self.states.values())
        known = sum(s.weight * s.best_s for s in self.states.values() if math.isfinite(s.best_s))
        model = latency(known) + (f" + {missing} operators not yet measured" if missing else "")
        trials = sum(s.trials for s in self.states.values())
        return f"model estimate {model}, {trials} trials, {self.left()}"


class PlainLines(_Progress):
    """A line per batch."""

    def __init__(self, stream: TextIO, minutes: float | None = None, trials: int | None = None) -> None:
        super().__init__(minutes, trials)
        self.stream = stream

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.update(state)
        print(
            f"{state.task.name}: {_gflops(state)} GFLOP/s, {latency(state.best_s)}, {state.trials} trials"
            f"{_errors(state)} | {self.summary()}",
            file=self.stream,
            flush=True,
        )

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        print(f"{state.task.name}: finished, {state.finished}", file=self.stream, flush=True)


class JsonLines(_Progress):
    """One JSON object per batch, and one at the start and the end of the tuning."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(None, None)
        self.stream = stream

    def tt_run_started(self, run: RunInfo) -> None:
        super().tt_run_started(run)
        self._emit("run_started", run_id=run.run_id, tasks=[t.name for t in run.tasks], options=run.options)

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.update(state)
        self._emit(
            "batch_measured",
            task=state.task.name,
            trials=state.trials,
            best_s=_finite(state.best_s),
            errors=dict(Counter(m.error for m in results if m.error)),
            measured=len(results),
            model_s=_finite(self.model_s),
            info=batch.info,
        )

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self._emit("task_finished", task=state.task.name, reason=state.finished)

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        self._emit("run_stopped", reason=reason, trials=sum(s.trials for s in states))

    def _emit(self, event: str, **what: Any) -> None:
        print(json.dumps({"event": event, **what}, default=str), file=self.stream, flush=True)


class LiveTable(_Progress):
    """A table that keeps itself up to date: a row per task."""

    def __init__(self, console: Console, minutes: float | None = None, trials: int | None = None) -> None:
        super().__init__(minutes, trials)
        self.console = console
        self._live: Live | None = None

    def tt_run_started(self, run: RunInfo) -> None:
        super().tt_run_started(run)
        self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=1)
        self._live.start()

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.update(state)

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self.update(state)

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self) -> Table:
        table = Table(title=self.summary(), title_justify="left", expand=False)
        for heading in ("task", "x", "GFLOP/s", "latency", "trials", "errors"):
            table.add_column(heading, justify="left" if heading in ("task", "errors") else "right")
        states = sorted(self.states.values(), key=lambda s: -_share(s))
        room = max(5, self.console.height - 6)
        for s in states[:room]:
            mark = "▸ " if s.task.key == self.last else "✓ " if s.finished else "  "
            table.add_row(
                mark + s.task.name,
                f"{s.weight:g}",
                _gflops(s),
                latency(s.best_s),
                f"{s.trials}" + (f" (+{s.restored})" if s.restored else ""),
                _errors(s).strip(" ,"),
            )
        if len(states) > room:
            table.caption = f"and {len(states) - room} lighter tasks"
        return table


def latency(seconds: float) -> str:
    """Seconds for people: 12.3 ms, 456 µs."""
    if not math.isfinite(seconds):
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def show_tasks(console: Console, tasks: Sequence[Any], shares: Sequence[float]) -> None:
    """The table of `tt tasks`; `shares` as fractions of the whole model's FLOP."""
    table = _table("task", "operator", "shapes", "MFLOP ", "weight ", "share ", "space", "knobs ", "size ")
    for t, share in zip(tasks, shares, strict=True):
        table.add_row(
            t.name,
            t.op,
            t.shapes,
            f"{t.flops / 1e6:.2f}",
            f"{t.weight:g}",
            f"{share:.1%}",
            t.space.name,
            str(len(t.space.knobs)),
            _size(t.space.size),
        )
    console.print(table)


def show_plan(console: Console, plan: Any) -> None:
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
        console.print(f"{name + ':':13}{text}", markup=False, highlight=False, soft_wrap=True)
    table = _table("task", "x ", "MFLOP ", "share ", "size ", "known ", "trials ", "s/trial ", "s ")
    for t in plan.tasks:
        table.add_row(
            t.name,
            f"{t.weight:g}",
            f"{t.flops / 1e6:.2f}",
            f"{t.share:.1%}",
            _size(t.size),
            str(t.history),
            str(t.planned) if t.cap is None else f"{t.planned} of {t.cap}",
            f"{t.trial_s:.2f}" if t.measured else f"({t.trial_s:.2f})",
            f"{t.seconds:.0f}",
        )
    console.print(table)


def _table(*headings: str) -> Table:
    """Columns whose heading ends in a blank hold numbers."""
    table = Table()
    for h in headings:
        table.add_column(
            h.strip(), justify="right" if h.endswith(" ") else "left", no_wrap=h.endswith(" "), overflow="fold"
        )
    return table


def _piece(piece: dict[str, Any]) -> str:
    return f"{piece['piece']} " + " ".join(f"{k}={v}" for k, v in piece.items() if k != "piece")


def _size(n: int) -> str:
    return f"{n:.3g}" if n > 99_999 else str(n)


def _share(state: TaskState) -> float:
    return state.weight * state.best_s if math.isfinite(state.best_s) else 1e9 + state.weight * state.flops


def _gflops(state: TaskState) -> str:
    return f"{state.flops / state.best_s / 1e9:.1f}" if math.isfinite(state.best_s) else "-"


def _errors(state: TaskState) -> str:
    return "".join(f", {n} {kind}" for kind, n in sorted(state.errors.items()))


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None
