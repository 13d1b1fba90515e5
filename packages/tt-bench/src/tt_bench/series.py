"""Single timings, as many as a recording needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tt_spec import Bar, Timing

__all__ = ["Series"]


class Series:
    """One run to warm up, then single runs back to back: a contiguous series, because noise is correlated.

    Args:
        runs: Single timings, fewer only where they would take longer than the bar allows. (default: 20)
    """

    def __init__(self, runs: int = 20) -> None:
        self.runs = runs

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        spent = run(1)
        seconds: list[float] = []
        while len(seconds) < self.runs and (not seconds or spent + seconds[-1] <= bar.cap_s):
            seconds.append(max(round(run(1), 9), 1e-9))
            spent += seconds[-1]
        short = f"{len(seconds)} of {self.runs} runs fit into {bar.cap_s:g} s" if len(seconds) < self.runs else ""
        return Timing(tuple(seconds), 1 + len(seconds), short)
