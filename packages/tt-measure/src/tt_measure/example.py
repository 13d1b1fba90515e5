"""A backend without a compiler, for examples and tests: a program is a pause whose length the row decides."""

from __future__ import annotations

import time

import numpy as np
from tt_spec.pieces.synthetic import SyntheticMeasurer
from tt_spec.roles import Realised
from tt_spec.types import Statements, Task

__all__ = ["PythonBackend"]


class PythonBackend:
    """Programs sleep as long as `SyntheticMeasurer` says they run (about 1 to 5 ms); building takes no time."""

    def open(self, task: Task) -> None:
        pass

    def realise(self, task: Task, codes: np.ndarray) -> Realised:
        return SyntheticMeasurer().realise(task, codes)

    def features(self, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        return SyntheticMeasurer().features(task, codes)

    def build(self, task: Task, row: np.ndarray) -> _Pause:
        return _Pause(float(SyntheticMeasurer().seconds(task, row[None])[0]))


class _Pause:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            time.sleep(self.seconds)
        return (time.perf_counter() - began) / n

    def check(self) -> str | None:
        return None
