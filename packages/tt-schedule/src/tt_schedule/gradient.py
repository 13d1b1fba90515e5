"""The gradient scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tt_spec.clock import Clock
from tt_spec.types import Slot, TaskState

from tt_schedule.similar import similar_s, vain
from tt_schedule.warmup import WARM_UP, first_slot, rest_of_warm_up, valid, warm_up

__all__ = ["Gradient"]


class Gradient:
    """Gives the slot to the task where it is expected to shorten the model's latency most.

    With w a task's weight, g(t) its best seconds after t slots, the last v of them without a gain of 1 %, C its FLOP
    and V the best FLOP/s among tasks of the same operator whose algorithms it can use, too, the model's latency changes
    per slot by about

        w * (alpha * (g(t) - g(t - window)) / window + (1 - alpha) * (min(g - g / t, beta * C / V) - g) / (1 + v)^fade)

    and the smallest wins. Ansor's own knows neither v nor algorithms: one operator that could not use what the others
    found kept its expectation, and a third of the slots. So that nobody keeps more than its share for nothing, a task
    that had more than `share` of the trials, a full slot at least, and less than 2 % of what all have gained is passed
    over while there are others.

    Before that, every task gets one slot, the largest `weight * flops` first; a task without a valid result gets up to
    `warmup` of them and then waits for the random slots or for the end of all others, so that it neither starves nor
    holds the rest up. A task with a valid result from the store needs no warm-up, and its restored trials count in t.
    Where half of the run's budget is not enough for these slots, they are made as short as it takes: an operator left
    untuned costs more than a few trials less for each of the others. Later slots are then a quarter of a full one, or
    where the budget has no more, so many trials as it has for each task, two at least: the second program of an
    operator saves more than the fifth of another. A later slot is chosen while the one before is built, if it is
    expected to bring half as much or more.

    Source: Zheng et al. (2020), Ansor, section 6 and appendix A (arXiv:2006.06762).

    Args:
        trials: Measured rows per slot, the unit of t. (default: 16)
        alpha: Trust in the past gain against the predicted one. (default: 0.2)
        beta: Trust in similar tasks: how many times the FLOP time at their best rate a task may need. (default: 2.0)
        window: Slots over which the past gain is taken. (default: 3)
        fade: How fast what is expected fades with slots in vain; 0 is Ansor's. (default: 0.25, chosen in
            studies/schedulers)
        share: See above; at least twice an even one. (default: 0.15)
        warmup: The most slots in this run for a task without a valid result. (default: 4)
        light: A task with less than this share of the model's FLOP warms up with a quarter of a slot. (default: 0.01)
        doubled: Trials of a task from which on its slots are twice as long: what so many have taught changes little by
            16 more, and choosing them takes as long as choosing 32. (default: inf)
        epsilon: Share of slots that go to a random task. (default: 0.05)
        seed: Of the random slots; with the trials made so far it decides them.
    """

    def __init__(
        self,
        trials: int = 16,
        alpha: float = 0.2,
        beta: float = 2.0,
        window: int = 3,
        fade: float = 0.25,
        share: float = 0.15,
        warmup: int = 4,
        light: float = 0.01,
        doubled: float = math.inf,
        epsilon: float = 0.05,
        seed: int = 0,
    ) -> None:
        self.trials, self.alpha, self.beta, self.window = trials, alpha, beta, window
        self.fade, self.share, self.warmup = fade, share, warmup
        self.light, self.doubled, self.epsilon, self.seed = light, doubled, epsilon, seed
        self.rows_ = math.inf

    def budget(self, rows: float) -> None:
        self.rows_ = rows

    def ahead(self, states: Sequence[TaskState], clock: Clock, slot: Slot, rows: int) -> list[Slot]:
        room = min(rows, self.trials - (slot.trials or self.trials))
        return rest_of_warm_up(states, slot, room, self.trials, self.rows_, self.light)

    def beside(self, states: Sequence[TaskState], clock: Clock, slot: Slot) -> Slot | None:
        chosen = self.next(states, clock)
        first = WARM_UP in (slot.info.get("why"), None if chosen is None else chosen.info.get("why"))
        if chosen is None or first or chosen.gain_s < WORTH * slot.gain_s:
            return None
        return chosen

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        if self.trials < 1 or self.window < 1:
            raise ValueError(f"trials and window must be at least 1, got {self.trials} and {self.window}")
        if self.fade < 0:
            raise ValueError(f"fade must be at least 0, got {self.fade}")
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        first = warm_up(states, self.trials, self.rows_, self.warmup, self.light)
        if first is not None:
            return first
        each = min(self.trials // 4, max(2, self.rows_ / len(racing)))
        size = max(first_slot(states, self.trials, self.rows_), int(each))
        change = self._modest(states, {i: self.change(states, i) for i in racing if valid(states[i])}, size)
        rng = np.random.default_rng([self.seed, sum(s.trials for s in states)])
        if rng.random() < self.epsilon:
            pick, why = racing[int(rng.integers(len(racing)))], "random"
        elif change:
            pick, why = min(change, key=lambda i: (change[i], i)), "gradient"
        else:
            pick, why = min(racing, key=lambda i: (states[i].trials, i)), "nothing valid yet"
        gain_s = min(max(0.0, -change[pick]), states[pick].weight * states[pick].best_s) if pick in change else 0.0
        known = states[pick].restored + states[pick].trials
        long = size == self.trials and known >= self.doubled
        return Slot(pick, trials=2 * size if long else size, gain_s=gain_s, info={"why": why})

    def change(self, states: Sequence[TaskState], i: int) -> float:
        """Expected change of the model's latency by one slot for task `i`, which has a valid result: seconds, rarely
        above 0. A task that had less than a slot, t < 1, counts for more than it takes: it is urgent."""
        s = states[i]
        g = s.best_s
        t = max(1, s.restored + s.trials) / self.trials
        before = self._earlier(s)
        backward = (g - before) / self.window if math.isfinite(before) else 0.0
        should = similar_s(states, s, self.beta)
        ahead = min(g - g / t, g if should is None else should)
        faded = (1.0 + vain(s, self.trials)) ** -self.fade
        return s.weight * (self.alpha * backward + (1.0 - self.alpha) * faded * (ahead - g))

    def _modest(self, states: Sequence[TaskState], change: dict[int, float], size: int) -> dict[int, float]:
        """Those of `change` that would not have more than their share for nothing with another slot of that size; all
        if there is none."""
        share = max(self.share, 2.0 / len(states)) * (sum(s.trials for s in states) + size)
        most = max(self.trials, share)  # early on, anybody's few trials are more than a share of all
        gained = [_gained_s(s) for s in states]
        kept = {
            i: c
            for i, c in change.items()
            if states[i].trials + size <= most or gained[i] >= LEAST_GAIN * sum(gained) > 0
        }
        return kept or change

    def _earlier(self, s: TaskState) -> float:
        """Best seconds `window` slots ago; inf if that was before this run or before the first valid result."""
        until = s.trials - self.window * self.trials
        return next((best for trials, _, best in reversed(s.curve) if trials <= until), math.inf)


WORTH = 0.5
"""A slot is chosen before the one in hand is measured only if so much of that one's gain is expected of it: else the
same task may deserve the next one too."""

LEAST_GAIN = 0.02
"""Share of all gains below which a task's slots count as in vain."""


def _gained_s(s: TaskState) -> float:
    """Seconds that the task's slots of this run saved the model, the first program's excepted."""
    known = [best for trial, best in s.incumbents if trial <= s.restored]
    firsts = known[-1:] or [best for _, _, best in s.curve if math.isfinite(best)][:1]
    return s.weight * (firsts[0] - s.best_s) if firsts and valid(s) else 0.0
