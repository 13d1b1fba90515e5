"""Randomness that depends on what it is for, not on when it is asked."""

from __future__ import annotations

import hashlib

import numpy as np

from tt_spec.space import Space

__all__ = ["draw", "rng_for"]


def rng_for(seed: int, task_key: str, role: str, round: int) -> np.random.Generator:
    """A generator of `SeedSequence(seed, task key, role, round)`: a task's curve does not depend on the schedule."""
    words = [int.from_bytes(hashlib.sha256(t.encode()).digest()[:8], "big") for t in (task_key, role)]
    return np.random.default_rng(np.random.SeedSequence([seed, *words, round]))


def draw(space: Space, seen: set[bytes] | frozenset[bytes], n: int, rng: np.random.Generator) -> np.ndarray:
    """Up to `n` distinct rows of the space, `(m, d)`, none of them in `seen`; fewer only when hardly any is left."""
    out: list[np.ndarray] = []
    known = set(seen)

    def take(rows: np.ndarray) -> None:
        for row in np.ascontiguousarray(rows, dtype=np.int64):
            if len(out) < n and row.tobytes() not in known:
                known.add(row.tobytes())
                out.append(row)

    for _ in range(8):
        if len(out) >= n:
            break
        take(space.sample(2 * (n - len(out)) + 8, rng))
    if len(out) < n and space.size <= 20_000:
        left = list(space.enumerate())
        take(np.stack(left)[rng.permutation(len(left))] if left else np.empty((0, len(space.knobs)), dtype=np.int64))
    return np.stack(out) if out else np.empty((0, len(space.knobs)), dtype=np.int64)
