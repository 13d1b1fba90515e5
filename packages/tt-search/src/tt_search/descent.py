"""Coordinate descent over knobs, where another search stalls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tt_spec.plugins import Plugins
from tt_spec.roles import Learns, Searcher
from tt_spec.space import token, tokens
from tt_spec.types import Context, Proposal

__all__ = ["Descent", "faster"]


class Descent:
    """Another searcher until it stalls; then coordinate descent from the best row, and the other again.

    A descent measures the neighbours of its centre, which differ from it in one knob by one step (`Space.neighbours`),
    those that the cost model likes best first. The centre moves to the fastest measured row that is faster by a test.
    Where neighbours no longer fill a batch, neighbours of the best of them do, as Droplet speculates along a line. A
    descent ends at a row that no neighbour beats; the other searcher goes on, until its next best row is `stall`
    trials old.

    Source: Canesche et al. (2024), The Droplet Search Algorithm for Kernel Scheduling, ACM TACO 21(2). It starts from
    one row and has no other searcher; AutoTVM has it as `DropletTuner`.

    Args:
        first: The other searcher, by its name among all that are installed. (default: "evolve")
        options: Its options. (default: none)
        stall: Measured rows without a better one after which it has stalled. (default: 64)
        p: Level of the one-sided rank test by which a row is faster. (default: 0.05, as Droplet's)
        random_share: Part of a descent's batch that the pipeline fills with random rows. (default: 0.0)

    Attributes:
        centre_: The row `(d,)` from which the descent goes on; None while the other searcher proposes.
    """

    def __init__(
        self,
        first: str = "evolve",
        options: dict[str, Any] | None = None,
        stall: int = 64,
        p: float = 0.05,
        random_share: float = 0.0,
    ) -> None:
        if stall < 1:
            raise ValueError(f"stall must be at least 1 row, got {stall}")
        if not 0.0 < p < 1.0:
            raise ValueError(f"p must lie between 0 and 1, got {p}")
        if first == "descent":
            raise ValueError("first must be another searcher than descent itself")
        self.first, self.stall, self.p, self.random_share = first, stall, p, random_share
        self.other: Searcher = Plugins().build("searcher", first, **(options or {}))
        self.centre_: np.ndarray | None = None
        self._space_key = ""
        self._done: set[bytes] = set()

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Rows around the centre, best first, at most `n` of them; the other searcher's where there is no descent."""
        if self._space_key != ctx.space.key:
            self._space_key, self.centre_, self._done = ctx.space.key, None, set()
        self._move(ctx)
        if self.centre_ is not None:
            near = self._around(ctx, self.centre_, n)
            if len(near):
                info = {"descent": True, "centre_s": self._seconds(ctx, self.centre_)}
                return Proposal(near, ctx.score(near), self.random_share, info)
            self._done.add(token(self.centre_))
            self.centre_ = None
        return self.other.propose(ctx, n)

    def tell(self, ctx: Context, codes: np.ndarray, y: np.ndarray) -> None:
        """Let the other searcher learn, if it does."""
        if isinstance(self.other, Learns):
            self.other.tell(ctx, codes, y)

    def _move(self, ctx: Context) -> None:
        """Begin a descent, or move its centre."""
        if not (ctx.y > 0).any():
            return
        best = int(np.argmax(ctx.y))
        row = ctx.rows[best]
        if self.centre_ is None:
            if len(ctx.rows) - 1 - best >= self.stall and token(row) not in self._done:
                self.centre_ = row.copy()
            return
        at = _index(ctx.rows, self.centre_)
        if at != best and (at is None or self._is_faster(ctx, best, at)):
            self.centre_ = row.copy()

    def _is_faster(self, ctx: Context, new: int, old: int) -> bool:
        if len(ctx.timed) != len(ctx.rows):
            return bool(ctx.y[new] > ctx.y[old])
        return faster(ctx.timed[new], ctx.timed[old], self.p)

    def _seconds(self, ctx: Context, row: np.ndarray) -> float:
        at = _index(ctx.rows, row)
        return math.inf if at is None or ctx.y[at] <= 0 else float(ctx.best_s / ctx.y[at])

    def _around(self, ctx: Context, centre: np.ndarray, n: int) -> np.ndarray:
        """Up to `n` fresh rows, neighbours before neighbours of neighbours; none where all neighbours are known."""
        ring = ctx.space.neighbours(centre)
        near = _best(ctx, ring[ctx.fresh(ring)], n)
        if not len(near):
            return near
        y = dict(zip(tokens(ctx.rows), ctx.y, strict=True))
        measured = sorted((r for r in ring if y.get(token(r), 0.0) > 0), key=lambda r: -y[token(r)])
        for row in measured:
            if len(near) >= n:
                break
            further = ctx.space.neighbours(row)
            known = set(tokens(near))
            further = further[[k not in known for k in tokens(further)] & ctx.fresh(further)]
            near = np.concatenate([near, _best(ctx, further, n - len(near))])
        return near


def faster(new: Sequence[float], old: Sequence[float], p: float) -> bool:
    """Whether the timed runs `new`, seconds, are faster than `old` by a one-sided rank test at level `p`.

    Fewer runs than the test needs to reach that level, as one run each, are judged by their medians.

    Source: Mann and Whitney (1947); Droplet takes Student's test, which one slow run misleads.
    """
    if not new or not old:
        return bool(new)
    if 1 / math.comb(len(new) + len(old), len(new)) > p:
        return float(np.median(new)) < float(np.median(old))
    from scipy.stats import mannwhitneyu  # 0.5 s, and most searches never descend

    return bool(mannwhitneyu(new, old, alternative="less").pvalue < p)


def _index(rows: np.ndarray, row: np.ndarray) -> int | None:
    at = np.flatnonzero((rows == row).all(axis=1))
    return int(at[0]) if len(at) else None


def _best(ctx: Context, rows: np.ndarray, n: int) -> np.ndarray:
    return rows[np.argsort(-ctx.score(rows), kind="stable")[:n]] if len(rows) else rows
