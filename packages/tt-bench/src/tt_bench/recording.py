"""Recorded measurements, which replay serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from tt_spec import Measurement, Space, Statements, Task, operator_features, tokens

from tt_bench.subspace import Keep, narrow, restrict, widen

__all__ = ["Pace", "Recorded", "Recording"]

TWICE = 10
"""Rows that must have been timed twice before anything is said of how well that repeats."""

BUSY = 1.0
"""Alone on a machine nine rows in ten repeated within 0.04 to 0.25, where memory is what counts within 0.9; beside
other work one in ten differed by 1.6 to 11."""


@dataclass(frozen=True)
class Pace:
    """The speed of the recording machine, apart from its candidates.

    Args:
        workers: Processes that built at once.
        chunk: Built candidates per worker before timing starts.
        engine_s: Seconds per candidate that neither its build nor its runs nor `realise_s` explain; see `observed`.
        realise_s, features_s: Seconds per row to read it back, and to extract its statements.
        repeat: By how much two timings of a row differ, minutes apart, relative to the smaller: nine rows in ten differ
            by at most that. None where fewer than `TWICE` rows were timed twice; see `observed`.
    """

    workers: int = 1
    chunk: int = 8
    engine_s: float = 0.0
    realise_s: float = 0.0
    features_s: float = 0.0
    repeat: float | None = None

    @property
    def busy(self) -> bool:
        """Whether the rows mean little, because other work ran beside the recording."""
        return self.repeat is not None and self.repeat > BUSY

    def observed(self, measured: Iterable[Measurement], batch: int = 32) -> Pace:
        """With `engine_s` as the clock showed it while rows were recorded in batches, and `repeat`.

        `engine_s` is the median over batches, so that neither a pause nor what another process did for a while counts.
        """
        measured = list(measured)
        known: dict[tuple[int, ...], list[float]] = {}
        for m in measured:
            if m.seconds:
                known.setdefault(m.config, []).append(m.latency_s)
        apart = [max(s) / min(s) - 1 for s in known.values() if len(s) > 1]
        repeat = round(float(np.quantile(apart, 0.9)), 4) if len(apart) >= TWICE else None
        rows = sorted((m for m in measured if m.origin == "record" and m.error != "invalid"), key=lambda m: m.at)
        parts = [rows[i : i + batch] for i in range(1, len(rows), batch)]
        left = []
        for before, part in zip(rows[::batch], [p for p in parts if len(p) == batch] or parts, strict=False):
            builds = sum(m.cost.get("apply", 0.0) + m.cost.get("build", 0.0) for m in part)
            modelled = builds / self.workers + sum(m.cost.get("run", 0.0) for m in part)
            left.append(max(0.0, part[-1].at - before.at - modelled) / len(part))
        if not left:
            return dataclasses.replace(self, repeat=repeat)
        each = float(np.median(left))
        realise_s = min(self.realise_s, each)
        engine_s = round(each - realise_s, 6)
        return dataclasses.replace(self, engine_s=engine_s, realise_s=round(realise_s, 6), repeat=repeat)


@dataclass(frozen=True)
class Recorded:
    """One task's recorded rows.

    Args:
        whole: The task with the space that was measured.
        keep: Choices of an enumerated sub-space of which every row is recorded; None: `rows` are a sample.
        rows: `(n, d)` rows of `task.space`, each once.
        measured: One per row; `seconds` are single runs in the order they were made.
        statements: Of each row `(s, 164)` float32, or None.
    """

    whole: Task
    keep: Keep | None
    rows: np.ndarray
    measured: tuple[Measurement, ...]
    statements: tuple[np.ndarray | None, ...]
    pace: Pace = field(default_factory=Pace)

    @property
    def complete(self) -> bool:
        """Whether every row of the space is recorded."""
        return self.keep is not None and len(self.rows) >= sum(1 for _ in self.task.space.enumerate())

    @cached_property
    def task(self) -> Task:
        """The task as it is replayed: with the enumerated sub-space as its only space."""
        return self.whole if self.keep is None else dataclasses.replace(self.whole, spaces=(self.space,))

    @cached_property
    def space(self) -> Space:
        """The space of the rows."""
        return self.whole.space if self.keep is None else restrict(self.whole.space, self.keep)

    @cached_property
    def latency(self) -> np.ndarray:
        """Median of each row's runs `(n,)` seconds; inf for failed rows."""
        return np.array([m.latency_s for m in self.measured])

    @cached_property
    def index(self) -> dict[bytes, int]:
        """Where a row is, by its bytes."""
        return {name: i for i, name in enumerate(tokens(self.rows))}

    @property
    def best_s(self) -> float:
        """The best recorded median."""
        return float(self.latency.min(initial=np.inf))

    def widen(self, codes: np.ndarray) -> np.ndarray:
        """Rows as the whole space has them."""
        return codes if self.keep is None else widen(self.whole.space, self.keep, codes)

    def statements_of(self, indices: list[int]) -> tuple[Statements, np.ndarray]:
        """Statements of those rows that have them, in order, and which do, `(n,)` bool."""
        found = [self.statements[i] for i in indices]
        have = [s for s in found if s is not None]
        values = np.concatenate([np.zeros((0, 164), np.float32), *have]).astype(np.float64)
        offsets = np.concatenate([[0], np.cumsum([len(s) for s in have])]).astype(np.int64)
        operator = np.repeat(operator_features(self.whole)[None], len(have), axis=0)
        return Statements(values, offsets, operator), np.array([s is not None for s in found], bool)

    @classmethod
    def of(
        cls,
        whole: Task,
        keep: Keep | None,
        measured: Iterable[Measurement],
        statements: Mapping[tuple[int, ...], np.ndarray] = MappingProxyType({}),
        pace: Pace = Pace(),
    ) -> Recorded:
        """From measurements of the whole space: each row's longest series counts; rows outside `keep` are dropped."""
        chosen: dict[tuple[int, ...], Measurement] = {}
        for m in measured:
            known = chosen.get(m.config)
            if known is None or len(m.seconds) > len(known.seconds):
                chosen[m.config] = m
        width = len(whole.space.knobs)
        codes = np.array(list(chosen), dtype=np.int64).reshape(-1, width)
        inside = np.ones(len(codes), dtype=bool)
        rows = codes
        if keep is not None and len(codes):
            rows, inside = narrow(whole.space, keep, codes)
        kept = [m for m, i in zip(chosen.values(), inside, strict=True) if i]
        order = np.lexsort(rows.T[::-1]) if len(rows) else np.zeros(0, dtype=np.int64)
        return cls(
            whole,
            keep,
            rows[order],
            tuple(kept[i] for i in order),
            tuple(statements.get(kept[i].config) for i in order),
            pace,
        )


@dataclass(frozen=True)
class Recording:
    """The content of one file.

    Args:
        model: As `tt record` was told.
        space: The kind of space, e.g. "template".
        parts: One per task.
    """

    model: str
    space: str
    parts: tuple[Recorded, ...]
    device: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def doubts(self) -> list[str]:
        """A line for each task on whose rows nothing can be compared, with the reason."""
        return [
            f"{self.model}, {p.whole.name}: timed again, one row in ten differed by more than {p.pace.repeat:.0%}:"
            " other work disturbed the recording; record it again on a machine that does nothing else"
            for p in self.parts
            if p.pace.busy
        ]

    def about(self) -> dict[str, Any]:
        """The essentials, for tables and error messages."""
        return {
            "model": self.model,
            "space": self.space,
            "device": self.device,
            "tasks": [
                {
                    "name": p.whole.name,
                    "rows": len(p.rows),
                    "failed": int((~np.isfinite(p.latency)).sum()),
                    "complete": p.complete,
                    "enumerated": p.keep is not None,
                    "best_s": p.best_s if np.isfinite(p.best_s) else None,
                    "repeat": p.pace.repeat,
                }
                for p in self.parts
            ],
        }
