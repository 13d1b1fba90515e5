"""A run's events as JSON lines: on a stream for programs, and in a file beside the history for later."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tt_spec import Batch, Clock, Listener, Measurement, RunInfo, TaskState, WallClock
from tt_spec.logfiles import folder
from tt_spec.serial import JsonObject

__all__ = ["FORMAT", "EventLog", "JsonLines", "folder", "strict"]

FORMAT = 1
"""Version of the lines; a reader refuses others. Adding a field is no new version: readers ignore what they do not know
and take the default of what is missing."""


class _Lines(Listener, ABC):
    """Every event as one strict JSON object.

    Each has `event` and `at` (seconds since the epoch, by the run's clock). Infinite and undefined numbers are null;
    arrays are lists. `tt_core.events.retell` turns the lines into events again.
    """

    def __init__(self, clock: Clock | None) -> None:
        self.clock = clock or WallClock()

    @abstractmethod
    def write(self, line: str) -> None:
        """Put a line, its end included, where it belongs, before the run goes on."""

    def tt_run_started(self, run: RunInfo) -> None:
        known = {s.task.key: s for s in run.states}
        tasks = [
            {
                "name": t.name,
                "key": t.key,
                "op": t.op,
                "target": t.target,
                "shapes": t.shapes,
                "flops": t.flops,
                "weight": t.weight,
                **_state(known.get(t.key, TaskState(t))),
            }
            for t in run.tasks
        ]
        self.emit("run_started", format=FORMAT, run_id=run.run_id, tasks=tasks, options=run.options)

    def tt_batch_measured(self, run: RunInfo, state: TaskState, batch: Batch, results: list[Measurement]) -> None:
        self.emit(
            "batch_measured",
            at=state.curve[-1][1] if state.curve else None,
            task=state.task.name,
            **_state(state),
            measured=len(results),
            errors=dict(Counter(m.error for m in results if m.error)),
            model_s=sum(s.weight * s.best_s for s in run.states) if run.states else None,
            info=batch.info,
            batch={"id": batch.id, "codes": batch.codes, "origin": batch.origin, "predicted": batch.predicted},
            results=[_result(m) for m in results],
        )

    def tt_task_finished(self, run: RunInfo, state: TaskState) -> None:
        self.emit("task_finished", task=state.task.name, **_state(state), reason=state.finished)

    def tt_run_stopped(self, run: RunInfo, states: list[TaskState], reason: str) -> None:
        tasks = [{"name": s.task.name, **_state(s), "finished": s.finished} for s in states]
        self.emit("run_stopped", reason=reason, trials=sum(s.trials for s in states), tasks=tasks)

    def note(self, text: str) -> None:
        """A line that was said around the tuning."""
        self.emit("note", text=text)

    def stage(self, name: str, began: float, seconds: float, work: Sequence[Sequence[Any]] = ()) -> None:
        """A stage that is over."""
        about: dict[str, Any] = {"work": work} if work else {}
        self.emit("stage", name=name, began=began, seconds=seconds, **about)

    def emit(self, event: str, *, at: float | None = None, **what: Any) -> None:
        """Write a line of any event, e.g. `emit("result", **result.as_dict())`."""
        line = {"event": event, "at": self.clock.now() if at is None else at, **what}
        self.write(json.dumps(strict(line), allow_nan=False) + "\n")


class JsonLines(_Lines):
    """JSON lines on a stream.

    Args:
        stream: Where the lines go.
        clock: The run's clock; None is the machine's.
    """

    def __init__(self, stream: TextIO, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.stream = stream

    def write(self, line: str) -> None:
        self.stream.write(line)
        self.stream.flush()


class EventLog(_Lines):
    """The event log of a run: JSON lines in a file of its own.

    The file and its folder are made at the first event. Each line reaches the operating system before the run goes
    on, so that killing the run costs at most the line being written. A log that cannot be written (a full disk) says
    so once and ends; the run goes on.

    Args:
        path: The file; None keeps nothing.
        clock: The run's clock; None is the machine's.
        warn: Told in one line why the log ended early.
    """

    def __init__(
        self, path: Path | None, clock: Clock | None = None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(clock)
        self.path, self.warn = path, warn
        self._file: TextIO | None = None
        self._ended = False

    def write(self, line: str) -> None:
        if self._ended or self.path is None:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(exist_ok=True)
                self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - until the run ends
            self._file.write(line)
            self._file.flush()
        except OSError as e:
            self.close()
            self.warn(f"the event log {self.path} ends here ({e.strerror or e}); the run goes on without it")

    def close(self) -> None:
        """Close the file; later events are not logged."""
        self._ended = True
        if self._file is not None:
            with suppress(OSError):  # what could not be written before cannot be written now
                self._file.close()


def strict(x: object) -> object:
    """The value `x` as JSON can say it: numpy's numbers as numbers, arrays, tuples and sets as lists, infinities and
    NaN as null, anything else as its text."""
    if x is None or isinstance(x, bool | int | str):
        return x
    if isinstance(x, float | np.floating):
        return float(x) if math.isfinite(x) else None
    if isinstance(x, np.generic):
        return strict(x.item()) if isinstance(x, np.bool_ | np.integer) else str(x)
    if isinstance(x, np.ndarray):
        return strict(x.tolist())
    if isinstance(x, Mapping):
        return {str(k): strict(v) for k, v in x.items()}
    if isinstance(x, Sequence | set | frozenset) and not isinstance(x, bytes | bytearray):
        return [strict(v) for v in x]
    return str(x)


def _state(s: TaskState) -> JsonObject:
    return {
        "trials": s.trials,
        "restored": s.restored,
        "batches": s.batches,
        "best_s": s.best_s,
        "all_errors": s.errors,
        "last_gain_trial": s.last_gain_trial,
    }


def _result(m: Measurement) -> JsonObject:
    """Without the knobs, which `config` names, and what the run's first line says once for all."""
    return {
        "space_key": m.space_key,
        "config": m.config,
        "seconds": m.seconds,
        "runs": m.runs,
        "error": m.error,
        "why": m.why,
        "cost": m.cost,
        "origin": m.origin,
        "at": m.at,
        "noise": None if m.noise is None else vars(m.noise),
    }
