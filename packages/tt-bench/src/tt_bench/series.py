"""Single timings, as many as a recording needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tt_spec import Bar, Timing

__all__ = ["Series"]


class Series:
    """At least one run to warm up, then single runs back to back: a contiguous series, because noise is correlated.

    Args:
        runs: Single timings, fewer only where they would take longer than the bar allows. (default: 20)
        warm_s: Seconds to warm up: in its first milliseconds a program of 20 us takes up to 2.5 times as long, and all
            its timings would lie in them. (default: 0.02)
    """

    def __init__(self, runs: int = 20, warm_s: float = 0.02) -> None:
        self.runs, self.warm_s = runs, warm_s

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        spent, warming = run(1), 1
        while spent < min(self.warm_s, bar.cap_s):
            spent += max(run(1), 1e-9)
            warming += 1
        seconds: list[float] = []
        while len(seconds) < self.runs and (not seconds or spent + seconds[-1] <= bar.cap_s):
            seconds.append(max(round(run(1), 9), 1e-9))
            spent += seconds[-1]
        short = f"{len(seconds)} of {self.runs} runs fit into {bar.cap_s:g} s" if len(seconds) < self.runs else ""
        return Timing(tuple(seconds), warming + len(seconds), short)
