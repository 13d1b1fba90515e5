"""Pieces that know every result: the upper bound of any comparison, for replay only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from tt_spec import Clock, Context, Entry, Proposal, Slot, Task, TaskState, hookimpl, tokens
from tt_spec.rng import draw

from tt_bench.recording import Recorded

__all__ = ["OraclePieces", "OracleScheduler", "OracleSearcher", "Ranks"]


@runtime_checkable
class Ranks(Protocol):
    """A searcher that knows every result of a task."""

    def ranked(self, task: Task) -> np.ndarray:
        """Valid rows, fastest first, `(n, d)`."""
        ...


class OracleSearcher:
    """Proposes the fastest recorded rows first.

    Args:
        recorded: Whose rows are known; tasks that are not among them get random rows.
    """

    def __init__(self, recorded: Sequence[Recorded] = ()) -> None:
        self.recorded = {(p.task.key, p.space.key): p for p in recorded}

    def propose(self, ctx: Context, n: int) -> Proposal:
        rows = self.ranked(ctx.task)
        fresh = rows[ctx.fresh(rows)][:n]
        seen = ctx.seen.union(tokens(fresh))
        codes = np.concatenate([fresh, draw(ctx.space, seen, n - len(fresh), ctx.rng)])
        return Proposal(codes, -np.arange(len(codes), dtype=float))

    def ranked(self, task: Task) -> np.ndarray:
        """Valid rows, fastest first, `(n, d)`; a pipeline that measures them first has no regret."""
        part = self.recorded.get((task.key, task.space.key))
        if part is None:
            return np.empty((0, len(task.space.knobs)), dtype=np.int64)
        order = np.argsort(part.latency, kind="stable")
        return part.rows[order[np.isfinite(part.latency[order])]]


class OracleScheduler:
    """Gives the slot to the task that can still save the model the most time.

    Args:
        recorded: Whose best latencies are known.
        trials: Of a slot. (default: 16)
    """

    def __init__(self, recorded: Sequence[Recorded] = (), trials: int = 16) -> None:
        self.best = {(p.task.key, p.space.key): p.best_s for p in recorded}
        self.trials = trials

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        left = [i for i, s in enumerate(states) if s.finished is None]
        if not left:
            return None
        chosen = max(left, key=lambda i: (self._gain(states[i]), -states[i].trials))
        gain = self._gain(states[chosen])
        return Slot(chosen, trials=self.trials, gain_s=gain if math.isfinite(gain) else 0.0)

    def _gain(self, s: TaskState) -> float:
        if not s.trials:
            return math.inf
        best = self.best.get((s.task.key, s.task.space.key), s.best_s)
        return max(0.0, s.weight * (s.best_s - best)) if math.isfinite(s.best_s) else 0.0


class OraclePieces:
    """Hooks that bring searcher, scheduler and recipe `oracle` over these recordings."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self.recorded = recorded

    @hookimpl
    def tt_searchers(self) -> list[Entry]:
        return [Entry("oracle", lambda: OracleSearcher(self.recorded), "knows every result; for replay only")]

    @hookimpl
    def tt_schedulers(self) -> list[Entry]:
        return [
            Entry(
                "oracle",
                lambda trials=16: OracleScheduler(self.recorded, trials),
                "knows every optimum; for replay only",
            )
        ]

    @hookimpl
    def tt_recipes(self) -> list[Entry]:
        recipe = {"batch": 16, "searcher": {"piece": "oracle"}, "scheduler": {"piece": "oracle"}}
        return [Entry("oracle", lambda: recipe, "knows every result; for replay only")]
