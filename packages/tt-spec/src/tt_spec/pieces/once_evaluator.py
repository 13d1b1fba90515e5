"""One timed run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tt_spec.types import Bar, Timing

__all__ = ["OnceEvaluator"]


class OnceEvaluator:
    """One run to warm up, one that counts."""

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        run(1)
        return Timing((run(1),), 2)
