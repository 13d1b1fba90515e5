"""Timing several things in turns, so that a drift of the machine meets all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["block", "in_turns"]

SETTLE_S = 0.3
"""Pause before a turn: idle threads of TVM's pool look for work for 0.1 to 0.2 s before they sleep, those of others for
less, and meanwhile share processors with whoever has the next turn."""


def block(call: Callable[[], object], seconds: float = 0.0, warm: int = 0) -> float:
    """Mean seconds per call over calls back to back.

    Args:
        seconds: Length of the block; at least one call is timed. (default: 0, one call)
        warm: Calls before, which do not count: its threads may be asleep, and its data elsewhere. (default: 0)
    """
    for _ in range(warm):
        call()
    start = time.perf_counter()
    n, passed = 0, 0.0
    while not n or passed < seconds:
        call()
        n, passed = n + 1, time.perf_counter() - start
    return passed / n


def in_turns(
    timed: Mapping[str, Callable[[], float]], rounds: int, skip: int = 0, settle_s: float = SETTLE_S
) -> dict[str, list[float]]:
    """The seconds that each of `timed` gives, by its name: all of them in every round, one after the other.

    Args:
        timed: Each times itself, e.g. by `block`.
        rounds: That count.
        skip: Rounds before those. (default: 0)
        settle_s: Pause before each turn; 0 where all have one pool of threads. (default: `SETTLE_S`)
    """
    found: dict[str, list[float]] = {name: [] for name in timed}
    for i in range(skip + rounds):
        for name, once in timed.items():
            if settle_s:
                time.sleep(settle_s)
            seconds = once()
            if i >= skip:
                found[name].append(seconds)
    return found
