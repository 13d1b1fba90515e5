from __future__ import annotations

import itertools

import numpy as np
import pytest
from tt_sample import Adaptive
from tt_sample.adaptive import centroid, knee, stop
from tt_spec import Knob, Proposal, Space, Task, VirtualClock, token
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SamplerContract, context, mixed_space, mixed_task
from tt_spec.types import Context, Prediction

PLAIN = Space((Knob("a", "choice", ("x", "y", "z")), Knob("b", "choice", ("p", "q", "r"))), name="plain")


class TestContract(SamplerContract):
    subset = False

    @pytest.fixture(params=["knee", "literal", "public", "member"])
    def piece(self, request):
        if request.param == "member":
            return Adaptive(centre="member")
        return Adaptive(request.param)


def a_context(space: Space, visited=()) -> Context:
    none = np.empty((0, len(space.knobs)), dtype=np.int64)
    return Context(
        task=Task("t", "t", "t", "none", (space,), flops=1.0),
        space=space,
        rows=none,
        y=np.empty(0),
        errors=[],
        pending=none,
        best_s=np.inf,
        predict=lambda codes: Prediction(np.zeros(len(codes)), np.zeros(len(codes))),
        score=lambda codes: np.zeros(len(codes)),
        rng=np.random.default_rng(0),
        clock=VirtualClock(),
        seen=frozenset(map(token, visited)),
    )


def offer(codes) -> Proposal:
    codes = np.array(codes, dtype=np.int64)
    return Proposal(codes, np.zeros(len(codes)))


def test_rule_by_hand():
    assert not stop([100.0], 2.5), "nothing to compare with"
    assert stop([100.0, 40.0], 2.5) and not stop([100.0, 39.9], 2.5)
    assert not stop([100.0, 40.0, 15.9], 2.5) and stop([100.0, 39.0, 16.0], 2.5)


def test_knee_by_hand():
    # the line from (8, 100) to (12, 20) lies 40, 30, 15 above the points between
    assert knee([8, 9, 10, 11, 12], [100.0, 40.0, 30.0, 25.0, 20.0]) == 1
    assert knee([8, 9, 10], [3.0, 2.0, 1.0]) == 0, "a straight line bends nowhere: fewest"
    assert knee([1], [5.0]) == 0 and knee([1, 2], [5.0, 1.0]) == 1


def blobs(n: int, of: int) -> np.ndarray:
    """Rows around `n` far corners of four knobs of 32 choices, `of` each."""
    rng = np.random.default_rng(0)
    corners = np.array([[0, 0, 0, 0], [30, 0, 30, 0], [0, 30, 0, 30], [30, 30, 30, 30], [15, 0, 0, 30]])[:n]
    return np.unique(np.repeat(corners, of, axis=0) + rng.integers(0, 2, (n * of, 4)), axis=0)


