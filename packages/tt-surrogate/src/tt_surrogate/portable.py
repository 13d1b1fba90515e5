"""Columns of knobs that mean the same in every task, so that one model serves operators of any shape.

`Space.encode` has as many columns as a space has knobs, and what they mean depends on the space. Here a column is known
by its name, "template.tile[0]" or "template.order=rows | columns", and beside the knobs stand columns of the task: the
largest value that a factor may take, which gives a tile its proportion, the extent of each tiled loop and the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from tt_spec import Knob, Space, Task

__all__ = ["Portable", "all_columns"]


class Portable:
    """A task's rows in named columns.

    Args:
        columns: Names, in order; those that the task lacks are NaN, which trees take as missing.
    """

    def __init__(self, task: Task, columns: Sequence[str]) -> None:
        place = {name: i for i, name in enumerate(_of_rows(task.space))}
        same = _of_task(task)
        there = [(j, place[name]) for j, name in enumerate(columns) if name in place]
        self._to, self._from = np.array(there, dtype=np.int64).reshape(-1, 2).T
        other = [0.0 if name.startswith("space=") else np.nan for name in columns]
        self._same = np.array([same.get(name, x) for name, x in zip(columns, other, strict=True)], dtype=np.float32)

    @property
    def known(self) -> bool:
        """Whether any column says what a row is."""
        return len(self._to) > 0

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Features `(n, len(columns))` float32 of rows `(n, p)` as `task.space.encode` gives them."""
        out = np.repeat(self._same[None], len(X), axis=0)
        out[:, self._to] = X[:, self._from]
        return out


def all_columns(tasks: Iterable[Task]) -> list[str]:
    """Every column that one of the tasks has, by name."""
    return sorted({name for task in tasks for name in (*_of_rows(task.space), *_of_task(task))})


def _of_rows(space: Space) -> list[str]:
    """The name of each column of `space.encode`. A space of one part names its knobs as a union of spaces does; the
    name of a sketch's knob, which counts loops, has the number of factors of all its tiles."""
    joined = space.knobs[0].name == "space"
    shape = ",".join(str(len(k.choices[0])) for k in space.knobs if k.kind == "tile" and _part(space, k) == "sketch")
    found: list[str] = []
    for knob in space.knobs:
        name = knob.name if joined else f"{space.name}.{knob.name}"
        if _part(space, knob) == "sketch":
            name = f"sketch {shape}.{name.removeprefix('sketch.')}"
        if knob.kind == "tile":
            found += [f"{name}[{i}]" for i in range(len(knob.choices[0]))]
        elif knob.ordered or len(knob.choices) == 1:
            found.append(name)
        else:
            found += [f"{name}={choice}" for choice in knob.choices]
    return found


def _part(space: Space, knob: Knob) -> str:
    """The part of a space that a knob is of."""
    return knob.name.split(".")[0] if space.knobs[0].name == "space" else space.name


def _of_task(task: Task) -> dict[str, float]:
    """Columns that are the same for all rows of a task, by name: log2 of what a task has, and the part of a space that
    has but one, which a union of spaces has as a knob."""
    found = {"flops": math.log2(max(task.flops, 1.0))}
    if task.space.knobs[0].name != "space":
        found[f"space={task.space.name}"] = 1.0
    column = iter(_of_rows(task.space))
    for knob in task.space.knobs:
        table = knob.table
        for most in table.max(axis=0):
            name = next(column)
            if knob.kind == "tile" or knob.ordered:
                found[f"most {name}"] = float(most)
                if knob.kind == "tile":
                    found[f"extent {name[: name.rindex('[')]}"] = float(table.sum(axis=1).max())
    return found
