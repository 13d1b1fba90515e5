"""Hill climbing."""

from __future__ import annotations

import numpy as np
from tt_spec import Context, Proposal, draw, tokens

__all__ = ["HillClimb"]


class HillClimb:
    """(1 + lambda) evolution: children of the fastest row, mutated one step after the other.

    Source: Rechenberg (1973), Evolutionsstrategie; the variant with lambda children: Schwefel (1977).

    Args:
        steps: Mutations between a child and its parent, at most. (default: 3)
        children: Children per row asked for, of which the best by the cost model are proposed. (default: 4)
    """

    def __init__(self, steps: int = 3, children: int = 4) -> None:
        self.steps, self.children = steps, children

    def propose(self, ctx: Context, n: int) -> Proposal:
        found = [ctx.rows[:0]]
        if ctx.y.any():
            parent = ctx.rows[int(np.argmax(ctx.y))]
            found.append(ctx.space.neighbours(parent))
            child = np.repeat(parent[None], self.children * n, axis=0)
            for _ in range(self.steps):
                child = ctx.space.mutate(child, ctx.rng)
                found.append(child)
        codes = np.concatenate(found)
        codes = codes[ctx.fresh(codes)]
        climbed = len(codes)
        if climbed < n:  # a small hill, or no foothold yet
            seen = ctx.seen | set(tokens(codes))
            codes = np.concatenate([codes, draw(ctx.space, seen, n - climbed, ctx.rng)])
        scores = ctx.score(codes)
        best = np.argsort(-scores, kind="stable")[:n]
        return Proposal(codes[best], scores[best], info={"climbed": climbed})
