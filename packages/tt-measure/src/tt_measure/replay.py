"""Rows through a backend's `realise` or `features`, split over all workers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from tt_spec.types import Task

from tt_measure.process import Job, Outcome, Process, WorkerError
from tt_measure.team import Team

__all__ = ["Part", "replay"]

ROWS = 64


@dataclass(frozen=True)
class Part:
    """Neighbouring rows `start` to `stop` and what became of them: the backend's answer, or why there is none. A
    part without an answer is a single row."""

    start: int
    stop: int
    value: Any = None
    why: str | None = None


def replay(team: Team, kind: str, task: Task, codes: np.ndarray, limit_s: float) -> list[Part]:
    """All parts, in order. Where the backend fails on several rows, each of them is tried alone.

    Args:
        kind: "realise" or "features".
        limit_s: Of one call to the backend.
    """
    codes = np.ascontiguousarray(codes, dtype=np.int64)
    size = max(1, min(ROWS, -(-len(codes) // (2 * team.size))))
    todo = deque((i, min(i + size, len(codes))) for i in range(0, len(codes), size))
    hands: dict[Process, tuple[int, int, Job]] = {}
    lost: dict[tuple[int, int], int] = {}
    parts: list[Part] = []
    while todo or hands:
        team.revive()
        for p in team.idle():
            if todo and p not in hands:
                start, stop = todo.popleft()
                handle = team.handle(p, task)
                hands[p] = start, stop, team.submit(p, kind, handle, codes[start:stop], limit_s)
        if team.busy():
            team.pump()
        for p, (start, stop, job) in list(hands.items()):
            outcome = job.outcome
            if outcome is None:
                continue
            del hands[p]
            if outcome.verdict == "unopened" or outcome.stage == "open":
                raise WorkerError(f"the backend cannot open task {task.name!r}: {outcome.text}")
            unbegun = outcome.verdict == "lost" and not outcome.stage
            if outcome.verdict == "done":
                parts.append(Part(start, stop, outcome.value))
            elif unbegun and lost.setdefault((start, stop), 0) < 2:
                lost[start, stop] += 1
                todo.appendleft((start, stop))
            elif stop - start > 1:
                todo.extendleft((i, i + 1) for i in reversed(range(start, stop)))
            else:
                parts.append(Part(start, stop, why=_why(outcome, limit_s)))
    return sorted(parts, key=lambda part: part.start)


def _why(outcome: Outcome, limit_s: float) -> str:
    return f"replaying it took longer than {limit_s:g} s" if outcome.reason == "time" else outcome.text
