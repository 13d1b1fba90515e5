"""A backend without a compiler, for examples and tests: a program is a pause whose length the row decides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

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

    def threads(self) -> int:
        return 1

    def race(
        self,
        task: Task,
        codes: np.ndarray,
        rounds: int = 10,
        min_ms: float = 10.0,
        untuned: bool = False,
        cold: int = 0,
    ) -> list[list[float]]:
        """Pauses in turns; the untuned program takes twice as long as the slowest."""
        pauses = [self.build(task, row) for row in codes]
        pauses += [_Pause(2 * max((p.seconds for p in pauses), default=1e-3))] * untuned
        seconds: list[list[float]] = [[] for _ in pauses]
        for _ in range(rounds):
            for pause, mine in zip(pauses, seconds, strict=True):
                mine.append(pause.run(max(1, round(min_ms / 1e3 / pause.seconds))))
        return seconds

    def check(self, task: Task, row: np.ndarray) -> str | None:
        return self.build(task, row).check()

    def doubts(self, task: Task, row: np.ndarray) -> list[str]:
        return []

    def race_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[list[float]]:
        """A "library" is a text file with the seconds that it pauses."""
        pauses = [_Pause(float(Path(path).read_text())) for path in paths]
        return [[pause.run(1) for _ in range(rounds)] for pause in pauses]

    def profile_models(
        self, paths: list[str], inputs: dict[str, np.ndarray], seconds: float = 6.0, rounds: int = 10
    ) -> list[dict[str, list[float]]]:
        """The pause is the only function."""
        return [{"pause": found} for found in self.race_models(paths, inputs, seconds, rounds)]

    def run_model(self, path: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The inputs, by name."""
        return [inputs[name] for name in sorted(inputs)]

    def nudge_model(
        self, path: str, inputs: dict[str, np.ndarray], share: float, seeds: Sequence[int]
    ) -> list[list[np.ndarray]]:
        """The inputs, changed."""
        names, runs = sorted(inputs), [np.random.default_rng(seed) for seed in seeds]
        return [[inputs[n] * (1 + share * rng.choice((-1, 1), inputs[n].shape)) for n in names] for rng in runs]

    def build(self, task: Task, row: np.ndarray) -> _Pause:
        return _Pause(float(SyntheticMeasurer().seconds(task, row[None])[0]))


class _Pause:
    apply_s = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, n: int) -> float:
        began = time.perf_counter()
        for _ in range(n):
            time.sleep(self.seconds)
        return (time.perf_counter() - began) / n

    def check(self) -> str | None:
        return None
