"""What the untuned program makes of a model's inputs: what a tuned one is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tt_spec.roles import NudgesModels, RunsModels, StartsModels

from tt_core.models.model import Arrays

__all__ = ["QUICK_S", "SOON_BYTES", "UntunedRuns"]

QUICK_S = 3.0
"""A run so short that two nudged ones are begun at once, since most commands need two: they end with the compiling. Of
longer ones a command waits for the second only if it needs it."""

SOON_BYTES = 1 << 29
"""Of a library that workers load while another one is compiled; two larger ones beside it take too much memory."""


_Found = tuple[list[np.ndarray], list[list[np.ndarray]]]
"""Outputs of a plain run, and of nudged ones."""


class UntunedRuns:
    """Runs of the untuned program, plain and nudged. It may take seconds a run, so both are begun with the first inputs
    where the measurer can do that: they go on while the tuned program is compiled.

    Args:
        path: Its library.
        measurer: Runs it; nudged runs, and runs ahead of time, where it can (`NudgesModels`, `StartsModels`).
        inputs: The first that will be asked for.
        nudge: By which share of themselves floats are nudged.
        run_s: What a run may take, seconds.

    Attributes:
        first: Those inputs.
    """

    def __init__(self, path: Path, measurer: RunsModels, inputs: Arrays, nudge: float, run_s: float) -> None:
        self._seeds = (0, 1) if run_s <= QUICK_S else (0,)
        self.path, self.measurer, self.nudge, self.first = str(path), measurer, nudge, inputs
        self._wait: Callable[[], _Found] | None = None
        if isinstance(measurer, StartsModels) and path.stat().st_size <= SOON_BYTES:
            self._wait = measurer.start_model(self.path, inputs, nudge, self._seeds)
        self._found: _Found | None = None

    def run(self, inputs: Arrays) -> list[np.ndarray]:
        """Its outputs. Raises `tt_spec.errors.ProgramError` if it crashes or hangs."""
        begun = self._begun(inputs)
        return self.measurer.run_model(self.path, inputs) if begun is None else begun[0]

    def nudged(self, inputs: Arrays) -> Callable[[Sequence[int]], list[list[np.ndarray]]] | None:
        """From seeds to the outputs of nudged runs; None where the measurer makes none."""
        measurer = self.measurer
        if not isinstance(measurer, NudgesModels):
            return None

        def runs(seeds: Sequence[int]) -> list[list[np.ndarray]]:
            begun = self._begun(inputs) if set(seeds) <= set(self._seeds) else None
            if begun is None:
                return measurer.nudge_model(self.path, inputs, self.nudge, seeds)
            return [begun[1][self._seeds.index(seed)] for seed in seeds]

        return runs

    def _begun(self, inputs: Arrays) -> _Found | None:
        """What was begun, if it was with these inputs."""
        if self._wait is None or any(inputs[name] is not a for name, a in self.first.items()):
            return None
        if self._found is None:
            self._found = self._wait()
        return self._found
