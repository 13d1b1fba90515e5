"""Event logs read back: the same events for any listener, and the run as its terminal showed it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Batch, Listener, Measurement, Noise, RunInfo, Task, TaskState, VirtualClock
from tt_spec.errors import FileError
from tt_spec.serial import JsonObject

from tt_core.errors import printable
from tt_core.events import log

__all__ = ["Retold", "find", "read", "retell", "whole"]


@dataclass
class Retold:
    """A run as its log tells it.

    Args:
        run: As its listeners were told; the tasks have neither spaces nor payload.
        curve: `(t, model_s)` after each batch: the clock's seconds, the weighted sum of the best latencies.
        reason: Why the run stopped; None if the log ends before: it was killed, or is not over.
        result: What the run returned, as `Result.as_dict`; None if it returned nothing.
        stages: `name`, `began`, `seconds` and `work` of each that is over; none in older logs.
    """

    run: RunInfo
    curve: list[tuple[float, float]] = field(default_factory=list)
    reason: str | None = None
    result: JsonObject | None = None
    stages: list[JsonObject] = field(default_factory=list)

    @property
    def states(self) -> tuple[TaskState, ...]:
        """Each task's last state."""
        return self.run.states


def find(run: str, history: Path) -> Path:
    """The event log of a run of `history`: a file, the beginning of a run's id, or "" for the newest."""
    if os.path.isfile(run):  # unlike pathlib's, it takes any text
        return Path(run)
    where = log.folder(history)
    found = where.glob("*.jsonl") if where is not None and os.path.isdir(where) else []
    logs = sorted(found, key=lambda p: p.stat().st_mtime)
    if not logs:
        raise FileError(f"no event logs in {where}: tt tune --history {history} writes one per run")
    if not run:
        return logs[-1]
    fitting = [p for p in logs if p.stem.startswith(run)]
    if len(fitting) != 1:
        what = f"{len(fitting)} event logs begin" if fitting else "no file has that name, and no event log begins"
        raise FileError(f"run {run!r}: {what} with it in {where} (tt history show {history} lists the runs)")
    return fitting[0]


def read(path: Path) -> list[JsonObject]:
    """The events of a log, in order. A torn last line, of a run that was killed, is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise FileError(f"event log {path}: {e.strerror or e}") from e
    events = []
    for number, line in enumerate(lines, 1):
        try:
            event = printable(json.loads(line))
            if not isinstance(event["event"], str):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            if number == len(lines):
                break
            raise FileError(f"{path}, line {number}: not an event of tt; is this a log that tt tune wrote?") from None
        events.append(event)
    started = next((e for e in events if e["event"] == "run_started"), None)
    if started is None:
        raise FileError(f"event log {path}: the run ended before it began to measure")
    if started.get("format") != log.FORMAT:
        raise FileError(
            f"event log {path}: its format is {started.get('format')}, this tt reads {log.FORMAT};"
            " pip install --upgrade tt-core"
        )
    return events


def retell(
    events: Sequence[JsonObject], listeners: Sequence[Listener] = (), clock: VirtualClock | None = None
) -> Retold:
    """Call the listeners' event hooks, `note(text)` and `stage(...)`, as the run did.

    Args:
        events: Of `read`.
        clock: Set to each event's time before its hooks are called.
    """
    told: Retold | None = None
    tasks: dict[str, TaskState] = {}
    stages: list[JsonObject] = []

    def call(hook: str, *args: Any, **what: Any) -> None:
        for listener in listeners:
            getattr(listener, hook)(*args, **what)

    for e in events:
        if clock is not None:
            clock.t = e.get("at", clock.t)
        if e["event"] == "note":
            call("note", e["text"])
        elif e["event"] == "run_started":
            tasks = {t["name"]: _update(TaskState(_task(t)), t) for t in e["tasks"]}
            states = tuple(tasks.values())
            told = Retold(RunInfo(e["run_id"], tuple(s.task for s in states), e["options"], states), stages=stages)
            call("tt_run_started", run=told.run)
        elif e["event"] == "stage":
            stages.append({k: e[k] for k in ("name", "began", "seconds")} | {"work": e.get("work", [])})
            call("stage", **stages[-1])
        elif told is None:
            continue
        elif e["event"] == "batch_measured":
            state = _update(tasks[e["task"]], e)
            state.curve.append((state.trials, e["at"], state.best_s))
            told.curve.append((e["at"], _number(e["model_s"])))
            results = [_measurement(m, state.task, told.run) for m in e["results"]]
            call("tt_batch_measured", run=told.run, state=state, batch=_batch(e, results), results=results)
        elif e["event"] == "task_finished":
            state = _update(tasks[e["task"]], e)
            state.finished = e["reason"]
            call("tt_task_finished", run=told.run, state=state)
        elif e["event"] == "run_stopped":
            for t in e["tasks"]:
                _update(tasks[t["name"]], t).finished = t["finished"]
            told.reason = e["reason"]
            call("tt_run_stopped", run=told.run, states=list(tasks.values()), reason=e["reason"])
        elif e["event"] == "result":
            told.result = {k: v for k, v in e.items() if k not in ("event", "at")}
    if told is None:
        raise ValueError("events without run_started; take those of `read`")
    return told


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Turn whatever cannot be done with a log's events into an error about the file."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as e:
        raise FileError(f"event log {path}: an event is incomplete or damaged ({e}); was it edited by hand?") from e


def _number(x: float | None) -> float:
    return math.inf if x is None else x


def _task(t: JsonObject) -> Task:
    return Task(t["key"], t["name"], t["op"], t["target"], (), t["flops"], t["weight"], shapes=t["shapes"])


def _update(state: TaskState, e: JsonObject) -> TaskState:
    state.trials, state.restored, state.batches = e["trials"], e["restored"], e["batches"]
    state.best_s, state.last_gain_trial = _number(e["best_s"]), e["last_gain_trial"]
    state.errors = dict(e["all_errors"])
    return state


def _batch(e: JsonObject, results: Sequence[Measurement]) -> Batch:
    b = e["batch"]
    refused = [m.config for m in results if m.error == "invalid" and list(m.config) not in b["codes"]]
    predicted = np.array([math.nan if p is None else p for p in b["predicted"]])
    return Batch(b["id"], _rows(b["codes"]), tuple(b["origin"]), predicted, _rows(refused), e["info"])


def _rows(rows: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([*rows], dtype=np.int64).reshape(len(rows), -1) if rows else np.zeros((0, 0), dtype=np.int64)


def _measurement(m: JsonObject, task: Task, run: RunInfo) -> Measurement:
    same = {"device": run.options.get("device", ""), "versions": run.options.get("versions", {}), "run_id": run.run_id}
    noise = Noise(**m["noise"]) if m.get("noise") else None
    more = {"config": tuple(m["config"]), "seconds": tuple(m["seconds"]), "noise": noise}
    return Measurement(task.key, **{**m, **same, **more})
