"""The result of a run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
from tt_spec import Space, TaskState
from tt_spec.serial import JsonObject

from tt_core.causes import Cause, Causes

__all__ = ["LeftOut", "Result", "TaskResult"]


@dataclass(frozen=True)
class TaskResult:
    """One operator's outcome; `best_s` is the best program's latency, re-timed if a file was written, and `config` its
    knobs, empty for the untuned program."""

    name: str
    op: str
    weight: float
    flops: float
    best_s: float
    trials: int
    restored: int
    errors: dict[str, int]
    config: JsonObject

    @classmethod
    def of(cls, state: TaskState, space: Space, best_s: float, row: np.ndarray | None) -> TaskResult:
        """The outcome of a task whose program `row` `(d,)` of the space takes `best_s`; None is the untuned one."""
        task = state.task
        knobs = {} if row is None else space.decode(row)
        errors = dict(state.errors)
        return cls(task.name, task.op, task.weight, task.flops, best_s, state.trials, state.restored, errors, knobs)

    @property
    def gflops(self) -> float:
        """GFLOP/s of the best program; 0 if there is none."""
        return self.flops / self.best_s / 1e9 if math.isfinite(self.best_s) else 0.0


@dataclass(frozen=True)
class LeftOut:
    """A task that was not chosen; `best_s` is the latency of its best program in the history, which ships, or inf
    where it stays untuned."""

    name: str
    weight: float
    best_s: float


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        reason: Why it stopped.
        estimate_s: Weighted sum of the tuned tasks' best latencies; inf while one has no valid program.
        left_out: The model's other tasks.
        before_s: Median latency of the untuned model, seconds; None if no file was asked for.
        after_s: The same of the tuned file.
        verified: What the file's outputs were compared with.
        untuned: Names of tuned tasks that ship untuned because that is faster; all of them, if the whole model is.
        causes: Why candidates failed, earlier runs' included; collected only if no tuned task has a valid program.
    """

    model: str
    reason: str
    tasks: tuple[TaskResult, ...]
    trials: int
    restored: int
    run_id: str
    seconds: float
    estimate_s: float
    left_out: tuple[LeftOut, ...] = ()
    out: str | None = None
    before_s: float | None = None
    after_s: float | None = None
    verified: dict[str, str] = field(default_factory=dict)
    untuned: tuple[str, ...] = ()
    failure: Exception | None = None
    causes: Causes = field(default_factory=Causes)

    @classmethod
    def of(cls, data: JsonObject) -> Result:
        """The result that `as_dict` described, of this version or another: fields that the data lacks have their
        defaults, those that this version does not know are left out."""

        def built(kind: type, found: JsonObject, **own: object) -> Any:
            known = {k: v for k, v in {**found, **own}.items() if k in {f.name for f in fields(kind)}}
            return kind(**{k: math.inf if v is None and k in ("best_s", "estimate_s") else v for k, v in known.items()})

        tasks = tuple(built(TaskResult, t) for t in data["tasks"])
        left_out = tuple(built(LeftOut, t) for t in data.get("left_out", ()))
        failure = None if data.get("failure") is None else RuntimeError(data["failure"])
        causes = Causes(tuple(built(Cause, c) for c in data.get("causes", {}).get("found", ())))
        untuned = tuple(data.get("untuned", ()))
        return built(cls, data, tasks=tasks, left_out=left_out, failure=failure, causes=causes, untuned=untuned)

    def as_dict(self) -> JsonObject:
        """Plain data for JSON; infinities become None."""
        data = asdict(replace(self, failure=None))  # an exception may refuse to be copied
        data["failure"] = None if self.failure is None else str(self.failure)
        for t, row in zip(self.tasks, data["tasks"], strict=True):
            row["gflops"] = t.gflops
        for row in [*data["tasks"], *data["left_out"]]:
            row["best_s"] = row["best_s"] if math.isfinite(row["best_s"]) else None
        data["estimate_s"] = self.estimate_s if math.isfinite(self.estimate_s) else None
        return data
