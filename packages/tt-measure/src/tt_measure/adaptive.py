"""As many runs as a candidate's noise asks for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tt_spec.types import Bar, Timing

__all__ = ["Adaptive", "variation"]


class Adaptive:
    """Micro-batches of runs until the running performance has settled.

    After i micro-batches of B runs the performance so far is Perf_i = i B FLOP / Time(i), Time(i) being the seconds
    since the first of them began. Timing ends as soon as CV(Perf_1, ..., Perf_i) = std / mean falls under the
    threshold, or after n runs. One value has no variation, so the rule looks only once `least` micro-batches are in.
    A warm-up run comes first. Each micro-batch is a timing, so that the median shrugs off one that was disturbed.

    Source: Li et al. (2020), AdaTune, section 4.1 (NeurIPS 2020).

    Where n runs would take longer than `most_s`, n and B shrink together: a candidate of 10 ms has micro-batches of
    2 runs at the default, not of 50, and the same chance to end at 3 of 10 of them. Below `least` single runs only the
    bar's cap goes.

    Args:
        number: n, the most runs, the warm-up apart. (default: 500, as the paper)
        micro_batch: B, runs of a micro-batch. (default: 50, as the paper)
        threshold: Coefficient of variation below which timing ends. (default: 0.1, as the paper)
        least: Micro-batches before the rule looks. (default: 3, as the public implementation)
        trim: Leave out the smallest and the largest of more than four values, as the public implementation does.
            (default: False)
        most_s: What n runs may take, seconds. (default: 0.2)
    """

    def __init__(
        self,
        number: int = 500,
        micro_batch: int = 50,
        threshold: float = 0.1,
        least: int = 3,
        trim: bool = False,
        most_s: float = 0.2,
    ) -> None:
        self.number, self.micro_batch, self.threshold, self.least = number, micro_batch, threshold, least
        self.trim, self.most_s = trim, most_s

    def evaluate(self, run: Callable[[int], float], bar: Bar, rng: np.random.Generator) -> Timing:
        if min(self.number, self.micro_batch, self.least) < 1:
            raise ValueError(
                "number, micro_batch and least must be at least 1,"
                f" got {self.number}, {self.micro_batch} and {self.least}"
            )
        warm = run(1)
        if 2 * warm > bar.cap_s:
            return Timing((warm,), 1, f"the warm-up run is the timing: it took {warm:.3g} s of {bar.cap_s:g} s allowed")
        each, runs, took, cv = warm, 0, 0.0, 0.0
        seconds: list[float] = []
        perf: list[float] = []
        while True:
            room = int((bar.cap_s - warm - took) / each)
            most = min(self.number, max(round(self.most_s / each), self.least))
            size = min(max(1, self.micro_batch * most // self.number), most - runs, room)
            if size < 1:
                break
            seconds.append(run(size))
            runs, took = runs + size, took + size * seconds[-1]
            each = took / runs
            perf.append((bar.flops or 1.0) / each)
            cv = variation(perf, self.trim)
            if len(perf) >= self.least and cv < self.threshold:
                break
        why = f"{runs} of {self.number} runs, {self.number - runs} saved: CV {cv:.1%} of {len(perf)} micro-batches"
        return Timing(tuple(seconds), 1 + runs, why)


def variation(perf: list[float], trim: bool = False) -> float:
    """Coefficient of variation, std / mean; of more than four values without the smallest and largest if `trim`."""
    values = np.sort(perf)[1:-1] if trim and len(perf) > 4 else np.asarray(perf)
    return float(values.std() / values.mean())
