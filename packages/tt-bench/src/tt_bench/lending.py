"""Recorded rows of other tasks, lent to a search as a history would."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tt_spec import Foreign, Measurement, Plugins, Space, Task, Trial
from tt_spec.roles import Lends, Remembers, capabilities

from tt_bench.errors import BenchError
from tt_bench.recording import Recorded

__all__ = ["DEVICE", "lender"]

DEVICE = "recorded"


def lender(
    parts: Sequence[Recorded], others: Sequence[Recorded], plugins: Plugins
) -> Callable[[Task, int], Sequence[Foreign]]:
    """The rows that a history lends which holds all of `others`; the tasks of `parts` themselves are left out.

    The rows go through a store in memory, so that the store's own rule says which are near.
    """
    store: Any = plugins.build("store", "sqlite", path=":memory:")
    if not {Lends, Remembers} <= set(capabilities("store", store)):
        raise BenchError("the store sqlite lends no rows: pip install --upgrade tt-history")
    own = {p.task.key for p in parts} | {p.whole.key for p in parts}
    kept = [p for p in others if p.whole.key not in own]
    store.remember([dataclasses.replace(p.task, spaces=(_plain(p.space),)) for p in kept])
    for p in kept:
        store.append([_measured(p, i) for i in range(len(p.rows))])
    return lambda task, rows: store.lend(task, DEVICE, rows)


def _plain(space: Space) -> Space:
    """A sub-space as a store keeps it: the same rows by the same key."""
    return Space(space.knobs, space.version, space.limits, space.name)


def _measured(part: Recorded, i: int) -> Measurement:
    known = part.measured[i]
    seconds = () if known.error is not None else (float(part.latency[i]),)
    row = tuple(int(c) for c in part.rows[i])
    return Measurement.of(Trial(row, seconds, error=known.error, why=known.why), part.task, device=DEVICE)
