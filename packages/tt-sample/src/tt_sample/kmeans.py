"""Cluster sampling with a fixed precision."""

from __future__ import annotations

import numpy as np
from tt_spec.types import Context, Proposal, Selection

from tt_sample.clusters import Clusters, clusterings, nearest_members

__all__ = ["KMeans"]


class KMeans:
    """k-means with the fewest clusters that bring the candidates' distance from their centroids down to a threshold.

    Each cluster is measured at its candidate nearest to the centroid. The batch is then smaller than requested.

    Source: "Adaptive workflow with AutoTVM" (2024), section II.C, which leaves the threshold open.

    Args:
        threshold: Total distance, as a share of that of one cluster. (default: 0.2)
    """

    def __init__(self, threshold: float = 0.2) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be in [0, 1], got {threshold}")
        self.threshold = threshold

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        """A row of each cluster, those of large clusters first; at most `n`."""
        codes = proposal.codes[ctx.fresh(proposal.codes)]
        if not len(codes) or n < 1:
            return Selection(codes[:0])
        points = ctx.space.encode(codes)
        limit = self.threshold * float(np.linalg.norm(points - points.mean(axis=0), axis=1).sum())
        found: list[Clusters] = []
        for clusters in clusterings(points, range(1, min(n, len(np.unique(points, axis=0))) + 1), ctx.rng):
            found.append(clusters)
            if clusters.distance <= limit:
                break
        curve = {"k": [c.k for c in found], "loss": [c.distance for c in found]}
        rows = codes[nearest_members(points, found[-1])]
        return Selection(rows, {"k": found[-1].k, "loss_curve": curve}, complete=True)
