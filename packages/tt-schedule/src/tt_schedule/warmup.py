"""First slots: every task gets a valid result before anyone compares tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from tt_spec.types import Slot, TaskState

__all__ = ["WARM_UP", "first_slot", "rest_of_warm_up", "valid", "warm_up"]


def valid(s: TaskState) -> bool:
    """Whether the task has a program that works."""
    return math.isfinite(s.best_s)


def first_slot(states: Sequence[TaskState], trials: int, rows: float) -> int:
    """Trials of a first slot: one for every task shall fit into half of the run's budget, spent and left.

    Args:
        trials: Of a full slot.
        rows: What is left of the budget; inf where nothing bounds it.
    """
    half = (rows + sum(s.trials for s in states)) / 2
    return trials if half >= trials * len(states) else max(1, math.floor(half / len(states)))


def warm_up(states: Sequence[TaskState], trials: int, rows: float, most: int, light: float = 0.0) -> Slot | None:
    """The next first slot; None once every task has a valid result or had its share of attempts.

    The task with the fewest slots comes first, then the largest `weight * flops`. One without a valid result gets up
    to `most` slots in this run, so that it neither starves nor holds the others up.

    Args:
        trials, rows: See `first_slot`.
        light: A task with less than this share of the model's FLOP gets a quarter of a slot.
    """
    size = first_slot(states, trials, rows)
    slots = {i: math.ceil(s.trials / size) for i, s in enumerate(states) if s.finished is None and not valid(s)}
    cold = [i for i, n in slots.items() if n < max(most, 1)]
    if not cold:
        return None
    return _first(states, min(cold, key=lambda i: (slots[i], *_largest(states, i))), size, trials, light)


def rest_of_warm_up(
    states: Sequence[TaskState], slot: Slot, most: int, trials: int, rows: float, light: float = 0.0
) -> list[Slot]:
    """The first slots that `warm_up` will give after `slot`, which is one of them: to tasks that had none yet and have
    no valid result, `most` trials in all at most. None of them depends on what another finds."""
    if slot.info.get("why") != WARM_UP:
        return []
    size = first_slot(states, trials, rows)
    new = (i for i, s in enumerate(states) if s.finished is None and not valid(s) and not s.trials and i != slot.task)
    slots = [_first(states, i, size, trials, light) for i in sorted(new, key=lambda i: _largest(states, i))]
    return [s for s, total in zip(slots, accumulate(s.trials or 0 for s in slots), strict=True) if total <= most]


WARM_UP = "warm-up"
"""The reason of a first slot, in its `info`."""


def _first(states: Sequence[TaskState], i: int, size: int, trials: int, light: float) -> Slot:
    whole = sum(s.weight * s.flops for s in states)
    small = states[i].weight * states[i].flops < light * whole
    return Slot(i, trials=max(1, min(size, trials // 4)) if small else size, info={"why": WARM_UP})


def _largest(states: Sequence[TaskState], i: int) -> tuple[float, int]:
    """Sorts tasks by what they compute, the most first."""
    return -states[i].weight * states[i].flops, i
