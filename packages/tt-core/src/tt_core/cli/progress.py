"""The view of a run at work: a live table in a terminal, plain lines elsewhere, JSON events for programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tt_spec import Batch, Clock, Listener, Measurement, RunInfo, TaskState, WallClock
from tt_spec.spent import Spent

from tt_core.compiler.target import cores
from tt_core.errors import one_line
from tt_core.events.log import JsonLines
from tt_core.stages import clock_text

__all__ = ["LiveTable", "PlainLines", "Shown", "latency", "listener"]


def listener(as_json: bool, minutes: float | None, trials: int | None) -> Shown:
    """The listener that fits where the output goes."""
    if as_json:
        return _JsonLines(sys.stdout)
    console = Console()
    return LiveTable(console, minutes, trials) if console.is_terminal else PlainLines(sys.stdout, minutes, trials)


class Shown(Listener):
    """A listener that shows a run."""

    def emit(self, event: str, **what: Any) -> None:
        """Tell an event of whatever name; only what is shown to programs says it."""


class _JsonLines(JsonLines, Shown):
    """Events for programs."""


class _Progress(Shown):
    """The latest state of every task, which all of them need."""

    def __init__(self, minutes: float | None, trials: int | None, clock: Clock | None = None) -> None:
        self.minutes, self.trials, self.clock = minutes, trials, clock or WallClock()
        self.states: dict[str, TaskState] = {}
        self.most: dict[str, float] = {}
        self.spent = Spent()
        self.stages: dict[str, float] = {}
        self.started, self.ending_s = self.clock.now(), 0.0
        self.last = ""

    def tt_run_started(self, run: RunInfo) -> None:
        about = run.options.get("stages") or {}
        at = about.get("at", self.clock.now())
        self.started = at - (about.get("spent_s") or 0.0)
        self.ending_s = about.get("ending_s") or 0.0
        self.spent = Spent(cores())
        self.spent.start(at)
        self.states = {t.key: TaskState(t) for t in run.tasks} | {s.task.key: s for s in run.states}

    def stage(self, name: str, began: float, seconds: float, work: Sequence[Sequence[Any]] = ()) -> None:
        self.stages[name] = self.stages.get(name, 0.0) + seconds

    def update(self, state: TaskState, batch: Batch | None = None) -> None:
        self.states[state.task.key] = state
        self.last = state.task.key
        if batch is not None and (most := batch.info.get("stopper", {}).get("im")) is not None:
            self.most[state.task.key] = most

    def at_most(self, state: TaskState) -> str:
        """The maximum of trials, where a stopper adapts it: " of at most 288"."""
        most = self.most.get(state.task.key)
        return "" if most is None else f" of at most {max(0, math.ceil(most))}"

    def left(self) -> str:
        """The rest of the budget, in words."""
        parts = []
        if self.minutes is not None:
            seconds = max(0.0, 60 * self.minutes - (self.clock.now() - self.started))
            kept = f", {clock_text(self.ending_s)} of it to finish" if self.ending_s >= 1 else ""
            parts.append(f"{clock_text(seconds)} left{kept}")
        if self.trials is not None:
            parts.append(f"{max(0, self.trials - sum(s.trials for s in self.states.values()))} trials left")
        return ", ".join(parts)

    def clock_share(self) -> str:
        """Where the search's wall clock went so far."""
        total, parts, hidden = self.spent.total_s, self.spent.parts, self.spent.hidden_s
        names = {"build": "building", "run": "timing", "think": "thinking", "wait": "waiting"}
        shares = {p: f"{names[p]} {parts[p] / total:.0%}" for p in names}
        if hidden >= 0.005 * total:
            shares["think"] += f" and {hidden / total:.0%} beside others"
        return ", ".join(shares.values())

    def clock_line(self) -> str:
        """Where the wall clock of the whole run went so far."""
        before = [f"{name} {seconds:.0f} s" for name, seconds in self.stages.items() if seconds >= 1]
        search = f"{clock_text(self.spent.total_s)} of search ({self.clock_share()})"
        return "; ".join([", ".join(before), search] if before else [search])

    def summary(self) -> str:
        """One line about the whole model."""
        missing = sum(not math.isfinite(s.best_s) for s in self.states.values())
        known = sum(s.weight * s.best_s for s in self.states.values() if math.isfinite(s.best_s))
        model = latency(known) + (f" + {missing} operators not yet measured" if missing else "")
        trials = sum(s.trials for s in self.states.values())
        return f"model estimate {model}, {trials} trials, {self.left()}"


