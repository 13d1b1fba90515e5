"""Adaptive sampling: as many measurements as the candidates have clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from tt_spec.space import Space, token
from tt_spec.types import Context, Proposal, Selection

from tt_sample.clusters import Clusters, clusterings
from tt_sample.synthesis import synthesise

__all__ = ["Adaptive", "centroid", "knee", "stop"]


class Adaptive:
    """k-means over the candidates; k where the loss curve bends; one configuration for each cluster.

    The configuration is the centroid's: of every knob the choice whose features are nearest to the mean over the
    cluster's rows that use it. One that was visited, or that the space does not allow, is replaced by sample
    synthesis: the mode of every knob in its cluster, then of all candidates, then values of the next frequencies.
    When nothing new is left, fewer rows than clusters come back (`lacking` in `info`). The batch is then smaller
    than requested.

    Source: Ahn et al. (2020), Chameleon, algorithm 1 (ICLR).

    Args:
        variant: The rule for k. "literal": the first k = 9, 10, ... 63 with `threshold * loss_k >= loss_(k-1)`, as
            printed, which with the paper's threshold is nearly always 9. "public": the same rule as the paper's
            public code has it, k = 8, 16, ... 56 over the two knobs with the most choices. "knee": the k farthest below
            the straight line from the loss at 8 to that at 63. (default: "knee")
        threshold: Threshold of "literal" and "public". (default: 2.5)
        centre: "rounded" is the configuration above, "member" the candidate nearest to the centroid.
            (default: "rounded")
        least, most: Numbers of clusters looked at; never more than the rows requested. (default: 8 and 63)
    """

    def __init__(
        self,
        variant: Literal["literal", "public", "knee"] = "knee",
        threshold: float = 2.5,
        centre: Literal["rounded", "member"] = "rounded",
        least: int = 8,
        most: int = 63,
    ) -> None:
        if variant not in ("literal", "public", "knee"):
            raise ValueError(f"variant must be 'literal', 'public' or 'knee', got {variant!r}")
        if centre not in ("rounded", "member"):
            raise ValueError(f"centre must be 'rounded' or 'member', got {centre!r}")
        if not threshold > 0:
            raise ValueError(f"threshold must be above 0, got {threshold}")
        if not 1 <= least <= most:
            raise ValueError(f"least and most must be 1 <= least <= most, got {least} and {most}")
        self.variant, self.threshold, self.centre, self.least, self.most = variant, threshold, centre, least, most

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        """A row for each cluster, those of large clusters first; at most `n`."""
        codes = np.unique(proposal.codes, axis=0)
        if not len(codes) or n < 1:
            return Selection(codes[:0])
        chosen, ks, losses = self._clusters(ctx, codes, n)
        rows, synthesised, lacking = self._rows(ctx, codes, chosen)
        curve = {"k": ks, "loss": losses}
        info = {"k": chosen.k, "loss_curve": curve, "synthesised": synthesised, "lacking": lacking}
        return Selection(rows, info, complete=True)

    def _clusters(self, ctx: Context, codes: np.ndarray, n: int) -> tuple[Clusters, list[int], list[float]]:
        """The clustering chosen, and the loss curve as far as it was looked at."""
        points = ctx.space.encode(codes)
        if self.variant == "public":
            points = codes[:, np.argsort(ctx.space.shape, kind="stable")[-2:]].astype(np.float64)
        most = min(self.most, n, len(np.unique(points, axis=0)))
        numbers = range(min(self.least, most), most + 1, 8 if self.variant == "public" else 1)
        found: list[Clusters] = []
        for clusters in clusterings(points, numbers, ctx.rng):
            found.append(clusters)
            if self.variant != "knee" and stop([c.loss for c in found], self.threshold):
                break
        losses = [c.loss for c in found]
        at = knee([c.k for c in found], losses) if self.variant == "knee" else len(found) - 1
        return found[at], [c.k for c in found], losses

    def _rows(self, ctx: Context, codes: np.ndarray, clusters: Clusters) -> tuple[np.ndarray, int, int]:
        """A fresh row of each cluster `(m, d)`, how many of them are synthesised, and how many are lacking."""
        taken, rows = set(ctx.seen), [codes[:0]]
        redundant = synthesised = 0
        sizes = np.bincount(clusters.labels, minlength=clusters.k)
        for c in np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]:
            members = codes[clusters.labels == c]
            row = centroid(ctx.space, members, self.centre)[None]
            if token(row[0]) in taken or not ctx.space.allowed(row)[0]:
                row = synthesise(ctx.space, members, 1, taken, tries=1)
                synthesised += len(row)
                redundant += 1 - len(row)
            if len(row):
                taken.add(token(row[0]))
                rows.append(row)
        rows.append(synthesise(ctx.space, codes, redundant, taken))
        made = len(rows[-1])
        return np.concatenate(rows), synthesised + made, redundant - made


def centroid(space: Space, members: np.ndarray, centre: str = "rounded") -> np.ndarray:
    """The configuration that stands for a cluster of rows `(m, d)`; see `Adaptive`."""
    features, on = space.encode(members), space.active(members)
    if centre == "member":
        return members[((features - features.mean(axis=0)) ** 2).sum(axis=1).argmin()]
    row, at = np.zeros(len(space.knobs), dtype=np.int64), 0
    for j, knob in enumerate(space.knobs):
        table = knob.table
        mean = features[:, at : at + table.shape[1]].sum(axis=0) / max(on[:, j].sum(), 1)
        row[j] = ((table - mean) ** 2).sum(axis=1).argmin()
        at += table.shape[1]
    return space.canonical(row[None])[0]


def stop(losses: Sequence[float], threshold: float) -> bool:
    """Return whether Algorithm 1 ends at the last of these losses: its fall to there is small enough."""
    return len(losses) > 1 and threshold * losses[-1] >= losses[-2]


def knee(ks: Sequence[int], losses: Sequence[float]) -> int:
    """Index of the point farthest below the straight line from the first to the last.

    Source: Satopaa et al. (2011), Finding a "kneedle" in a haystack.
    """
    x, y = np.asarray(ks, dtype=np.float64), np.asarray(losses)
    if len(x) < 3:
        return len(x) - 1
    line = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0])
    return int((line - y).argmax())
