"""Rows through a backend's `realise` or `features`, split over all workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tt_spec.types import Task

from tt_measure.process import Ending, Job, Process, WorkerError
from tt_measure.team import Team

__all__ = ["Part", "in_parts"]

ROWS = 64

FEW = {"realise": 1, "features": ROWS}
"""Rows that are not split: features are computed for many rows at once, in hardly more time than for one."""


@dataclass(frozen=True)
class Part:
    """Neighbouring rows `start` to `stop` and what became of them: the backend's answer, or why there is none. A
    part without an answer is a single row."""

    start: int
    stop: int
    value: Any = None
    why: str | None = None


def in_parts(
    team: Team,
    kind: str,
    task: Task,
    codes: np.ndarray,
    limit_s: float,
    beside: Callable[[], None] = lambda: None,
) -> list[Part]:
    """All parts, in order. Where the backend fails on several rows, each of them is tried alone.

    Args:
        kind: "realise" or "features".
        limit_s: Of one call to the backend.
        beside: Called again and again when all parts are given out: it may give other work to idle workers.
    """
    codes = np.ascontiguousarray(codes, dtype=np.int64)
    size = max(FEW[kind], min(ROWS, -(-len(codes) // (2 * team.size))))
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
        if not todo:
            beside()
        if team.busy():
            team.pump()
        for p, (start, stop, job) in list(hands.items()):
            ending = job.ending
            if ending is None:
                continue
            del hands[p]
            innocent = ending.unbegun or ending.reason == "killed" or (ending.verdict == "lost" and not ending.stage)
            if ending.verdict == "unopened" or (ending.stage == "open" and not innocent):
                raise WorkerError(f"the backend cannot open task {task.name!r}: {ending.text}")
            if ending.verdict == "done":
                parts.append(Part(start, stop, ending.value))
            elif innocent and lost.setdefault((start, stop), 0) < 2:
                lost[start, stop] += 1
                todo.appendleft((start, stop))
            elif stop - start > 1:
                todo.extendleft((i, i + 1) for i in reversed(range(start, stop)))
            else:
                parts.append(Part(start, stop, why=_why(ending, limit_s)))
    return sorted(parts, key=lambda part: part.start)


def _why(ending: Ending, limit_s: float) -> str:
    return f"making its program took longer than {limit_s:g} s" if ending.reason == "time" else ending.text
