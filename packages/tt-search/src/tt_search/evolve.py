"""Evolutionary search."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from tt_spec.rng import draw
from tt_spec.space import Space
from tt_spec.types import Context, Proposal

from tt_search.best import Best
from tt_search.scored import Scored

__all__ = ["Evolve"]


class Evolve:
    """Evolutionary search over the cost model's scores, started from the best measured rows.

    Parents are drawn by fitness. A child is a mutant (one knob re-drawn, or a small step: the re-draw nearest to its
    parent, which for a tile means few factors moved) or a cross between two parents of the same sketch (the same
    value of the first knob), each knob from either. The best distinct fresh rows of all generations are kept. The
    model is asked once per generation, and never twice about one row.

    Source: Zheng et al. (2020), Ansor, section 5.1 (arXiv:2006.06762).

    Args:
        population: Rows per generation, for a full batch where scores are dear (`Context.share`). (default: 512; the
            paper: 2048, for batches of 64)
        generations: Times the population is replaced. (default: 4)
        mutation: Probability that a child is a mutant. (default: 0.85)
        measured_share: Part of the first population taken from the best measured rows. (default: 0.2)
        small_steps: Part of the mutants that take a small step. (default: 0.5)
        crossover: Whether the other children are crosses, as in the paper, or copies, as in its public code.
            (default: True)
        selection: "proportional" draws parents in proportion to their score less the population's lowest, "rank" in
            proportion to their rank from below, whatever the scale of the scores. (default: "proportional")
        choice: Rows handed over per row asked for, so that the sampler has something to choose from. (default: 2.0)
        random_share: Part of each batch that the pipeline fills with random rows. (default: 0.05)
    """

    def __init__(
        self,
        population: int = 512,
        generations: int = 4,
        mutation: float = 0.85,
        measured_share: float = 0.2,
        small_steps: float = 0.5,
        crossover: bool = True,
        selection: Literal["proportional", "rank"] = "proportional",
        choice: float = 2.0,
        random_share: float = 0.05,
    ) -> None:
        self.population, self.generations, self.mutation = population, generations, mutation
        self.measured_share, self.small_steps = measured_share, small_steps
        self.crossover, self.selection = crossover, selection
        self.choice, self.random_share = choice, random_share

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Up to `choice * n` rows, best first; random ones before there is a model."""
        if not ctx.fitted:
            codes = draw(ctx.space, ctx.seen, n, ctx.rng)
            return Proposal(codes, np.zeros(len(codes)), self.random_share)
        asked = max(n, math.ceil(self.choice * n))
        best, scored = Best(ctx, asked), Scored(ctx.score)
        population = self.population if ctx.share == 1.0 else max(asked, math.ceil(self.population * ctx.share))
        rows = self._start(ctx, population)
        means = []
        for generation in range(self.generations + 1):
            fitness = scored(rows)
            best.add(rows, fitness)
            means.append(float(fitness.mean()) if len(rows) else 0.0)
            if generation < self.generations and len(rows):
                rows = self._children(ctx.space, rows, fitness, population, ctx.rng)
        info = {"scored": len(scored.known), "mean_scores": means}
        if len(best.scores):
            info["best_score"] = float(best.scores[0])
        return Proposal(best.codes, best.scores, self.random_share, info)

    def _start(self, ctx: Context, population: int) -> np.ndarray:
        order = np.argsort(-ctx.y, kind="stable")
        good = order[ctx.y[order] > 0][: int(self.measured_share * population)]
        return np.concatenate([ctx.rows[good], ctx.space.sample(population - len(good), ctx.rng)])

    def _children(
        self, space: Space, rows: np.ndarray, fitness: np.ndarray, population: int, rng: np.random.Generator
    ) -> np.ndarray:
        p = _chances(fitness, self.selection)
        children = rows[rng.choice(len(rows), population, p=p)]
        mutant = rng.random(len(children)) < self.mutation
        small = mutant & (rng.random(len(children)) < self.small_steps)
        large = mutant & ~small
        children[large] = space.mutate(children[large], rng)
        children[small] = _small_step(space, children[small], rng)
        if self.crossover:
            children[~mutant] = _cross(space, children[~mutant], rows, p, rng)
        return children


def _chances(fitness: np.ndarray, selection: str) -> np.ndarray:
    """Probability of each row to become a parent, `(n,)`."""
    if selection == "rank":
        above = np.argsort(np.argsort(fitness, kind="stable")) + 1.0
    elif selection == "proportional":
        above = fitness - fitness.min()
    else:
        raise ValueError(f"selection must be 'proportional' or 'rank', got {selection!r}")
    total = above.sum()
    return above / total if total > 0 else np.full(len(fitness), 1.0 / len(fitness))


def _small_step(space: Space, rows: np.ndarray, rng: np.random.Generator, draws: int = 4) -> np.ndarray:
    """The mutant of each row, of `draws`, whose features are nearest to it (log2 of factors: few primes moved)."""
    if not len(rows):
        return rows
    mutants = space.mutate(np.repeat(rows, draws, axis=0), rng)
    moved = space.encode(mutants).reshape(len(rows), draws, -1) - space.encode(rows)[:, None]
    distance = np.abs(moved).sum(axis=2)
    stayed = (mutants.reshape(len(rows), draws, -1) == rows[:, None]).all(axis=2)
    nearest = np.where(stayed, np.inf, distance).argmin(axis=1)
    return mutants.reshape(len(rows), draws, -1)[np.arange(len(rows)), nearest]


def _cross(space: Space, rows: np.ndarray, mates: np.ndarray, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each row crossed with a mate of its sketch, drawn by `p`; unchanged where the result is not allowed."""
    partner = rows.copy()
    for sketch in np.unique(rows[:, 0]):
        mine, theirs = rows[:, 0] == sketch, np.flatnonzero(mates[:, 0] == sketch)
        chance = p[theirs]
        if chance.sum() > 0:
            partner[mine] = mates[rng.choice(theirs, mine.sum(), p=chance / chance.sum())]
    child = space.canonical(np.where(rng.random(rows.shape) < 0.5, rows, partner))
    return np.where(space.allowed(child)[:, None], child, rows)
