"""A handful of trials for what hardly matters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tt_spec.clock import Clock
from tt_spec.errors import ORIGIN, whose
from tt_spec.roles import Budgeted, Foresees, Overlaps, Peaked, Scheduler
from tt_spec.shares import heavy, shares
from tt_spec.types import Slot, TaskState

__all__ = ["LightScheduler"]


class LightScheduler:
    """A scheduler with a cap on the trials of light tasks.

    A task is light while the fewest tasks that hold `portion` of the model's latency do without it. Latencies are the
    best measured so far, so that a task whose share grows, because the others became faster, gets slots again. To the
    scheduler inside, a light task at its cap looks finished; when all others are finished too, the run is over.

    Args:
        scheduler: Decides among the others.
        trials: The most trials of a light task, those from the store included. (default: 16)
        portion: See `tt_spec.shares.heavy`. (default: 0.95)
        together: The most that all light tasks may take of a run's budget, each at least one trial. (default: 0.2)
    """

    def __init__(self, scheduler: Scheduler, trials: int = 16, portion: float = 0.95, together: float = 0.2) -> None:
        self.scheduler, self.trials, self.portion, self.together = scheduler, trials, portion, together
        self.rows_ = math.inf
        setattr(self, ORIGIN, whose("scheduler", scheduler))  # what fails in it is the scheduler's

    def budget(self, rows: float) -> None:
        self.rows_ = rows
        if isinstance(self.scheduler, Budgeted):
            self.scheduler.budget(rows)

    def peak(self, flops: float) -> None:
        if isinstance(self.scheduler, Peaked):
            self.scheduler.peak(flops)

    def ahead(self, states: Sequence[TaskState], clock: Clock, slot: Slot, rows: int) -> list[Slot]:
        if not isinstance(self.scheduler, Foresees):
            return []
        room = self.room(states)
        return [_cut(s, room) for s in self.scheduler.ahead(_racing(states, room), clock, slot, rows)]

    def beside(self, states: Sequence[TaskState], clock: Clock, slot: Slot) -> Slot | None:
        if not isinstance(self.scheduler, Overlaps):
            return None
        room = self.room(states)
        chosen = self.scheduler.beside(_racing(states, room), clock, slot)
        return _cut(chosen, room) if isinstance(chosen, Slot) and 0 <= chosen.task < len(states) else chosen

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        room = self.room(states)
        slot = self.scheduler.next(_racing(states, room), clock)
        return _cut(slot, room) if isinstance(slot, Slot) and 0 <= slot.task < len(states) else slot

    def room(self, states: Sequence[TaskState]) -> list[float]:
        """Trials that each task may still have: inf for the heavy ones."""
        if not states:
            return []
        matters = heavy(shares([s.task for s in states], [s.best_s for s in states]), self.portion)
        light = int((~matters).sum())
        whole = self.rows_ + sum(s.trials for s in states)
        allowance = max(1, self.trials if math.isinf(whole) else int(self.together * whole / max(light, 1)))
        return [
            math.inf if m else max(0, min(self.trials - s.restored - s.trials, allowance - s.trials))
            for m, s in zip(matters, states, strict=True)
        ]


def _racing(states: Sequence[TaskState], room: Sequence[float]) -> list[TaskState]:
    """The states, those of tasks without room finished."""
    pairs = zip(states, room, strict=True)
    return [dataclasses.replace(s, finished=s.finished or "light") if r < 1 else s for s, r in pairs]


def _cut(slot: Slot, room: Sequence[float]) -> Slot:
    """The slot, within its task's room."""
    if math.isinf(room[slot.task]):
        return slot
    left = int(room[slot.task])
    trials = left if slot.trials is None else min(slot.trials, left)
    return dataclasses.replace(slot, trials=trials, info={**slot.info, "light": left})
