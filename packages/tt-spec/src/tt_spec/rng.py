"""Randomness that depends on what it is for, not on when it is asked."""

from __future__ import annotations

import hashlib

import numpy as np

from tt_spec.space import Space, token, tokens

__all__ = ["draw", "first_of", "in_turn", "overdue", "rng_for"]


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


def overdue(space: Space, seen: set[bytes] | frozenset[bytes], n: int) -> list[int]:
    """Choices of a knob with a prior that no seen row has, and whose turn would be among the next `n`, as in `draw`."""
    turns = _Turns(space, seen)
    return [] if turns.knob is None else turns.overdue(n)


def first_of(space: Space, rows: np.ndarray, choices: list[int]) -> np.ndarray:
    """The first of the rows `(m, d)` with each of these choices of the knob with a prior, as far as there is one."""
    knob = _Turns(space, frozenset()).knob
    found = [np.flatnonzero(rows[:, knob] == c)[:1] for c in choices] if knob is not None else []
    return rows[np.concatenate(found)] if found else rows[:0]


class _Turns:
    """The turns of the choices of the first knob that has a prior."""

    def __init__(self, space: Space, seen: set[bytes] | frozenset[bytes]) -> None:
        self.knob = next((i for i, k in enumerate(space.knobs) if k.prior and k.active_if is None), None)
        self.wider = 1
        if self.knob is not None:
            self.prior, self.wider = np.asarray(space.knobs[self.knob].prior, dtype=np.float64), 6
            rows = np.frombuffer(b"".join(seen), dtype=np.int64).reshape(-1, len(space.knobs))
            self.had = np.bincount(rows[:, self.knob], minlength=len(self.prior))

    def overdue(self, n: int) -> list[int]:
        """Choices that had no turn yet and would have one among the next `n`."""
        had, new = self.had.copy(), []
        for _ in range(n):
            turn = int(((had + 1) / self.prior).argmin())
            new += [turn] if not had[turn] else []
            had[turn] += 1
        return new

    def pick(self, rows: list[np.ndarray], n: int) -> list[np.ndarray]:
        """Up to `n` of the rows, in turn; those of one choice in their order."""
        if self.knob is None:
            return rows[:n]
        waiting = [[r for r in reversed(rows) if r[self.knob] == c] for c in range(len(self.prior))]
        picked: list[np.ndarray] = []
        while len(picked) < n and any(waiting):
            there = np.array([bool(w) for w in waiting])
            turn = int(np.where(there, (self.had + 1) / self.prior, np.inf).argmin())
            self.had[turn] += 1
            picked.append(waiting[turn].pop())
        return picked
