"""Measuring in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from tt_spec import Bar, Realised, Statements, Task, Timing, Trial
from tt_spec.roles import Backend, Checks, Evaluator, Races, RacesModels, RunsModels

__all__ = ["InThisProcess"]


class _Able(Backend, Races, Checks, RacesModels, RunsModels, Protocol):
    """A backend that can do all that this measurer offers."""


class InThisProcess:
    """Builds and times candidates where it is called: nothing to start, and nothing that a crash leaves standing.

    Args:
        backend: "module:attribute" of a `Backend`.
        threads: Of a program; the process must have been started with them.
        evaluator: Decides the runs of a candidate; None times one run after one that warms up.
    """

    def __init__(self, backend: str = "", threads: int = 1, evaluator: Evaluator | None = None) -> None:
        self.backend, self.threads, self.evaluator = backend, threads, evaluator

    def measure(self, task: Task, codes: np.ndarray, bar: Bar) -> Iterator[Trial]:
        backend = self._opened(task)
        for row in np.asarray(codes):
            config = tuple(int(c) for c in row)
            if not task.space.in_range(row[None])[0]:
                yield Trial(config, error="build", why="the row is outside the space")
                continue
            stage = "build"
            try:
                candidate = backend.build(task, row)
                stage = "run"
                timing = self._timed(candidate.run, bar)
                wrong = candidate.check() if np.median(timing.seconds) < bar.incumbent_s else None
            except Exception as e:  # a failing candidate is data
                yield Trial(config, error=stage, why=f"{type(e).__name__}: {e}")
                continue
            if wrong is not None:
                yield Trial(config, error="wrong-result", why=wrong)
                continue
            bar = Bar(min(bar.incumbent_s, float(np.median(timing.seconds))), bar.flops, bar.cap_s)
            yield Trial(config, timing.seconds, timing.runs, why=timing.why)

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        return self._opened(task).realise(task, np.asarray(codes))

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        return self._opened(task).features(task, np.asarray(codes))

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        return self._opened(task).race(task, codes, rounds, min_ms, untuned, cold)

    def check(self, task: Task, row: np.ndarray) -> str | None:
        return self._opened(task).check(task, row)

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        return self._backend().race_models(paths, inputs, seconds, rounds)

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return self._backend().run_model(path, inputs)

    def close(self) -> None:
        """Holds no process."""

    def _timed(self, run: Callable[[int], float], bar: Bar) -> Timing:
        if self.evaluator is not None:
            return self.evaluator.evaluate(run, bar, np.random.default_rng(0))
        run(1)
        return Timing((run(1),), 2)

    def _opened(self, task: Task) -> _Able:
        backend = self._backend()
        backend.open(task)
        return backend

    def _backend(self) -> _Able:
        if not self.backend:
            raise ValueError("a measurer in this process needs a backend, 'module:attribute'")
        try:
            return self.backend_
        except AttributeError:
            module, _, attribute = self.backend.partition(":")
            self.backend_ = getattr(importlib.import_module(module), attribute)()
            return self.backend_
