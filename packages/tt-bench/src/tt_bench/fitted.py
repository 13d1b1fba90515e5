"""A history that is no recording, replayed: a model fitted to its rows answers for those that were never measured."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Measurement, Plugins, StoreError, Task, token
from tt_spec.roles import Remembers, capabilities

from tt_bench.errors import BenchError
from tt_bench.recording import Recorded
from tt_bench.replay import Replay

__all__ = ["LEAST", "Fitted", "parts_of"]

LEAST = 64
"""Valid rows of a task without which nothing is fitted to it."""

_NEAR = 5
_MOST = 4000


class Fitted(Replay):
    """A replay in which unknown rows are what their nearest measured ones are.

    The log of a row's seconds is the mean of its `5` nearest rows', weighted by 1 / distance in the space's features,
    each in units of its spread; where most of them failed it fails as the nearest did. So no row is faster than the
    best that was measured, and its runs are as noisy as its nearest row's.

    Source: Shepard (1968), A two-dimensional interpolation function for irregularly-spaced data.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guessed: dict[tuple[str, bytes], Measurement] = {}
        self._columns: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def _known(self, part: Recorded, row: np.ndarray) -> Measurement | None:
        known = super()._known(part, row)
        if known is not None or not len(part.rows):
            return known
        key = (part.task.key, token(row))
        if key not in self._guessed:
            self._guessed[key] = self._guess(part, row)
        return self._guessed[key]

    def _guess(self, part: Recorded, row: np.ndarray) -> Measurement:
        if part.task.key not in self._columns:
            X = part.task.space.encode(part.rows)
            spread = X.std(axis=0)
            spread[spread == 0] = 1.0
            self._columns[part.task.key] = X / spread, spread
        X, spread = self._columns[part.task.key]
        apart = np.sqrt(((X - part.task.space.encode(row[None])[0] / spread) ** 2).sum(axis=1))
        near = np.argsort(apart, kind="stable")[:_NEAR]
        weight = 1.0 / (apart[near] + 1e-6)
        works = np.isfinite(part.latency[near])
        config = tuple(int(c) for c in row)
        if weight[works].sum() <= weight[~works].sum():
            failed = part.measured[int(near[~works][0])]
            return dataclasses.replace(failed, config=config, knobs={})
        near, weight = near[works], weight[works]
        seconds = float(np.exp(weight @ np.log(part.latency[near]) / weight.sum()))
        like = part.measured[int(near[0])]
        scale = seconds / like.latency_s
        return dataclasses.replace(like, config=config, knobs={}, seconds=tuple(scale * s for s in like.seconds))


def parts_of(history: Path, task_keys: Sequence[str], device: str) -> list[Recorded]:
    """The tasks of a history of which a device has `LEAST` valid rows of one space, as if they had been recorded."""
    store: Any = Plugins().build("store", "sqlite", path=f"file:{history}?mode=ro")
    if Remembers not in capabilities("store", store):
        raise BenchError("the store sqlite keeps no tasks: pip install --upgrade tt-history")
    found = []
    try:
        for key in task_keys:
            part = _part(store, key, device)
            if part is not None:
                found.append(part)
    except StoreError as e:
        raise BenchError(str(e)) from e
    finally:
        store.close()
    return found


def _part(store: Any, key: str, device: str) -> Recorded | None:
    task: Task | None = store.task(key)
    rows = [m for m in store.query(task_key=key, device=device) if m.origin != "again"][-_MOST:]
    spaces = Counter(m.space_key for m in rows if m.error is None)
    if task is None or not spaces:
        return None
    chosen, n = spaces.most_common(1)[0]
    space = next((s for s in task.spaces if s.key == chosen), None)
    if space is None or n < LEAST:
        return None
    own = [m for m in rows if m.space_key == chosen and m.error != "invalid" and len(m.config) == len(space.knobs)]
    return Recorded.of(dataclasses.replace(task, spaces=(space,)), None, own)


def digest(part: Recorded) -> str:
    """Of a part's rows and latencies."""
    return hashlib.sha256(part.rows.tobytes() + part.latency.tobytes()).hexdigest()[:16]
