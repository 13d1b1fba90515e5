"""The stretch move, for a density that takes all walkers at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["stretch"]


def stretch(
    log: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int, random: np.random.RandomState
) -> tuple[np.ndarray, float]:
    """Affine-invariant walkers by the stretch move: the chain, `(steps, walkers, p)`, and the share of accepted moves.

    The same chain as emcee's `EnsembleSampler(..., vectorize=True)` makes of the same random numbers. emcee accepts
    walker by walker and keeps each step's random state, and where the density is a few calls of numpy that takes twice
    as long as the rest.

    Source: Goodman and Weare (2010), Ensemble samplers with affine invariance; Foreman-Mackey et al. (2013), emcee,
    algorithm 3 (arXiv:1202.3665), with a = 2.

    Args:
        log: Logarithm of the density, `(w, p) -> (w,)`, finite or -inf.
        start: Of every walker, `(walkers, p)`.
    """
    walkers, p = start.shape
    at, density = start.copy(), log(start)
    chain, moved = np.empty((steps, walkers, p)), 0
    half = np.arange(walkers) % 2
    for step in range(steps):
        random.rand()  # emcee chooses among its moves, here one
        mixed = half.copy()
        random.shuffle(mixed)
        both = np.flatnonzero(mixed == 0), np.flatnonzero(mixed)
        for moving, others in (both, both[::-1]):
            z = (random.rand(len(moving)) + 1.0) ** 2.0 / 2.0
            partner = at[others[random.randint(len(others), size=len(moving))]]
            proposed = partner - (partner - at[moving]) * z[:, None]
            found = log(proposed)
            chance = np.log(random.rand(len(moving)))
            taken = np.flatnonzero((p - 1.0) * np.log(z) + found - density[moving] > chance)
            at[moving[taken]], density[moving[taken]] = proposed[taken], found[taken]
            moved += len(taken)
        chain[step] = at
    return chain, moved / (steps * walkers)
