"""Jobs as clients ask for them and follow them."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, FiniteFloat, StrictBool, StrictInt, StrictStr
from tt_spec import Measurement, Task, Trial

from tt_service.wire.results import Historic
from tt_service.wire.tasks import TaskWire
from tt_service.wire.values import Config, Key, Name, Text, Wire

__all__ = ["EventOut", "Events", "JobIn", "JobOut", "KnownIn"]


class KnownIn(Wire):
    """A row that the client knows, with its latest verdict: `seconds` per execution, or null and an `error`."""

    task: Key
    config: Config
    seconds: Annotated[FiniteFloat, Field(gt=0)] | None = None
    error: Literal["invalid", "build", "build-timeout", "run", "run-timeout", "wrong-result"] | None = None
    at: FiniteFloat = 0.0

    @classmethod
    def of(cls, m: Measurement) -> KnownIn:
        seconds = m.latency_s if m.error is None else None
        return cls(task=m.task_key, config=[int(c) for c in m.config], seconds=seconds, error=m.error, at=m.at)  # pyright: ignore[reportArgumentType]

    def thing(self, task: Task, device: str) -> Measurement:
        """The measurement. Raises `ValueError` for a row that the task's space does not have."""
        row = np.array(self.config, dtype=np.int64)
        if len(row) != len(task.space.knobs) or not task.space.in_range(row[None]).all():
            raise ValueError(f"known: {self.config} is no row of task {task.name!r}")
        trial = Trial(tuple(self.config), () if self.seconds is None else (self.seconds,), 1, self.error)
        return Measurement.of(trial, task, origin="known", at=self.at, run_id="", device=device, versions={})


class JobIn(Wire):
    """A job as a client asks for it.

    Args:
        recipe: Name of a recipe of the server, or `toml` the text of one. `sets` change both, as `--set` does.
        device: Fingerprint of the machine whose figures are wanted: only agents of that device get rows. "" is any.
        trials, minutes: The budget; at least one of them.
        private: Its rows are for this user alone.
        peak_flops: Of the device, FLOP/s; null is unknown.
        known: What the client's own history has of the tasks on this device: none of it is asked for again. It serves
            this job alone.
    """

    name: Name
    tasks: Annotated[list[TaskWire], Field(min_length=1, max_length=1000)]
    recipe: Name = "tt"
    toml: Annotated[StrictStr, Field(max_length=100_000)] | None = None
    sets: Annotated[list[Text], Field(max_length=100)] = []
    device: Annotated[StrictStr, Field(max_length=500)] = ""
    versions: Annotated[dict[Name, Text], Field(max_length=100)] = {}
    seed: Annotated[StrictInt, Field(ge=0, lt=2**63)] = 0
    trials: Annotated[StrictInt, Field(ge=1, le=10**8)] | None = None
    minutes: Annotated[FiniteFloat, Field(gt=0, le=525_600)] | None = None
    only_heavy: StrictBool = False
    private: StrictBool = False
    peak_flops: Annotated[FiniteFloat, Field(gt=0)] | None = None
    known: Annotated[list[KnownIn], Field(max_length=20_000)] = []

    @cached_property
    def by_key(self) -> dict[str, TaskWire]:
        """Its tasks by their keys."""
        return {t.key: t for t in self.tasks}


class JobOut(Wire):
    """A job as the server tells of it. `state`: "running", "paused", "done", "failed" or "cancelled"."""

    id: str
    name: str
    owner: str
    state: Literal["running", "paused", "done", "failed", "cancelled"]
    reason: str
    recipe: str
    device: str
    trials: int
    best_s: dict[str, float | None]
    tasks: list[str]
    created: float
    ended: float | None
    waiting: str
    agents: list[str]
    events: int


class EventOut(Wire):
    """One event of a job. "rows": `results` were measured; "batch": a batch is over, `results` are the rows without a
    program that were met on the way; "state": `text` is the job's new state; "note": a task left the race."""

    number: int
    what: Literal["rows", "batch", "state", "note"]
    text: str = ""
    task: str = ""
    batch: dict[str, Any] = {}
    results: list[Historic] = []


class Events(Wire):
    """Events after the number that was asked for, and the job's state at this moment."""

    events: list[EventOut]
    job: JobOut
