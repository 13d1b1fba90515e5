"""Simulated annealing."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from tt_spec.rng import draw
from tt_spec.types import Context, Proposal

from tt_search.best import Best

__all__ = ["Anneal", "acceptance"]


class Anneal:
    """Parallel simulated annealing over the cost model's scores.

    Each step re-draws one random knob of every chain (`space.mutate`) and moves with probability `acceptance`; the
    temperature falls linearly to 0. The best distinct fresh rows met on the way are kept. Chains go on where the last
    call ended, under the refitted model.

    Source: Chen et al. (2018), Learning to Optimize Tensor Programs, section 3 (arXiv:1805.08166); chain count,
    length and stopping rule as in AutoTVM's public code.

    Args:
        chains: Parallel Markov chains. (default: 128)
        steps: Moves of each chain per call. (default: 500)
        temperature: Temperature at the first step. (default: 1.0)
        unit: Unit of the temperature. "score" is AutoTVM's: where scores lie in [0, 1], most of the walk is then hot
            and nearly random. "spread" is the standard deviation of the scores of random rows, so that the walk cools
            in the same way whatever the scale; 0.3 spreads is a good start. (default: "score")
        patience: Steps without a change in the kept set after which the call ends. (default: 50)
        keep: Rows in the kept set, AutoTVM's plan size; more if more are asked for. (default: 64)
        choice: Rows handed over per row asked for, so that the sampler has something to choose from. (default: 2.0)
        random_share: Part of each batch that the pipeline fills with random rows. (default: 0.05)

    Attributes:
        chains_: Where the chains stand, `(chains, d)`.
    """

    def __init__(
        self,
        chains: int = 128,
        steps: int = 500,
        temperature: float = 1.0,
        unit: Literal["score", "spread"] = "score",
        patience: int = 50,
        keep: int = 64,
        choice: float = 2.0,
        random_share: float = 0.05,
    ) -> None:
        self.chains, self.steps, self.temperature, self.unit = chains, steps, temperature, unit
        self.patience, self.keep, self.choice, self.random_share = patience, keep, choice, random_share

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Up to `choice * n` rows, best first; random ones before there is a model."""
        if not ctx.fitted:
            codes = draw(ctx.space, ctx.seen, n, ctx.rng)
            return Proposal(codes, np.zeros(len(codes)), self.random_share)
        asked = max(n, math.ceil(self.choice * n))
        best = Best(ctx, max(self.keep, asked))
        chains = self._start(ctx)
        if not len(chains):
            return Proposal(best.codes, best.scores, self.random_share)
        scores = ctx.score(chains)
        best.add(chains, scores)
        steps = quiet = accepted = 0
        for t in np.linspace(self._hottest(ctx), 0.0, self.steps):
            moved = ctx.space.mutate(chains, ctx.rng)
            new = ctx.score(moved)
            accept = ctx.rng.random(len(chains)) < acceptance(scores, new, t)
            chains = np.where(accept[:, None], moved, chains)
            scores = np.where(accept, new, scores)
            steps, accepted = steps + 1, accepted + int(accept.sum())
            quiet = 0 if best.add(moved, new) else quiet + 1
            if quiet >= self.patience:
                break
        self.chains_, self._space_key = chains, ctx.space.key
        info = {"steps": steps, "settled": steps - quiet, "acceptance": accepted / max(steps * len(chains), 1)}
        if len(best.scores):
            info["best_score"] = float(best.scores[0])
        return Proposal(best.codes[:asked], best.scores[:asked], self.random_share, info)

    def _start(self, ctx: Context) -> np.ndarray:
        known = getattr(self, "chains_", None)
        if known is not None and len(known) and self._space_key == ctx.space.key:
            return known
        return ctx.space.sample(self.chains, ctx.rng)

    def _hottest(self, ctx: Context) -> float:
        if self.unit == "score":
            return self.temperature
        if self.unit == "spread":
            return self.temperature * float(np.std(ctx.score(ctx.space.sample(self.chains, ctx.rng))))
        raise ValueError(f"unit must be 'score' or 'spread', got {self.unit!r}")


def acceptance(old: np.ndarray, new: np.ndarray, t: float) -> np.ndarray:
    """Metropolis' rule for scores to maximise, `(n,)`; 1 or more means always."""
    return np.exp(np.minimum((new - old) / (t + 1e-5), 1.0))
