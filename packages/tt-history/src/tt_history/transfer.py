"""A search that starts from history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from tt_spec.types import Foreign, Task

from tt_history.nearest import distance
from tt_history.translate import nearest_row, translated

__all__ = ["FromHistory", "thin"]

_CHANCE = 1.645
"""One-sided 5 % point of the normal law."""


class FromHistory:
    """Foreign rows train a first cost model: this workload's on other devices, those of the nearest tasks in the
    history, and those of this run's other tasks.

    Its say fades as 1/2^(n/half), n the task's trials, and is no larger than the share of the task's own ranks that it
    explains: what is lent may say nothing of the part of the space where the best rows are. It is dropped where it
    ranks the task's first rows no better than chance: the paper's own complaint is that tasks of differing shapes
    mislead. To tell, its first batches have random rows too. A few rows of the first batch are the neighbours' best,
    each as the nearest legal row of the task's space. Knobs join where names and kinds agree.

    Source: Chen et al. (2018), AutoTVM, arXiv:1805.08166, section 4; Chen et al. (2024), Optimizing Neural Network
    Compilation via Adaptive Workflow with AutoTVM, section III. AutoTVM ignores fewer than 500 records and forgets
    them with the first refit; here any number counts.

    Args:
        most: Foreign rows to learn from, at most. (default: 2000)
        statements: The same for a model that reads statements, whose features cost 15 ms each. (default: 64)
        best: Rows of the first batch that are neighbours' best, at most. (default: 4)
        within: The largest distance of a task to learn from, in doublings; see `tt history nearest`. (default: 1.5:
            layers of one network lie within it, and from 2.3 on rows did harm, see studies/adaptive_workflow)
        half: Trials of the task after which foreign rows weigh half; AutoTVM's. (default: 64)
        judge: Rows of the task after which a foreign model is judged first. (default: 32)
        random_share: Of the task's batches before it has a program of its own. (default: 0.25)
    """

    def __init__(
        self,
        most: int = 2000,
        statements: int = 64,
        best: int = 4,
        within: float = 1.5,
        half: float = 64.0,
        judge: int = 32,
        random_share: float = 0.25,
    ) -> None:
        if min(most, statements) < 1 or best < 0 or judge < 2:
            raise ValueError(
                "most and statements must be at least 1, best at least 0, judge at least 2;"
                f" got most={most}, statements={statements}, best={best}, judge={judge}"
            )
        if not (half > 0 and within >= 0 and 0 <= random_share <= 1):
            raise ValueError(
                "half must be above 0, within at least 0 and random_share in [0, 1];"
                f" got half={half}, within={within}, random_share={random_share}"
            )
        self.most, self.statements, self.best, self.within = most, statements, best, within
        self.half, self.judge, self.random_share = half, judge, random_share

    def choose(self, task: Task, lent: Sequence[Foreign], inputs: Literal["knobs", "statements"]) -> list[Foreign]:
        """The nearest with a valid row; of a long one its best rows, and a sample of the others."""
        left = self.most if inputs == "knobs" else self.statements
        found = self._near(task, lent)
        chosen = []
        for i, f in enumerate(found):
            keep = thin(f.seconds, min(left, max(32, left // 2 if i + 1 < len(found) else left)))
            if len(keep):
                chosen.append(Foreign(f.task, f.rows[keep], f.seconds[keep], f.source))
            left -= len(keep)
        return chosen

    def encode(self, task: Task, foreign: Foreign) -> tuple[np.ndarray, np.ndarray] | None:
        X, _, joined = translated(task.space, foreign.task.space, foreign.rows)
        return (X[joined], joined) if joined.any() else None

    def rows(self, task: Task, lent: Sequence[Foreign], rng: np.random.Generator) -> np.ndarray:
        """The best row of each of the nearest, then the second best, and so on until there are enough."""
        found: dict[tuple[int, ...], None] = {}
        near = self._near(task, lent)
        for place in range(self.best):
            for f in near:
                order = np.argsort(f.seconds, kind="stable")[: int(np.isfinite(f.seconds).sum())]
                if place >= len(order) or len(found) >= self.best:
                    continue
                X, known, joined = translated(task.space, f.task.space, f.rows[order[place]][None])
                row = nearest_row(task.space, X[0], known[0], rng) if joined[0] else None
                if row is not None:
                    found.setdefault(tuple(row.tolist()))
        return np.array(list(found), dtype=np.int64).reshape(-1, len(task.space.knobs))

    def weight(self, trials: int) -> float:
        """1/2^(n/half), and 0 once that is below 1/32."""
        weight = 2.0 ** (-trials / self.half)
        return weight if weight >= 1 / 32 else 0.0

    def trust(self, predicted: np.ndarray, y: np.ndarray) -> float:
        """The share of the ranks' variance that it explains; all while fewer than `judge` / 2 rows can tell."""
        if len(y) < self.judge / 2 or np.ptp(y) == 0:
            return 1.0
        return max(0.0, _spearman(predicted, y)) ** 2

    def useless(self, predicted: np.ndarray, y: np.ndarray) -> str | None:
        n = len(y)
        if n < self.judge or np.ptp(y) == 0:
            return None
        rho = _spearman(predicted, y)
        if rho * math.sqrt(n - 1) > _CHANCE:
            return None
        return f"ranks the task's first {n} rows no better than chance (Spearman {rho:.2f})"

    def _near(self, task: Task, lent: Sequence[Foreign]) -> list[Foreign]:
        """Those within reach, nearest first, that have a valid row."""
        found = [(_apart(task, f), i) for i, f in enumerate(lent) if np.isfinite(f.seconds).any()]
        return [lent[i] for apart, i in sorted(found) if apart <= self.within]


def thin(seconds: np.ndarray, n: int) -> np.ndarray:
    """Indices of at most `n` rows: the best half, and an even sample of the others, failures too."""
    if len(seconds) <= n:
        return np.arange(len(seconds))
    order = np.argsort(seconds, kind="stable")
    best, others = order[: n // 2], order[n // 2 :]
    return np.sort(np.concatenate([best, others[np.linspace(0, len(others) - 1, n - len(best)).round().astype(int)]]))


def _apart(task: Task, f: Foreign) -> float:
    if f.task.key == task.key or (task.workload and f.task.workload == task.workload):
        return 0.0
    return distance((task.flops, task.shapes), (f.task.flops, f.task.shapes))


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; ties have their mean rank, and 0 is said where all are tied."""
    x, y = _ranks(np.asarray(a)), _ranks(np.asarray(b))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(x: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[where]
