from __future__ import annotations

import numpy as np
import pytest
from tt_sample import KMeans
from tt_sample.clusters import clusterings, nearest_members
from tt_spec import Proposal
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SamplerContract, context


class TestContract(SamplerContract):
    @pytest.fixture
    def piece(self):
        return KMeans()


def test_clusters_are_what_they_say():
    points = np.random.default_rng(0).normal(size=(80, 3))
    found = list(clusterings(points, range(1, 20), np.random.default_rng(1)))
    for c in found:
        away = np.linalg.norm(points[:, None] - c.centres, axis=2)
        own = away[np.arange(80), c.labels]
        assert c.centres.shape == (c.k, 3) and own == pytest.approx(away.min(axis=1))
        assert c.loss == pytest.approx((own**2).sum()) and c.distance == pytest.approx(own.sum())
    assert found[0].centres[0] == pytest.approx(points.mean(axis=0))
    assert found[-1].loss < 0.5 * found[0].loss


def test_nearest_members_of_the_largest_cluster_first():
    points = np.array([[0.0], [10.0], [11.0], [12.5], [30.0], [31.0]])
    (clusters,) = clusterings(points, [3], np.random.default_rng(0))
    chosen = points[nearest_members(points, clusters)][:, 0]
    assert chosen[0] == 11.0 and chosen[1:].tolist() in ([0.0, 30.0], [30.0, 0.0], [31.0, 0.0]), chosen


def offered(rows: int = 90):
    ctx = context(synthetic_task("wide", 4, 32))
    codes = np.unique(ctx.space.sample(rows, np.random.default_rng(3)), axis=0)
    return ctx, Proposal(codes, np.zeros(len(codes)))


@pytest.mark.parametrize("threshold", [0.9, 0.5, 0.3])
def test_the_fewest_clusters_that_reach_the_threshold(threshold):
    ctx, proposal = offered()
    picked = KMeans(threshold).select(ctx, proposal, 80)
    X = ctx.space.encode(proposal.codes)
    limit = threshold * np.linalg.norm(X - X.mean(axis=0), axis=1).sum()
    distances = picked.info["loss_curve"]["loss"]
    assert distances[-1] <= limit and all(d > limit for d in distances[:-1])
    assert picked.info["k"] == len(picked.codes) == len(distances) and picked.complete
    # by definition: what the rows picked leave is no better than what their centroids leave
    left = np.linalg.norm(X[:, None] - ctx.space.encode(picked.codes), axis=2).min(axis=1).sum()
    assert left >= 0.8 * distances[-1]


def test_extremes():
    ctx, proposal = offered()
    assert len(KMeans(1.0).select(ctx, proposal, 80).codes) == 1
    assert len(KMeans(0.0).select(ctx, proposal, 200).codes) == len(proposal.codes)
    assert len(KMeans(0.0).select(ctx, proposal, 7).codes) == 7


def test_refuses_a_threshold_out_of_range():
    with pytest.raises(ValueError, match=r"threshold must be in \[0, 1\], got 3"):
        KMeans(3)
