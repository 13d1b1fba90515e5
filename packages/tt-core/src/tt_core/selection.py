"""The choice of a model's tasks: `--tasks`, `--skip` and `--only-heavy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from tt_spec import Task, nearest
from tt_spec.errors import OptionError
from tt_spec.shares import heavy, shares

from tt_core.errors import ModelError

__all__ = ["select", "share_of"]


def select(
    tasks: Sequence[Task],
    wanted: str | Sequence[str] = "*",
    skip: str | Sequence[str] = (),
    only_heavy: bool = False,
    best_s: Mapping[str, float] | None = None,
) -> list[Task]:
    """The tasks that are wanted, without those to skip, in the model's order.

    A pattern is a shell's, several may be joined by commas. It stands for the tasks of that name, or where there is
    none, for those of that operator: "conv2d_add*", "dwconv2d,softmax".

    Args:
        only_heavy: Only the fewest tasks that hold 95 % of the whole model's latency; see `share_of`.
        best_s: What is known of the latencies, seconds by task key.

    Raises `OptionError` for a pattern that matches nothing, and where nothing is left; `ModelError` without any task.
    """
    if not tasks:
        what = "all in it is constant, a view or a call of TVM's runtime"
        raise ModelError(f"the model has no operator that can be tuned: {what}")
    keys = _matching(tasks, wanted, "--tasks") - _matching(tasks, skip, "--skip")
    if not keys:
        raise OptionError(f"--skip {_text(skip)} leaves none of the tasks that --tasks {_text(wanted)} chose")
    if only_heavy:
        weighty = {t.key for t, h in zip(tasks, heavy(share_of(tasks, best_s)), strict=True) if h}
        if not keys & weighty:
            names = ", ".join(t.name for t in tasks if t.key in weighty)
            raise OptionError(f"--only-heavy leaves none of the chosen tasks; the heavy ones are {names}")
        keys &= weighty
    return [t for t in tasks if t.key in keys]


def share_of(tasks: Sequence[Task], best_s: Mapping[str, float] | None = None) -> np.ndarray:
    """Share of each task in the model's latency, `(n,)`: measured where `best_s` knows it, by FLOP elsewhere."""
    known = best_s or {}
    return shares(tasks, [known.get(t.key, np.inf) for t in tasks])


def _matching(tasks: Sequence[Task], patterns: str | Sequence[str], option: str) -> set[str]:
    found: set[str] = set()
    for pattern in _split(patterns):
        keys = {t.key for t in tasks if fnmatchcase(t.name, pattern)}
        keys = keys or {t.key for t in tasks if fnmatchcase(t.op, pattern)}
        if not keys:
            known = [*(t.name for t in tasks), *sorted({t.op for t in tasks} - {t.name for t in tasks})]
            raise OptionError(f"{option} {pattern!r} matches none of the {len(tasks)} tasks{nearest(pattern, known)}")
        found |= keys
    return found


def _split(patterns: str | Sequence[str]) -> list[str]:
    texts = [patterns] if isinstance(patterns, str) else patterns
    return [p.strip() for text in texts for p in text.split(",")]


def _text(patterns: str | Sequence[str]) -> str:
    return ",".join(_split(patterns))
