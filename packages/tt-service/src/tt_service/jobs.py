"""Jobs as the server holds them while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tt_spec import Task
from tt_spec.types import Bar

from tt_service import wire
from tt_service.journal import JobRecord
from tt_service.runner import Runner

__all__ = ["ENDED", "Job", "Unknown", "find", "settle"]

ENDED = ("done", "failed", "cancelled")
"""States that are the last."""

SHORTEST = 6
"""Characters of an id's beginning that may stand for it."""


class Unknown(Exception):
    """There is no such thing, or not for this user."""


@dataclass
class Job:
    """A job on the desk.

    Args:
        calls: The process's number of each call, by the broker's id.
        bars: The bar of each task as it was last asked.
        begun: Rows of each task that were handed out before they were asked for.
        best_s: Seconds of the fastest program that the job measured, by task.
        events: Number of its last event.
        began: When its process began, by the clock that never steps.
        halting: Why its process is to halt; None while it is not.
        ready: Done once the process has said whether the job can be run.
        refused: Why it cannot be run.
    """

    record: JobRecord
    spec: wire.JobIn
    runner: Runner | None = None
    tasks: dict[str, Task] = field(default_factory=dict)
    evaluator: wire.PieceWire = field(default_factory=lambda: wire.PieceWire(piece="fixed"))
    calls: dict[str, int] = field(default_factory=dict)
    bars: dict[str, Bar] = field(default_factory=dict)
    begun: dict[str, set[tuple[int, ...]]] = field(default_factory=dict)
    best_s: dict[str, float] = field(default_factory=dict)
    events: int = 0
    began: float = 0.0
    halting: str | None = None
    ready: Future[None] = field(default_factory=Future)
    refused: str | None = None

    @property
    def private_to(self) -> str | None:
        """The only user who sees its rows; None for all."""
        return self.record.owner if self.spec.private else None

    @property
    def ended(self) -> bool:
        """Whether it is over for good."""
        return self.record.state in ENDED


def find(jobs: Mapping[str, Job], job_id: str, owner: str | None) -> Job:
    """A job by its id, or by the beginning of it. Raises `Unknown` for another user's; None may see all."""
    found = [j for i, j in jobs.items() if i == job_id or (len(job_id) >= SHORTEST and i.startswith(job_id))]
    mine = [j for j in found if owner is None or j.record.owner == owner]
    if len(mine) != 1:
        raise Unknown(f"there is no job {job_id!r}")
    return mine[0]


def settle(future: Future[Any], value: Any) -> None:
    """Give a future its result, unless it is done."""
    if not future.done():
        future.set_result(value)
