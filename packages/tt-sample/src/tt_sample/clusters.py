"""k-means for several numbers of clusters at once. Uses scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Clusters", "clusterings", "nearest_members"]


@dataclass(frozen=True)
class Clusters:
    """k clusters of n points.

    Args:
        labels: `(n,)`, in 0 to k - 1.
        centres: `(k, p)`.
        loss: Sum of the squared distances of the points from their centres.
        distance: Sum of the distances.
    """

    k: int
    labels: np.ndarray
    centres: np.ndarray
    loss: float
    distance: float


def clusterings(points: np.ndarray, ks: Sequence[int], rng: np.random.Generator) -> Iterator[Clusters]:
    """A clustering of `points` `(n, p)` for each k of `ks`, at most as many as there are distinct points.

    All begin at the first k of one sequence of k-means++ centres, so that the losses of neighbouring k compare.

    Source: Arthur and Vassilvitskii (2007), k-means++: the advantages of careful seeding.
    """
    from sklearn.cluster import KMeans, kmeans_plusplus
    from sklearn.exceptions import ConvergenceWarning

    state = int(rng.integers(2**31))
    seeds, _ = kmeans_plusplus(points, max(ks), random_state=state)
    for k in ks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of points so close that they count as one
            found = KMeans(k, init=seeds[:k], n_init=1, max_iter=50, random_state=state).fit(points)
        away = np.linalg.norm(points - found.cluster_centers_[found.labels_], axis=1)
        yield Clusters(k, found.labels_, found.cluster_centers_, float((away**2).sum()), float(away.sum()))


def nearest_members(points: np.ndarray, clusters: Clusters) -> np.ndarray:
    """Index of the point nearest to its centre, for each cluster that is not empty, largest first, `(clusters,)`."""
    away = np.linalg.norm(points - clusters.centres[clusters.labels], axis=1)
    sizes = np.bincount(clusters.labels, minlength=clusters.k)
    order = [c for c in np.argsort(-sizes, kind="stable") if sizes[c]]
    return np.array([np.where(clusters.labels == c, away, np.inf).argmin() for c in order], dtype=np.int64)