class PlainLines(_Progress):
    """A line per batch."""

    def __init__(
        self, stream: TextIO, minutes: float | None = None, trials: int | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(minutes, trials, clock)
        self.stream = stream

    def note(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.update(state, batch)
        self.spent.add(state, batch, results)
        trials = f"{state.trials} trials{self.at_most(state)}"
        print(
            f"{state.task.name}: {_gflops(state)} GFLOP/s, {latency(state.best_s)}, {trials}"
            f"{_errors(state)}{_slot(batch)} | {self.summary()}",
            file=self.stream,
            flush=True,
        )

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        if self.spent.total_s:
            self.note(self.clock_line())

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        print(f"{state.task.name}: finished, {state.finished}", file=self.stream, flush=True)


class LiveTable(_Progress):
    """A table that keeps itself up to date: a row per task."""

    def __init__(self, console: Console, minutes: float | None = None, trials: int | None = None) -> None:
        super().__init__(minutes, trials)
        self.console, self.slot = console, ""
        self._live: Live | None = None

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def tt_run_started(self, run: RunInfo) -> None:
        super().tt_run_started(run)
        self._live = Live(get_renderable=self._table, console=self.console, refresh_per_second=1)
        self._live.start()

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.update(state, batch)
        self.spent.add(state, batch, results)
        if "slot" in batch.info:
            self.slot = f"slot {batch.info['slot'].get('number', '?')}: {state.task.name}{_slot(batch)}"

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self.update(state)

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.spent.total_s:
            self.note(self.clock_line())

    def _table(self) -> Table:
        table = Table(title=Text(self.summary()), title_justify="left", expand=False)
        for heading in ("task", "x", "GFLOP/s", "latency", "trials", "errors"):
            table.add_column(heading, justify="left" if heading in ("task", "errors") else "right")
        states = sorted(self.states.values(), key=lambda s: -_share(s))
        room = max(5, self.console.height - 6)
        for s in states[:room]:
            mark = "▸ " if s.task.key == self.last else "✓ " if s.finished else "  "
            table.add_row(
                Text(mark + one_line(s.task.name)),
                f"{s.weight:g}",
                _gflops(s),
                latency(s.best_s),
                f"{s.trials}{self.at_most(s)}" + (f" (+{s.restored})" if s.restored else ""),
                Text(_errors(s).strip(" ,")),
            )
        more = [f"and {len(states) - room} lighter tasks"] if len(states) > room else []
        shown = [*more, *([self.slot] if self.slot else []), *([self.clock_share()] if self.spent.total_s else [])]
        table.caption = Text(one_line("; ".join(shown))) if shown else None
        return table


def latency(seconds: float) -> str:
    """Seconds for people: 12.3 ms, 456 µs."""
    if not math.isfinite(seconds):
        return "-"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _share(state: TaskState) -> float:
    return state.weight * state.best_s if math.isfinite(state.best_s) else 1e9 + state.weight * state.flops


def _gflops(state: TaskState) -> str:
    return f"{state.flops / state.best_s / 1e9:.1f}" if math.isfinite(state.best_s) else "-"


def _slot(batch: Batch) -> str:
    """The gain that the slot promised and that this batch of it brought, where the scheduler predicts."""
    about = batch.info.get("slot", {})
    if not about.get("gain_s"):
        return ""
    return f", gain {latency(about.get('realised_s', 0.0))} of {latency(about['gain_s'])} expected"


def _errors(state: TaskState) -> str:
    return "".join(f", {n} {kind}" for kind, n in sorted(state.errors.items()))
