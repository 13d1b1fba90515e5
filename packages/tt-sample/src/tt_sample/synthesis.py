"""Sample synthesis: new configurations of the most frequent knob values."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator

import numpy as np
from tt_spec.space import Space, tokens

__all__ = ["synthesise"]


def synthesise(
    space: Space, candidates: np.ndarray, n: int, visited: Collection[bytes] = frozenset(), tries: int = 4096
) -> np.ndarray:
    """Up to `n` distinct, canonical, allowed rows that are not in `visited`, `(m, d)`.

    The first is the mode of every knob over the candidates, the next ones exchange the values whose frequencies
    differ least: rows come in the order of the product of their values' frequencies. Values count where the
    candidate uses the knob; candidates that the space does not allow do not count.

    Fewer than `n` rows come back when the candidates' values have no further combination.

    Source: Ahn et al. (2020), Chameleon, section 3.3 (ICLR), which has the mode only.

    Args:
        candidates: `(c, d)`.
        visited: Tokens of rows (`tt_spec.token`), as `Context.seen`.
        tries: Combinations looked at before giving up.
    """
    candidates = candidates[space.allowed(candidates)]
    taken, out = set(visited), []
    if not len(candidates) or n < 1:
        return candidates[:0]
    combinations = itertools.islice(_likely(space, candidates), tries)
    while len(out) < n and (some := list(itertools.islice(combinations, max(8, n)))):
        rows = space.canonical(np.array(some))
        rows = rows[space.allowed(rows)]
        for row, name in zip(rows, tokens(rows), strict=True):
            if len(out) < n and name not in taken:
                taken.add(name)
                out.append(row)
    return np.stack(out) if out else candidates[:0]


def _likely(space: Space, candidates: np.ndarray) -> Iterator[list[int]]:
    """Combinations of the candidates' values, the most probable first if knobs were independent."""
    values, costs = [], []
    on = space.active(candidates)
    for j in range(candidates.shape[1]):
        used = candidates[on[:, j], j]
        found, counts = np.unique(used if len(used) else [0], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        values.append(found[order].tolist())
        costs.append(-np.log(counts[order] / counts.sum()))
    first = tuple([0] * len(values))
    heap = [(float(sum(c[0] for c in costs)), first, 0)]
    while heap:
        cost, at, last = heapq.heappop(heap)
        yield [v[i] for v, i in zip(values, at, strict=True)]
        for j in range(last, len(values)):  # knobs before `last` stay, so that each combination has one parent
            if at[j] + 1 < len(values[j]):
                step = float(costs[j][at[j] + 1] - costs[j][at[j]])
                heapq.heappush(heap, (cost + step, (*at[:j], at[j] + 1, *at[j + 1 :]), j))
