"""How far each element of a model's outputs may be off.

Measured as operators' bounds are (`tt_core.compiler.reference`): what passes between the untuned model's operators is
nudged, inputs included, and an element may be off by `FACTOR` times what that does to it. Each operator's inputs being
nudged, a quarter of an operator's nudge is enough: with random programs SqueezeNet used up to 0.7 % and bert-tiny 5 %
of what it allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm

from tt_core.compiler.quick import depths
from tt_core.compiler.reference import EPS, apart, fault, rounding

__all__ = ["Nudged", "share"]

NUDGE = 4.0
"""Units in the last place by which floats are nudged, times sqrt(n) of the longest sum."""

COARSE = 2.0**-5
"""The largest nudge, whatever the precision."""

MOST = 8
"""Nudged runs before a model is refused. One often tells enough, and the untuned model's may take seconds."""


def share(mod: tvm.IRModule) -> float:
    """By which share of themselves a model's floats are nudged."""
    found = [EPS["float32"]]
    for func in mod.functions.values():
        if isinstance(func, tvm.tirx.PrimFunc):
            found += [EPS[d] * math.sqrt(n) for d, n in depths(func).items() if d in EPS]
    return min(COARSE, NUDGE * max(found))


class Nudged:
    """What rounding may do to each element.

    Args:
        want: The untuned model's outputs.
        run: From seeds to its outputs, nudged, for each of them.
    """

    def __init__(self, want: Sequence[np.ndarray], run: Callable[[Sequence[int]], list[list[np.ndarray]]]) -> None:
        self.want, self.run = want, run
        self._most = [np.zeros(w.shape) for w in want]
        self._runs = 0

    def fault(self, number: int, got: np.ndarray) -> str | None:
        """How an output is wrong, or None. The model is nudged until that explains the output, `MOST` times at most."""
        if not self._runs:
            self._nudge()
        while (found := self._fault(number, got)) is not None and self._runs < MOST:
            self._nudge()
        return found

    def _fault(self, number: int, got: np.ndarray) -> str | None:
        want = self.want[number]
        return fault(got, want, rounding(want, self._most[number]))

    def _nudge(self) -> None:
        (outputs,) = self.run((self._runs,))
        for most, want, got in zip(self._most, self.want, outputs, strict=True):
            off = apart(got, want)
            np.maximum(most, np.where(np.isfinite(off), off, 0.0), out=most)
        self._runs += 1
