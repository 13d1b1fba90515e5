"""Linear regression on statements, learned beforehand from many operators."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tt_spec import Group, Prediction, Statements, Task, UserError
from tt_spec.roles import Progress

__all__ = ["LinearModel"]

WIDTH = 164


class LinearModel:
    """Ridge regression of labels on a program's mean statement, both as differences from their task's mean.

    Source: Hoerl and Kennard (1970), Ridge regression.

    A round of `pretrain` adds one task's moments; `fit` adds those of the run's own rows.

    Args:
        weights: A file that `tt train` wrote. (default: None)
        ridge: Penalty, in rows. (default: 10)
    """

    inputs: Literal["statements"] = "statements"
    shared = True

    def __init__(self, weights: str | Path | None = None, ridge: float = 10.0) -> None:
        self.weights, self.ridge = weights, ridge

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        moments = self._learned().copy()
        for _, X, y in groups:
            moments += _moments(X, y)
        self.own_ = self._solve(moments)

    def predict(self, task: Task, X: Any) -> Prediction:
        w = getattr(self, "own_", None)
        mean = _means(X) @ (self._solve(self._learned()) if w is None else w)
        return Prediction(mean, np.zeros(len(X)))

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.weights, self.own_, done = None, None, 0 if start is None else int(start["done"])
        self.learned_ = np.zeros((WIDTH, WIDTH + 1)) if start is None else np.array(start["moments"])
        while True:
            if done and not report(Progress(done, len(groups), 0.0, self._state(done))):
                return
            if done == len(groups):
                return
            self.learned_ = self.learned_ + _moments(*groups[done][1:])
            done += 1

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        path.write_text(json.dumps({"acme-linear": self._learned().tolist(), "card": dict(card)}))

    def _state(self, done: int) -> Callable[[], dict[str, np.ndarray]]:
        state: dict[str, np.ndarray] = {"moments": self._learned(), "done": np.array(done)}
        return lambda: state

    def _learned(self) -> np.ndarray:
        """Moments `(164, 165)`; the file is read when they are first asked for."""
        known: np.ndarray | None = getattr(self, "learned_", None)
        if known is None:
            known = np.zeros((WIDTH, WIDTH + 1)) if self.weights is None else _read(self.weights)
            self.learned_ = known
        return known

    def _solve(self, moments: np.ndarray) -> np.ndarray:
        return np.linalg.solve(moments[:, :WIDTH] + self.ridge * np.eye(WIDTH), moments[:, WIDTH])


def _read(path: str | Path) -> np.ndarray:
    try:
        return np.array(json.loads(Path(path).read_text())["acme-linear"]).reshape(WIDTH, WIDTH + 1)
    except (OSError, ValueError, LookupError, TypeError) as e:
        raise UserError(f"weights {path} cannot be used ({type(e).__name__})") from e


def _means(X: Statements) -> np.ndarray:
    found = [X.values[a:b].mean(axis=0) if b > a else np.zeros(WIDTH) for a, b in pairwise(X.offsets)]
    return np.array(found).reshape(-1, WIDTH)


def _moments(X: Statements, y: np.ndarray) -> np.ndarray:
    """Sums of products `(164, 164)` of features, and with labels `(164, 1)`, beside each other."""
    M = _means(X)
    if not len(M):
        return np.zeros((WIDTH, WIDTH + 1))
    M, y = M - M.mean(axis=0), y - y.mean()
    return M.T @ np.column_stack([M, y])
