"""Random search."""

from __future__ import annotations

import numpy as np

from tt_spec.rng import draw
from tt_spec.types import Context, Proposal

__all__ = ["RandomSearcher"]


class RandomSearcher:
    """Uniform random rows: the baseline every searcher must beat.

    Source: Bergstra and Bengio (2012), Random search for hyper-parameter optimization, JMLR 13.
    """

    def propose(self, ctx: Context, n: int) -> Proposal:
        codes = draw(ctx.space, ctx.seen, n, ctx.rng)
        return Proposal(codes, np.zeros(len(codes)))
