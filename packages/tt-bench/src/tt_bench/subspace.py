"""Sub-spaces small enough to be recorded completely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from tt_spec import Space

__all__ = ["Enumerated", "Keep", "importance", "narrow", "restrict", "thin", "widen"]

Keep = tuple[tuple[int, ...], ...]
"""Of each knob, the codes that a sub-space keeps."""


class Enumerated(Space):
    """A space small enough to be listed, whose rows are drawn with equal chances.

    Knobs drawn one by one, and priors, favour the rows of a small branch, Winograd's for one. Random search would then
    do better or worse than the calculated one, which scores 0 (`tt_bench.score`).
    """

    @cached_property
    def _all(self) -> np.ndarray:
        return np.stack(list(self.enumerate()))

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows, drawn independently and with equal chances."""
        return self._all[rng.integers(0, len(self._all), n)]


def restrict(space: Space, keep: Keep) -> Enumerated:
    """The space whose knobs have only the choices kept; its key differs from the whole one's unless all are."""
    knobs = []
    for knob, codes in zip(space.knobs, keep, strict=True):
        active = knob.active_if
        if active is not None:
            active = (active[0], tuple(i for i, c in enumerate(keep[active[0]]) if c in active[1]))
        choices = tuple(knob.choices[c] for c in codes)
        knobs.append(replace(knob, choices=choices, active_if=active, prior=None))
    return Enumerated(tuple(knobs), version=space.version, limits=space.limits, name=space.name)


def widen(space: Space, keep: Keep, codes: np.ndarray) -> np.ndarray:
    """Rows of the sub-space, `(n, d)`, as rows of the whole `space`."""
    full = np.stack([np.asarray(kept)[codes[:, i]] for i, kept in enumerate(keep)], axis=1)
    return space.canonical(full)


def narrow(space: Space, keep: Keep, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the whole `space` that lie in the sub-space, in its codes, and which those are, `(n,)` bool."""
    active = space.active(codes)
    inside = np.ones(len(codes), dtype=bool)
    found = np.zeros_like(codes)
    for i, kept in enumerate(keep):
        place = {c: j for j, c in enumerate(kept)}
        at = np.array([place.get(int(c), -1) for c in codes[:, i]], dtype=np.int64)
        inside &= ~active[:, i] | (at >= 0)
        found[:, i] = np.where(active[:, i], at, 0)
    return found[inside], inside


def importance(labels: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The share of the variance of log seconds that each knob explains alone, `(d,)` in [0, 1].

    Omega squared of a one-way analysis of variance, which, unlike eta squared, does not grow with the number of
    choices. Source: Hays (1963), Statistics for Psychologists, section 10.

    Args:
        labels: `(n, d)` int, what each valid row chose; a knob that does not matter in a row has a choice of its own.
        seconds: `(n,)`, finite.
    """
    y = np.log(seconds)
    total = float(((y - y.mean()) ** 2).sum()) if len(y) else 0.0
    out = np.zeros(labels.shape[1])
    if total <= 0:
        return out
    for i in range(labels.shape[1]):
        groups = [y[labels[:, i] == c] for c in np.unique(labels[:, i])]
        if not 1 < len(groups) < len(y):
            continue
        within = sum(float(((g - g.mean()) ** 2).sum()) for g in groups) / (len(y) - len(groups))
        between = sum(len(g) * float((g.mean() - y.mean()) ** 2) for g in groups)
        out[i] = min(1.0, max(0.0, (between - (len(groups) - 1) * within) / (total + within)))
    return out


def thin(space: Space, most: int, best: np.ndarray, weight: Sequence[float] | np.ndarray) -> Keep:
    """Choices to keep so that at most `most` rows are left.

    The knobs that matter least are fixed at the best known row's choice, one by one, those on which others depend
    (template or Winograd) last; if the last one left still has too many choices, evenly spread ones are kept.

    Args:
        best: `(d,)`, the row whose choices fixed knobs have.
        weight: Of each knob, e.g. `importance`.
    """
    keep = [tuple(range(n)) for n in space.shape]
    deciding = {k.active_if[0] for k in space.knobs if k.active_if}
    for i in sorted(range(len(keep)), key=lambda i: (i in deciding, weight[i], -len(keep[i]))):
        size = restrict(space, tuple(keep)).size
        if size <= most:
            break
        others = size // max(len(keep[i]), 1)
        if others <= most // 2 and others * len(keep[i]) > most:  # a part of this knob's choices fits
            spread = np.linspace(0, len(keep[i]) - 1, max(1, most // max(others, 1))).round().astype(int)
            keep[i] = tuple(sorted({*map(int, spread[:-1]), int(best[i])}))
        else:
            keep[i] = (int(best[i]),)
    return tuple(keep)
