from __future__ import annotations

import numpy as np
import pytest
from tt_search import Anneal
from tt_search.anneal import acceptance
from tt_spec.testing import SearcherContract


class TestContract(SearcherContract):
    @pytest.fixture
    def piece(self):
        return Anneal(chains=16, steps=30, patience=10)


def test_acceptance_by_hand():
    old, new = np.array([0.5, 0.5, 0.5]), np.array([0.3, 0.5, 0.9])
    assert acceptance(old, new, 0.1) == pytest.approx([np.exp(-0.2 / 0.10001), 1.0, np.e])
    assert acceptance(old, new, 0.0) == pytest.approx([0.0, 1.0, np.e])
    assert acceptance(old[:1], new[:1], 1.0)[0] == pytest.approx(0.81873, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_beats_random_with_equal_calls(oracle, seed):
    o = oracle(seed=seed)
    found = Anneal().propose(o.ctx, 32).scores
    assert o.asked <= 128 * 501
    assert found[:32].mean() > o.random_best(o.asked, 32).mean() + 0.01


@pytest.mark.parametrize("seed", range(3))
def test_finds_the_optimum_when_temperature_fits_the_scores(oracle, seed):
    o = oracle(seed=seed)
    found = Anneal(unit="spread", temperature=0.3).propose(o.ctx, 32).scores
    assert found[0] > 0.99 and found[:32].mean() > 0.97
    assert o.random_best(o.asked, 1)[0] < 0.9


def test_keeps_at_temperature_zero_only_what_is_no_worse(oracle):
    o = oracle(knobs=4)
    sa = Anneal(chains=8, temperature=0.0, steps=40)
    sa.propose(o.ctx, 4)
    before = o.truth(sa.chains_)
    sa.propose(o.ctx, 4)
    assert (o.truth(sa.chains_) >= before).all()


def test_chains_persist_and_start_anew_in_another_space(oracle):
    o = oracle(knobs=4)
    sa = Anneal(chains=8, steps=5)
    sa.propose(o.ctx, 4)
    end, first = sa.chains_.copy(), []
    o.ctx.score = lambda codes: (first.append(codes), o.truth(codes))[1]
    sa.propose(o.ctx, 4)
    assert np.array_equal(first[0], end)
    other = oracle(knobs=5)
    sa.propose(other.ctx, 4)
    assert sa.chains_.shape == (8, 5)


def test_stops_after_steps_without_a_change(oracle):
    o = oracle(knobs=2, choices=3, measured=9)
    p = Anneal(chains=4, patience=7).propose(o.ctx, 4)
    assert len(p.codes) == 0 and (p.info["steps"], p.info["settled"]) == (7, 0)
    p = Anneal(patience=7).propose(oracle(knobs=3).ctx, 4)
    assert 0 < p.info["settled"] == p.info["steps"] - 7


def test_never_seen_pending_or_repeated_and_fewer_when_exhausted(oracle):
    o = oracle(knobs=3, choices=3, measured=18, pending=3)
    p = Anneal(chains=16).propose(o.ctx, 8)
    assert len(p.codes) == 6 and o.ctx.fresh(p.codes).all()
    assert np.array_equal(p.scores, -np.sort(-o.truth(p.codes)))


def test_hands_over_a_choice(oracle):
    assert len(Anneal(steps=20).propose(oracle().ctx, 10).codes) == 20
    assert len(Anneal(steps=20, choice=1.0).propose(oracle().ctx, 10).codes) == 10


def test_random_before_there_is_a_model(oracle):
    o = oracle()
    o.ctx.fitted = False
    p = Anneal().propose(o.ctx, 10)
    assert len(p.codes) == 10 and o.asked == 0 and o.ctx.fresh(p.codes).all()


def test_refuses_an_unknown_unit(oracle):
    with pytest.raises(ValueError, match="'score' or 'spread', got 'kelvin'"):
        Anneal(unit="kelvin").propose(oracle().ctx, 4)  # type: ignore[arg-type]
