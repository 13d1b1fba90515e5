"""Greedy selection."""

from __future__ import annotations

import numpy as np

from tt_spec.types import Context, Proposal, Selection

__all__ = ["TopSampler"]


class TopSampler:
    """The `n` fresh rows of highest score, ties in the searcher's order."""

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        order = np.argsort(-proposal.scores, kind="stable")
        codes = proposal.codes[order]
        return Selection(codes[ctx.fresh(codes)][:n])
