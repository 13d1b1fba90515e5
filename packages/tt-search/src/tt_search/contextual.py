"""Simulated annealing whose exploration follows the model's doubt."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from tt_spec.rng import draw
from tt_spec.types import Context, Proposal

from tt_search.anneal import Anneal

__all__ = ["ContextualAnneal", "contextual_epsilon"]


class ContextualAnneal:
    """`Anneal` with epsilon_t, the random share of each batch, set by how uncertain the model is:

        epsilon_t = (1/K sum_k std(f(p_k))) / Perf(p*)

    over K random plans p_k that were not measured. `Perf` is the label, so Perf(p*), the best so far, is 1. A share
    above 1 counts as 1. The trace is `epsilon` in the event log.

    Source: Li et al. (2020), AdaTune, section 4.2.2, equation 3 and Algorithm 1 (NeurIPS 2020).

    A fixed epsilon, as in the paper's Figure 4, is `anneal` with `random_share`.

    Args:
        probe: K. (default: 20, as the paper)
        first: Epsilon before there is a model, and with a model that reports no doubt: a deviation of 0
            everywhere. (default: 0.05, as the paper's public code)
        chains, steps, temperature, unit, patience, keep, choice: As `Anneal`'s; but the temperature counts in
            spreads, because expected improvements are small numbers. (temperature: 0.3, unit: "spread")
    """

    def __init__(
        self,
        probe: int = 20,
        first: float = 0.05,
        chains: int = 128,
        steps: int = 500,
        temperature: float = 0.3,
        unit: Literal["score", "spread"] = "spread",
        patience: int = 50,
        keep: int = 64,
        choice: float = 2.0,
    ) -> None:
        self.probe, self.first = probe, first
        self.anneal = Anneal(chains, steps, temperature, unit, patience, keep, choice, random_share=first)

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Up to `choice * n` rows, best first; random ones before there is a model."""
        proposal = self.anneal.propose(ctx, n)
        if not ctx.fitted:
            return proposal
        epsilon = self._epsilon(ctx)
        info = {**proposal.info, "epsilon": epsilon}
        return dataclasses.replace(proposal, random_share=epsilon, info=info)

    def _epsilon(self, ctx: Context) -> float:
        plans = draw(ctx.space, ctx.seen, self.probe, ctx.rng)
        if not len(plans):
            return 0.0
        std = ctx.predict(plans).std
        return contextual_epsilon(std, float(ctx.y.max(initial=0.0))) if std.any() else self.first


def contextual_epsilon(std: np.ndarray, best: float) -> float:
    """Equation 3: mean of the deviations `(K,)` divided by the best label, at most 1."""
    return min(float(std.mean()) / best, 1.0) if best > 0 else 1.0
