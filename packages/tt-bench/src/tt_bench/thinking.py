"""The cost of thinking: measured once, then charged from a table, so that the same seed gives the same bytes.

Seconds are the process's CPU time: a comparison's processes have one thread each, and other load on the machine must
not make a recipe look slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import (
    Batch,
    Group,
    Measurement,
    Pipeline,
    Prediction,
    Realised,
    Statements,
    Task,
    Trial,
    VirtualClock,
)
from tt_spec.errors import ORIGIN, whose
from tt_spec.roles import Foreknows, Prestarts, Pretrains, ProgramSource, Progress, Saves, Surrogate

__all__ = ["Stopwatch", "Thinking", "ThinkingPipeline", "Thoughts", "WatchedModel", "WatchedPrograms", "WatchedRecipe"]


@dataclass(frozen=True)
class Thoughts:
    """Seconds of one `ask` of a recipe, by how many rows were known.

    Args:
        rows: Increasing.
        model, search: Seconds in cost models, and in searcher, sampler and pipeline, one per entry of `rows`.
    """

    rows: tuple[int, ...] = (0,)
    model: tuple[float, ...] = (0.0,)
    search: tuple[float, ...] = (0.0,)

    def at(self, rows: int) -> tuple[float, float]:
        """Model and search seconds, interpolated."""
        return float(np.interp(rows, self.rows, self.model)), float(np.interp(rows, self.rows, self.search))

    @classmethod
    def of(cls, seen: Sequence[tuple[int, float, float]]) -> Thoughts:
        """From `(rows, model, search)` of each ask; of several at the same row count, the median."""
        if not seen:
            return cls()
        rows = sorted({r for r, _, _ in seen})
        mid = [np.median([(m, s) for r, m, s in seen if r == at], axis=0).tolist() for at in rows]
        return cls(tuple(rows), tuple(round(m, 6) for m, _ in mid), tuple(round(s, 6) for _, s in mid))


@dataclass
class Stopwatch:
    """CPU seconds spent inside something."""

    seconds: float = 0.0

    def __call__(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **options)
        finally:
            self.seconds += time.process_time() - began


class WatchedModel:
    """A cost model whose work is timed."""

    def __init__(self, model: Surrogate, watch: Stopwatch) -> None:
        self.model, self.watch, self.inputs, self.shared = model, watch, model.inputs, model.shared
        setattr(self, ORIGIN, whose("surrogate", model))  # what fails in it is the model's

    def prestart(self) -> None:
        if isinstance(self.model, Prestarts):
            self.model.prestart()

    def foreknows(self, task: Task) -> str | None:
        return self.model.foreknows(task) if isinstance(self.model, Foreknows) else None

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        self.watch(self.model.fit, groups, rng)

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        if isinstance(self.model, Pretrains):
            self.watch(self.model.pretrain, groups, rng, report, start)

    @property
    def weights(self) -> str | Path | None:
        return self.model.weights if isinstance(self.model, Saves) else None

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        if isinstance(self.model, Saves):
            self.model.save(path, card)

    def predict(self, task: Task, X: Any) -> Prediction:
        return self.watch(self.model.predict, task, X)

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return self.watch(self.model.score, prediction, best)


class WatchedPrograms:
    """A measurer's programs, whose making is timed."""

    def __init__(self, measurer: ProgramSource, watch: Stopwatch) -> None:
        self.measurer, self.watch = measurer, watch
        setattr(self, ORIGIN, whose("measurer", measurer))

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        return self.watch(self.measurer.realise, task, codes)

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        return self.watch(self.measurer.features, task, codes)


class WatchedRecipe:
    """A recipe whose cost models are timed."""

    def __init__(self, recipe: Any, watch: Stopwatch) -> None:
        self.recipe, self.watch, self.plugins = recipe, watch, recipe.plugins
        self.batch, self.verify, self.light = recipe.batch, recipe.verify, recipe.light

    def build(self, role: str, **more: Any) -> Any:
        piece = self.recipe.build(role, **more)
        return WatchedModel(piece, self.watch) if role in ("surrogate", "draft") and piece is not None else piece

    def of(self, op: str) -> WatchedRecipe:
        mine = self.recipe.of(op)
        return self if mine is self.recipe else WatchedRecipe(mine, self.watch)


@dataclass
class Thinking:
    """The stopwatches and tables that the pipelines of a run share.

    Args:
        table: What is charged; None charges what it really took.
        model, programs: Stopwatches of cost models and of the measurer's programs.
    """

    table: Thoughts | None
    clock: VirtualClock | None
    model: Stopwatch = field(default_factory=Stopwatch)
    programs: Stopwatch = field(default_factory=Stopwatch)
    seen: list[tuple[int, float, float]] = field(default_factory=list)
    spent: dict[str, float] = field(default_factory=lambda: {"model": 0.0, "search": 0.0})


class ThinkingPipeline(Pipeline):
    """A pipeline whose thinking passes on the virtual clock and is counted in processor time."""

    def __init__(self, *pieces: Any, thinking: Thinking, **options: Any) -> None:
        super().__init__(*pieces, **options)
        self.thinking, self._told_s = thinking, 0.0

    def ask(self, n: int) -> Batch:
        t, rows = self.thinking, len(self.rows)
        began, model, programs = time.process_time(), t.model.seconds, t.programs.seconds
        batch = super().ask(n)
        model = t.model.seconds - model
        search = time.process_time() - began - model - (t.programs.seconds - programs) + self._told_s
        self._told_s = 0.0
        t.seen.append((rows, model, max(search, 0.0)))
        charge = (model, max(search, 0.0)) if t.table is None else t.table.at(rows)
        t.spent["model"] += charge[0]
        t.spent["search"] += charge[1]
        if t.clock is not None:
            t.clock.advance(sum(charge))
        return batch

    def tell(self, batch_id: int, results: Sequence[Measurement | Trial]) -> None:
        began = time.process_time()
        super().tell(batch_id, results)
        self._told_s += time.process_time() - began
