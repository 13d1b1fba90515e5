"""Rows of one space as another one would say them: knobs join where names and kinds agree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from tt_spec.space import Knob, Space

__all__ = ["columns", "nearest_row", "translated"]

_CANDIDATES = 1024
"""Random rows among which a legal one is looked for."""

_PART = 100.0
"""Weight of the knob that says which part of a space a row is of: another part is another algorithm."""


def translated(space: Space, foreign: Space, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Foreign rows in the columns of `space.encode`.

    Returns:
        Features `(n, p)`, 0 where a column has no counterpart; which columns of each row have one, `(n, p)` bool; and
        which rows share at least one knob of theirs with the space, `(n,)` bool.
    """
    theirs = {name: i for i, name in enumerate(_names(foreign))}
    on = foreign.active(codes)
    parts, known, joined = [], [], np.zeros(len(codes), dtype=bool)
    for knob, name in zip(space.knobs, _names(space), strict=True):
        width = knob.table.shape[1]
        X, have = np.zeros((len(codes), width)), np.zeros(len(codes), dtype=bool)
        if name in theirs:
            i = theirs[name]
            table = _table(knob, foreign.knobs[i])
            if table is not None:
                have = on[:, i] & np.isfinite(table[codes[:, i]]).all(axis=1)
                X[have] = table[codes[have, i]]
                joined |= have & (name != "space")
        elif name == "space" and foreign.name in knob.choices:  # a space of one part, seen from one of several
            X[:, knob.choices.index(foreign.name)], have = 1.0, np.ones(len(codes), dtype=bool)
        parts.append(X)
        known.append(np.repeat(have[:, None], width, axis=1))
    return np.concatenate(parts, axis=1), np.concatenate(known, axis=1), joined


def columns(space: Space) -> list[slice]:
    """The columns of `space.encode` that each knob has."""
    ends = np.cumsum([k.table.shape[1] for k in space.knobs]).tolist()
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]


def nearest_row(space: Space, wanted: np.ndarray, known: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """The legal row `(d,)` whose features come nearest to `wanted` `(p,)` where these are `known` `(p,)` bool.

    Every knob's own nearest choice if that row is legal, else the nearest of its neighbours and of random rows; None
    where there is no legal row.
    """
    where = columns(space)
    row = np.zeros(len(space.knobs), dtype=np.int64)
    weight = known.astype(np.float64)
    for i, (knob, at) in enumerate(zip(space.knobs, where, strict=True)):
        if known[at].all():
            row[i] = int(((knob.table - wanted[at]) ** 2).sum(axis=1).argmin())
        if knob.name == "space":
            weight[at] *= _PART
    codes = space.canonical(np.concatenate([row[None], *_changed(space, row), space.sample(_CANDIDATES, rng)]))
    codes = codes[space.allowed(codes)]
    if not len(codes):
        return None
    apart = ((space.encode(codes) - wanted) ** 2 * weight).sum(axis=1)
    return codes[int(apart.argmin())]


def _changed(space: Space, row: np.ndarray) -> Iterator[np.ndarray]:
    """The row with each knob changed in turn."""
    for i, n in enumerate(space.shape):
        codes = np.repeat(row[None], n, axis=0)
        codes[:, i] = np.arange(n)
        yield codes


def _names(space: Space) -> list[str]:
    """Names of the knobs, those of a space of one part with the part's name before them, as a union of spaces has
    them."""
    first = space.knobs[0]
    if first.name == "space" and first.kind == "choice":
        return [k.name for k in space.knobs]
    return [f"{space.name}.{k.name}" for k in space.knobs]


def _table(knob: Knob, foreign: Knob) -> np.ndarray | None:
    """The columns of each foreign choice, `(choices, p)`, NaN where the knob cannot say it; None where kinds differ."""
    if knob.kind != foreign.kind or knob.ordered != foreign.ordered:
        return None
    if knob.kind == "tile":
        same = len(knob.choices[0]) == len(foreign.choices[0])
        return foreign.table if same else None
    if knob.ordered:
        return foreign.table
    table = np.full((len(foreign.choices), knob.table.shape[1]), np.nan)
    for i, choice in enumerate(foreign.choices):
        if choice in knob.choices:
            table[i] = knob.table[knob.choices.index(choice)]
    return table