@pytest.mark.parametrize("n", [3, 5])
def test_knee_finds_the_clusters_that_are_there(n):
    ctx = context(synthetic_task("blobs", 4, 32))
    picked = Adaptive(least=1, most=12).select(ctx, offer(blobs(n, 30)), 60)
    assert picked.info["k"] == len(picked.codes) == n and picked.complete
    assert len(np.unique(picked.codes // 8, axis=0)) == n, "one row near each corner"


@pytest.mark.parametrize(("variant", "step"), [("literal", 1), ("public", 8)])
@pytest.mark.parametrize("threshold", [1.05, 1.3, 2.5])
def test_stops_where_the_rule_first_holds(variant, step, threshold):
    ctx = context(synthetic_task("wide", 4, 32))
    offered = offer(ctx.space.sample(150, np.random.default_rng(1)))
    info = Adaptive(variant, threshold).select(ctx, offered, 61).info
    ks, losses = info["loss_curve"]["k"], info["loss_curve"]["loss"]
    assert ks == list(range(8, 8 + step * len(ks), step)) and info["k"] == ks[-1]
    holds = [threshold * b >= a for a, b in itertools.pairwise(losses)]
    assert not any(holds[:-1]) and (holds[-1] or ks[-1] + step > 61)
    if threshold == 2.5 and variant == "literal":
        assert info["k"] == 9, "as the paper prints it"


def test_public_sees_the_two_largest_knobs_only():
    sizes = (4, 16, 8, 16, 4)
    space = Space(tuple(Knob(f"k{i}", "choice", tuple(range(n))) for i, n in enumerate(sizes)), name="sizes")
    rows = space.sample(200, np.random.default_rng(0))
    rows[:, [1, 3]] = 5  # the only two that differ among more than 8
    assert Adaptive("public").select(a_context(space), offer(rows), 40).info["k"] == 1
    rows = space.sample(200, np.random.default_rng(0))
    rows[:, [0, 2, 4]] = 1
    assert Adaptive("public").select(a_context(space), offer(rows), 40).info["k"] == 16


def test_never_more_than_asked_and_never_more_than_there_are():
    ctx = context(synthetic_task("few", 4, 32))
    offered = offer(ctx.space.sample(100, np.random.default_rng(1)))
    assert len(Adaptive().select(ctx, offered, 5).codes) == 5
    assert len(Adaptive().select(ctx, offer(offered.codes[:3]), 60).codes) == 3


def test_centroid_by_hand():
    knobs = (
        Knob("tile", "tile", ((1, 16), (2, 8), (4, 4), (16, 1))),
        Knob("depth", "choice", (0, 1, 3, 7)),
        Knob("kind", "choice", ("p", "q", "r")),
        Knob("extra", "choice", (0, 1, 3, 7), active_if=(2, (1, 2))),
    )
    space = Space(knobs, name="hand")
    members = np.array([[0, 0, 1, 3], [2, 2, 1, 1], [2, 2, 0, 0]])
    # tile: log2 of the first factor is 0, 2, 2, of the second 4, 2, 2: the means 4/3 and 8/3 are nearest to (2, 8);
    # depth: log2(1 + v) is 0, 2, 2, and 4/3 is nearest to 1; kind: mostly q; extra: where it is used, 3 and 1: 2
    assert centroid(space, members).tolist() == [1, 1, 1, 2]
    assert centroid(space, members, "member").tolist() in members.tolist()
    # mostly p, so nobody asks for extra
    assert centroid(space, np.array([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 3]])).tolist() == [0, 0, 0, 0]


ROWS = [[0, 0], [0, 1], [1, 0], [0, 2]]
"""a: x thrice, y once; b: p twice, q and r once. The modes are x and p."""


def one(visited):
    picked = Adaptive(least=1, most=1).select(a_context(PLAIN, visited), offer(ROWS), 8)
    return picked.codes.tolist(), picked.info["synthesised"], picked.info["lacking"]


def test_a_visited_centroid_is_replaced_by_the_next_frequent_values():
    assert one([]) == ([[0, 0]], 0, 0)
    assert one([[0, 0]]) == ([[0, 1]], 1, 0)  # q is half as frequent as p, y a third as x
    assert one([[0, 0], [0, 1], [0, 2]]) == ([[1, 0]], 1, 0)


def test_fewer_rows_when_nothing_unvisited_is_left():
    values = [[a, b] for a in (0, 1) for b in (0, 1, 2)]  # z is in no candidate
    assert one(values) == ([], 0, 1)


def test_its_cluster_s_mode_comes_before_that_of_all():
    space = Space(tuple(Knob(f"k{i}", "choice", tuple(range(16))) for i in range(2)), name="line")
    # around (1, 1), whose mode is (0, 0), and more around (14, 14)
    near = [[0, 0], [0, 3], [3, 0], [0, 0]]
    far = [[14, 14], [14, 15], [15, 14], [15, 15], [14, 13]]
    centre = centroid(space, np.unique(near, axis=0)).tolist()
    assert centre != [0, 0]
    picked = Adaptive(least=2, most=2).select(a_context(space, [centre]), offer(near + far), 8)
    assert [0, 0] in picked.codes.tolist() and picked.info["synthesised"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_never_an_invalid_or_visited_row_whatever_is_known(seed):
    task = mixed_task()
    every = np.stack(list(mixed_space().enumerate()))
    ctx = context(task, every[np.random.default_rng(seed).permutation(len(every))[: len(every) // 2]], seed=seed)
    offered = every[np.random.default_rng(seed + 9).permutation(len(every))[:200]]
    picked = Adaptive().select(ctx, offer(offered), 40)
    assert ctx.fresh(picked.codes).all() and ctx.space.allowed(picked.codes).all()
    assert picked.info["synthesised"] > 0, "half of the centroids are visited"
    assert len(picked.codes) + picked.info["lacking"] == picked.info["k"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "elbow"}, "variant must be 'literal', 'public' or 'knee', got 'elbow'"),
        ({"centre": "mean"}, "centre must be 'rounded' or 'member', got 'mean'"),
        ({"threshold": 0.0}, "threshold must be above 0, got 0"),
        ({"least": 9, "most": 8}, "1 <= least <= most, got 9 and 8"),
    ],
)
def test_refuses_what_it_cannot_do(options, message):
    with pytest.raises(ValueError, match=message):
        Adaptive(**options)
