"""A maximum of trials that follows what each block brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tt_spec.clock import Clock
from tt_spec.types import TaskState

__all__ = ["AdaptiveStop", "Block"]


class Block(NamedTuple):
    """One judged block.

    Args:
        r: f(c) / f(c*), the FLOP rates of its best row and of the best before it; None without a c*.
        add: By how much it moved the maximum, trials.
        im: The maximum after it, trials.
    """

    r: float | None
    add: float
    im: float


class AdaptiveStop:
    """Ends a task at a maximum of trials that grows with every better block and shrinks with every much worse one.

    A block is `plan_size` measured rows of the task, whatever batch, sampler or slot they came in; a failure is a row
    of 0 FLOP/s. With c the best row of the block and c* the best of all before, the history's too, r = f(c) / f(c*):

        Add = 0                                         without c*, or where 1 - fr <= r <= 1
        Add = clip(ir * plan_size * (r - 1), lb, ub)    r > 1
        Add = clip(dr * plan_size * (r - 1), lb, ub)    r < 1 - fr
        im <- im + Add, and c* is the better of c and c*

    Source: Chen et al. (2024), Optimizing Neural Network Compilation via Adaptive Workflow with AutoTVM, section II.B.
    The figure that defines Add is lost to us and the text gives no values: this is our reading of it, in which `lb` is
    negative. In the other, `bounds="size"`, both bounds are sizes of Add and the case gives its sign:
    Add = +-clip(ratio * plan_size * |r - 1|, lb, ub). The defaults are ours.

    Args:
        im: Maximum at first, trials of this run. (default: 256)
        ir: Increment ratio, of a better block. (default: 2)
        dr: Decrement ratio, of a much worse block. (default: 1)
        fr: FLOPS ratio in [0, 1): a block that is worse by at most this share changes nothing. (default: 0.1)
        ub: Upper bound of Add, trials. (default: 64)
        lb: Lower bound of Add, trials; at most 0 for `bounds="value"`, at least 0 for "size". (default: -32)
        plan_size: Rows of a block; AutoTVM's. (default: 64)
        bounds: "value" or "size", see above. (default: "value")
    """

    scope: Literal["task", "run"] = "task"

    def __init__(
        self,
        im: int = 256,
        ir: float = 2.0,
        dr: float = 1.0,
        fr: float = 0.1,
        ub: float = 64.0,
        lb: float = -32.0,
        plan_size: int = 64,
        bounds: str = "value",
    ) -> None:
        self.im, self.ir, self.dr, self.fr = im, ir, dr, fr
        self.ub, self.lb, self.plan_size, self.bounds = ub, lb, plan_size, bounds
        self._check()  # here, so that a wrong recipe is refused before anything is measured

    def stop(self, state: TaskState, clock: Clock) -> str | None:
        blocks = self.blocks(state)
        most = blocks[-1].im if blocks else self.im
        if state.trials < most:
            return None
        return f"{state.trials} trials, of at most {max(0, math.ceil(most))} after {len(blocks)} blocks"

    def rows_left(self, state: TaskState) -> float:
        """Rows of the task until the maximum as it stands."""
        blocks = self.blocks(state)
        return max(0, math.ceil((blocks[-1].im if blocks else self.im) - state.trials))

    def info(self, state: TaskState) -> dict[str, Any]:
        """Remarks for the event log: `im`, the maximum in trials, and `blocks`, `[r, Add, im]` of each so far."""
        blocks = self.blocks(state)
        return {"im": blocks[-1].im if blocks else self.im, "blocks": [[b.r, b.add, b.im] for b in blocks]}

    def blocks(self, state: TaskState) -> list[Block]:
        """Every whole block of this run, judged in order."""
        star_s = min((s for trial, s in state.incumbents if trial <= state.restored), default=math.inf)
        im, found = float(self.im), []
        for end in range(self.plan_size, len(state.latencies) + 1, self.plan_size):
            best_s = min(state.latencies[end - self.plan_size : end])
            r = None if math.isinf(star_s) else star_s / best_s
            add = 0.0 if r is None else self.add(r)
            im, star_s = im + add, min(star_s, best_s)
            found.append(Block(r, add, im))
        return found

    def add(self, r: float) -> float:
        """Trials that a block of this r adds to the maximum."""
        if 1 - self.fr <= r <= 1:
            return 0.0
        change = (self.ir if r > 1 else self.dr) * self.plan_size * (r - 1)
        if self.bounds == "value":
            return _clip(change, self.lb, self.ub)
        return math.copysign(_clip(abs(change), self.lb, self.ub), r - 1)

    def _check(self) -> None:
        given: Sequence[tuple[str, float]] = [
            (name, getattr(self, name)) for name in ("im", "ir", "dr", "fr", "ub", "lb", "plan_size")
        ]
        for name, value in given:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}")
        for name, whole in (("im", self.im), ("plan_size", self.plan_size)):
            if whole < 1 or whole != int(whole):
                raise ValueError(f"{name} must be a whole number of rows, at least 1, got {whole}")
        if min(self.ir, self.dr) < 0:
            raise ValueError(f"ir and dr must not be negative, got ir={self.ir} and dr={self.dr}")
        if not 0 <= self.fr < 1:
            raise ValueError(f"fr must be in [0, 1), got {self.fr}")
        if self.lb > self.ub:
            raise ValueError(f"lb must be at most ub, got lb={self.lb} and ub={self.ub}")
        if self.bounds not in ("value", "size"):
            raise ValueError(f"bounds must be 'value' or 'size', got {self.bounds!r}")
        if self.bounds == "value" and not self.lb <= 0 <= self.ub:
            raise ValueError(
                f"lb must be at most 0 and ub at least 0, got lb={self.lb} and ub={self.ub};"
                " bounds='size' takes both as sizes"
            )
        if self.bounds == "size" and self.lb < 0:
            raise ValueError(f"with bounds='size' lb must be at least 0, got {self.lb}")


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)
