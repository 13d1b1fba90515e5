"""The same number of runs for every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tt_spec.types import Bar, Timing

__all__ = ["Fixed"]


class Fixed:
    """One run to warm up, then `repeat` timings of at least `number` executions and `min_repeat_ms` each.

    Source: TVM's `time_evaluator` (Chen et al., 2018, TVM, OSDI), same options with the same meaning. Two things
    differ. The first repeat's length is guessed from the warm-up run, and a repeat that turns out too short is
    topped up, where TVM throws it away. And the whole stays within `bar.cap_s`: fewer executions are made when the
    warm-up run shows that they would not fit, and when not even one would, the warm-up run is the timing.

    The default spends about 15 ms of a fast candidate, against 100 ms of MetaSchedule's runner
    (`Fixed(3, 1, 100)`): the median of three repeats survives one disturbance, which one long repeat averages in.
    Where `run` leaves out windows in which the machine was slow (`tt_spec.windows`), three repeats of 5 ms order two
    programs that differ by 5 % as well as three of 10 ms (`studies/timing`).

    Args:
        number: Executions of one repeat, at least. (default: 1; MetaSchedule: 3)
        repeat: Timings. (default: 3; MetaSchedule: 1)
        min_repeat_ms: A repeat lasts at least so long, milliseconds. (default: 5; MetaSchedule: 100)
        slow_factor: A candidate whose warm-up run and the next are so many times slower than the incumbent gets no
            more; 0 is off. (default: 4)
    """

    TOP_UPS = 8

    def __init__(self, number: int = 1, repeat: int = 3, min_repeat_ms: float = 5.0, slow_factor: float = 4.0) -> None:
        self.number, self.repeat, self.min_repeat_ms, self.slow_factor = number, repeat, min_repeat_ms, slow_factor

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        if self.number < 1 or self.repeat < 1:
            raise ValueError(f"number and repeat must be at least 1, got {self.number} and {self.repeat}")
        warm = run(1)
        if 2 * warm > bar.cap_s:
            return Timing((warm,), 1, f"the warm-up run is the timing: it took {warm:.3g} s of {bar.cap_s:g} s allowed")
        warmed, spent = 1, warm
        if self.slow_factor > 0 and warm > self.slow_factor * bar.incumbent_s:
            again = run(1)  # the first run of a fast program may be slow: cold caches, sleeping threads
            if again > self.slow_factor * bar.incumbent_s:
                return Timing((again,), 2, f"one run: {again / bar.incumbent_s:.1f} times slower than the incumbent")
            warmed, spent, warm = 2, warm + again, again
        least_s = self.min_repeat_ms * 1e-3
        number = max(self.number, _cover(least_s, warm))
        each, seconds, runs = warm, [], warmed
        for _ in range(self.repeat):
            fit = int((bar.cap_s - spent) / each) if each > 0 else number
            if fit < 1 or (seconds and fit < number):
                break
            done, took = 0, 0.0
            more = min(number, fit)
            for _ in range(self.TOP_UPS):
                took += more * run(more)
                done += more
                each = took / done
                room = int((bar.cap_s - spent - took) / each) if each > 0 else 0
                more = min(_cover(least_s - took, each), room)
                if took >= least_s or more < 1:
                    break
            number = max(self.number, done)
            seconds.append(took / done)
            spent, runs = spent + took, runs + done
        short = len(seconds) < self.repeat or runs < warmed + self.number * self.repeat
        why = f"fewer runs: the warm-up run took {warm:.3g} s of {bar.cap_s:g} s allowed" if short else ""
        return Timing(tuple(seconds), runs, why)


def _cover(seconds: float, each: float) -> int:
    """Executions of `each` seconds that last at least `seconds`."""
    return max(1, math.ceil(min(seconds / each, 1e9))) if each > 0 and seconds > 0 else 1
