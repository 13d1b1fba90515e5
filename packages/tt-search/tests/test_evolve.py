from __future__ import annotations

import numpy as np
import pytest
from tt_search import Evolve
from tt_search.evolve import _chances, _cross, _small_step
from tt_spec import tokens
from tt_spec.testing import SearcherContract, mixed_space


class TestContract(SearcherContract):
    @pytest.fixture
    def piece(self):
        return Evolve(population=48, generations=3)


@pytest.mark.parametrize("selection", ["proportional", "rank"])
@pytest.mark.parametrize("seed", range(4))
def test_beats_random_with_equal_calls(oracle, seed, selection):
    o = oracle(seed=seed)
    found = Evolve(generations=12, selection=selection).propose(o.ctx, 32).scores
    rand = o.random_best(o.asked, 32)
    assert found[:32].mean() > rand.mean() + 0.08 and found[0] > rand[0]


def test_asks_once_per_generation_and_never_twice_about_a_row(oracle):
    o, asked = oracle(knobs=4, choices=8), []
    o.ctx.score = lambda codes: (asked.extend(tokens(codes)), o.score(codes))[1]
    p = Evolve(population=200).propose(o.ctx, 16)
    assert o.batches <= 5 and len(asked) == len(set(asked)) == p.info["scored"]
    assert p.info["mean_scores"][-1] > p.info["mean_scores"][0] + 0.1


@pytest.mark.parametrize(("share", "rows"), [(1.0, 200), (0.25, 50), (0.001, 8)])
def test_where_scores_are_dear_a_smaller_batch_has_a_smaller_population(share, rows, oracle):
    o, asked = oracle(knobs=4, choices=8), []
    o.ctx.share = share
    o.ctx.score = lambda codes: (asked.append(len(codes)), o.score(codes))[1]
    p = Evolve(population=200).propose(o.ctx, 4)
    assert len(p.codes) == 8 and 0.8 * rows <= asked[0] <= rows and max(asked) <= rows


def test_starts_from_the_best_measured(oracle):
    o, first = oracle(measured=50), []
    o.ctx.y[3], o.ctx.errors[3] = 0.0, "build"
    o.ctx.score = lambda codes: (first.append(codes), o.truth(codes))[1]
    Evolve(population=100, generations=0).propose(o.ctx, 4)
    start = set(tokens(first[0]))
    best = np.argsort(-o.ctx.y)[:20]
    assert set(tokens(o.ctx.rows[best])) == start & o.ctx.seen


def test_chances_by_hand():
    assert _chances(np.array([0.1, 0.3, 0.2]), "proportional") == pytest.approx([0, 2 / 3, 1 / 3])
    assert _chances(np.array([-9.0, 0.3, 0.2]), "rank") == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    assert _chances(np.array([0.2, 0.2]), "proportional") == pytest.approx([0.5, 0.5])
    with pytest.raises(ValueError, match="'proportional' or 'rank'"):
        _chances(np.array([0.2]), "roulette")


def test_a_cross_takes_each_knob_from_a_parent_of_its_sketch():
    space, rng = mixed_space(), np.random.default_rng(0)
    rows, mates = space.sample(60, rng), space.sample(80, rng)
    children = _cross(space, rows, mates, np.full(80, 1 / 80), rng)
    assert (children[:, 0] == rows[:, 0]).all() and (children != rows).any()
    assert space.allowed(children).all() and (space.canonical(children) == children).all()
    for child, row in zip(children, rows, strict=True):
        of_sketch = mates[mates[:, 0] == row[0]]
        differ = child != row
        assert ((of_sketch[:, differ] == child[differ]) | (child[differ] == 0)).all(axis=1).any()


def test_a_small_step_is_smaller_than_a_mutation():
    space, rng = mixed_space(), np.random.default_rng(0)
    rows = space.sample(500, rng)

    def distance(new: np.ndarray) -> float:
        return float(np.abs(space.encode(new) - space.encode(rows)).sum(axis=1).mean())

    small = _small_step(space, rows, rng)
    assert (small != rows).any(axis=1).mean() > 0.95
    assert distance(small) < 0.7 * distance(space.mutate(rows, rng))


def test_fewer_when_exhausted(oracle):
    o = oracle(knobs=3, choices=3, measured=18, pending=3)
    p = Evolve().propose(o.ctx, 8)
    assert len(p.codes) == 6 and o.ctx.fresh(p.codes).all()
