"""Randomness that depends on what it is for, not on when it is asked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from tt_spec.space import Space, token, tokens

__all__ = ["draw", "in_turn", "rng_for", "untried"]


def rng_for(seed: int, task_key: str, role: str, turn: int) -> np.random.Generator:
    """A generator of `SeedSequence(seed, task key, role, turn)`: a task's curve does not depend on the schedule."""
    words = [int.from_bytes(hashlib.sha256(t.encode()).digest()[:8], "big") for t in (task_key, role)]
    return np.random.default_rng(np.random.SeedSequence([seed, *words, turn]))


def draw(space: Space, seen: set[bytes] | frozenset[bytes], n: int, rng: np.random.Generator) -> np.ndarray:
    """Up to `n` distinct rows of the space, `(m, d)`, none of them in `seen`; fewer only when hardly any is left.

    Where a knob has a prior, its choices take turns so that seen and drawn rows together divide by it, as seats of a
    parliament do: a few random rows then hold every algorithm that deserves one, and the random rows of a search that
    only asks for one algorithm are of the others. Source: D'Hondt's method.
    """
    out: list[np.ndarray] = []
    drawn: set[bytes] = set()
    turns = _Turns(space, seen)

    def take(rows: np.ndarray) -> None:
        fresh = dict(zip(tokens(rows), rows, strict=True))
        unknown = [r for name, r in fresh.items() if name not in seen and name not in drawn]
        for row in turns.pick(unknown, n - len(out)):
            drawn.add(token(row))
            out.append(row)

    for _ in range(8):
        if len(out) >= n:
            break
        take(space.sample(turns.wider * (2 * (n - len(out)) + 8), rng))
    if len(out) < n and space.size <= 20_000:
        left = list(space.enumerate())
        take(np.stack(left)[rng.permutation(len(left))] if left else np.empty((0, len(space.knobs)), dtype=np.int64))
    return np.stack(out) if out else np.empty((0, len(space.knobs)), dtype=np.int64)


def in_turn(space: Space, seen: set[bytes] | frozenset[bytes], rows: np.ndarray, n: int) -> np.ndarray:
    """Up to `n` of the rows `(m, d)`, best first, the choices of a knob with a prior taking turns as in `draw`."""
    picked = _Turns(space, seen).pick(list(rows), n)
    return np.stack(picked) if picked else rows[:0]


def untried(space: Space, seen: set[bytes] | frozenset[bytes], n: int, rows: Callable[[], np.ndarray]) -> np.ndarray:
    """A row of each choice that no seen row has and whose turn is among the next `n`, as in `draw`: its first one of
    `rows`, which are made only if there is such a choice. Where a knob with a prior hangs on a choice, its choices
    share that one's turns."""
    turns = _Turns(space, seen, nested=True)
    had = turns.had.copy()
    while turns.knob is not None and turns.had.sum() < had.sum() + n:
        turns.next(True)
    due = np.flatnonzero((had == 0) & (turns.had > 0))
    if not len(due):
        return np.empty((0, len(space.knobs)), dtype=np.int64)
    found = rows()
    choices = turns.of(found)
    return found[np.concatenate([np.flatnonzero(choices == choice)[:1] for choice in due])]


class _Turns:
    """The turns of the choices of the first knob that has a prior; if `nested`, choices of a knob with a prior that
    hangs on one of them stand in its place."""

    def __init__(self, space: Space, seen: set[bytes] | frozenset[bytes], nested: bool = False) -> None:
        self.knob = next((i for i, k in enumerate(space.knobs) if k.prior and k.active_if is None), None)
        self.wider, self.had = 1, np.zeros(0, dtype=np.int64)
        if self.knob is not None:
            self.wider, shares = 6, space.knobs[self.knob].prior or ()
            below = [_below(space, (self.knob, (c,))) if nested else None for c in range(len(shares))]
            self._knobs = np.array([self.knob if k is None else k for k in below])
            parts = [np.ones(1) if k is None else np.asarray(space.knobs[k].prior, dtype=np.float64) for k in below]
            self._first = np.cumsum([0, *map(len, parts)])[:-1]
            self.prior = np.concatenate([share * p / p.sum() for share, p in zip(shares, parts, strict=True)])
            rows = np.frombuffer(b"".join(seen), dtype=np.int64).reshape(-1, len(space.knobs))
            self.had = np.bincount(self.of(rows), minlength=len(self.prior))

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Which choice each row `(m, d)` has, `(m,)`."""
        choices = rows[:, self.knob]
        knobs = self._knobs[choices]
        return self._first[choices] + np.where(knobs == self.knob, 0, rows[np.arange(len(rows)), knobs])

    def next(self, there: np.ndarray | bool) -> int:
        """The choice whose turn it is among those that are `there`."""
        turn = int(np.where(there, (self.had + 1) / self.prior, np.inf).argmin())
        self.had[turn] += 1
        return turn

    def pick(self, rows: list[np.ndarray], n: int) -> list[np.ndarray]:
        """Up to `n` of the rows, in turn; those of one choice in their order."""
        if self.knob is None or not rows:
            return rows[:n]
        waiting: list[list[np.ndarray]] = [[] for _ in self.prior]
        for row, choice in zip(reversed(rows), reversed(self.of(np.stack(rows)).tolist()), strict=True):
            waiting[choice].append(row)
        picked: list[np.ndarray] = []
        while len(picked) < n and any(waiting):
            there = np.array([bool(w) for w in waiting])
            picked.append(waiting[self.next(there)].pop())
        return picked


def _below(space: Space, hangs: tuple[int, tuple[int, ...]]) -> int | None:
    """The first knob with a prior that is active for this choice alone."""
    return next((i for i, k in enumerate(space.knobs) if k.prior and k.active_if == hangs), None)
