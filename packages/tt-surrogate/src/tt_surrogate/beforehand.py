"""Trees that learned from many tasks beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec.types import Statements, Task

from tt_surrogate import weights as files
from tt_surrogate.pack_sum import program_ids
from tt_surrogate.portable import Portable

__all__ = ["Beforehand", "as_bytes", "booster_of", "check", "finite", "load", "rows_of"]

WIDTHS = (0, files.STATEMENT, files.OPERATOR)
"""Columns of a statement that trees may have learned from; 0 is over knobs."""


@dataclass(frozen=True)
class Beforehand:
    """Trees that were grown beforehand, and for which tasks it holds.

    Args:
        booster: XGBoost's.
        inputs: "knobs" or "statements".
        objective: "rank" or "regression".
        ops: Kinds of operator that it learned from; of others it knows nothing.
        columns: Over knobs, the names of its columns, see `tt_surrogate.portable`.
        operator: Over statements, whether the operator's features follow each statement's.
        card: What it learned from.
        raw: The booster's own bytes; predicting may change what XGBoost writes.
    """

    booster: Any
    inputs: str
    objective: str
    ops: tuple[str, ...]
    columns: tuple[str, ...] = ()
    operator: bool = True
    card: Mapping[str, Any] = field(default_factory=dict)
    raw: np.ndarray | None = None
    _columns: dict[tuple[str, str], Portable] = field(default_factory=dict, repr=False, compare=False)

    def knows(self, task: Task) -> bool:
        """Whether it learned from operators like the task's."""
        return task.op in self.ops and (self.inputs == "statements" or self._portable(task).known)

    def margins(self, task: Task, X: Any) -> np.ndarray:
        """Scores of rows `(n,)`, or of statements `(total,)`; 0 for a task that it does not know."""
        count = len(X.values) if isinstance(X, Statements) else len(X)
        if not count or not self.knows(task):
            return np.zeros(count)
        rows = rows_of(X, self.operator) if isinstance(X, Statements) else self._portable(task)(finite(X))
        return self.booster.inplace_predict(rows, predict_type="margin", validate_features=False).astype(np.float64)

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        options = {name: getattr(self, name) for name in ("inputs", "objective", "ops", "columns", "operator")}
        width = 0 if self.inputs == "knobs" else files.OPERATOR if self.operator else files.STATEMENT
        tensors = {"trees": as_bytes(self.booster) if self.raw is None else self.raw}
        files.write(path, files.Weights("xgb", options, tensors, dict(card), width))

    def _portable(self, task: Task) -> Portable:
        key = (task.key, task.space.key)
        if key not in self._columns:
            self._columns[key] = Portable(task, self.columns)
        return self._columns[key]


def load(weights: str | Path, inputs: str, objective: str) -> Beforehand | None:
    """The trees in a file, or the "shipped" ones: None, with a warning, where those cannot be read.

    Raises `WeightsError` where the model cannot use a named file.
    """
    path = files.file_of(weights, inputs)
    try:
        found = _read(str(path), path.stat().st_mtime_ns if path.is_file() else 0)
    except files.WeightsError as e:
        files.forgive(weights, e)
        return None
    if (found.inputs, found.objective) != (inputs, objective):
        raise files.WeightsError(
            f"weights {path} are for inputs={found.inputs}, objective={found.objective};"
            f" this model has inputs={inputs}, objective={objective}"
        )
    return found


def check(weights: str | Path) -> None:
    """Raise `WeightsError` unless the named file can be read; of trees only XGBoost, which takes long to load, can say
    more."""
    if weights != "shipped":
        files.read(weights, "xgb", WIDTHS)


@lru_cache(maxsize=4)
def _read(path: str, changed: int) -> Beforehand:
    """The file as it was then; one model per task reads it once."""
    found = files.read(path, "xgb", WIDTHS)
    options = found.options
    try:
        return Beforehand(
            booster_of(found.tensors["trees"]),
            str(options["inputs"]),
            str(options["objective"]),
            tuple(options["ops"]),
            tuple(options["columns"]),
            bool(options["operator"]),
            found.card,
            found.tensors["trees"],
        )
    except (KeyError, TypeError, ValueError) as e:  # XGBoost's error is a ValueError
        text = " ".join(str(e).split())[:100]
        raise files.WeightsError(f"weights {path} are no trees that this XGBoost reads ({text}): train again") from e


def as_bytes(booster: Any) -> np.ndarray:
    """XGBoost's own bytes, `(n,) uint8`."""
    return files.from_bytes(booster.save_raw("ubj"))


def booster_of(raw: np.ndarray) -> Any:
    """The booster that `as_bytes` wrote."""
    import xgboost

    booster = xgboost.Booster({"nthread": 1, "verbosity": 0})
    booster.load_model(bytearray(np.ascontiguousarray(raw).tobytes()))
    return booster


def rows_of(X: Statements, operator: bool) -> np.ndarray:
    """Features of each statement, `(total, 164)` or, with the operator's, `(total, 174)` float32."""
    values = finite(X.values)
    if not operator:
        return values
    return np.concatenate([values, finite(X.operator)[program_ids(X.offsets)]], axis=1)


def finite(X: Any) -> np.ndarray:
    """X as float32, with NaN, which XGBoost takes as missing, for everything that is not a finite number."""
    with np.errstate(over="ignore"):
        X = np.asarray(X, dtype=np.float32)
    ok = np.isfinite(X)
    return X if ok.all() else np.where(ok, X, np.float32("nan"))
