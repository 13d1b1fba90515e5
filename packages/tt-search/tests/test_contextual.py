from __future__ import annotations

import numpy as np
import pytest
from tt_search import Anneal, ContextualAnneal
from tt_search.contextual import contextual_epsilon
from tt_spec import Prediction
from tt_spec.testing import SearcherContract


class TestContract(SearcherContract):
    @pytest.fixture
    def piece(self):
        return ContextualAnneal(chains=16, steps=30, patience=10)


def small(**options):
    return ContextualAnneal(chains=8, steps=5, **options)


def doubting(ctx, std):
    """Give the context a model whose deviation is `std(codes)`; returns the list of the rows that it was asked."""
    asked = []

    def predict(codes):
        asked.append(codes)
        return Prediction(np.zeros(len(codes)), np.asarray(std(codes), dtype=float))

    ctx.predict = predict
    return asked


def test_epsilon_by_hand():
    assert contextual_epsilon(np.array([0.1, 0.2, 0.3]), 1.0) == pytest.approx(0.2)
    assert contextual_epsilon(np.array([30.0, 10.0]), 80.0) == pytest.approx(0.25)  # GFLOPS would do as well
    assert contextual_epsilon(np.array([3.0]), 1.0) == 1.0


def test_epsilon_is_the_mean_doubt_over_k_unmeasured_plans(oracle):
    o = oracle(knobs=4, measured=50, pending=10)
    asked = doubting(o.ctx, lambda codes: 0.01 * np.arange(len(codes)))
    p = small(probe=20).propose(o.ctx, 8)
    (plans,) = asked
    assert len(plans) == 20 and o.ctx.fresh(plans).all()
    best = o.ctx.y.max()
    assert p.random_share == p.info["epsilon"] == pytest.approx(0.095 / best)


def test_epsilon_falls_with_the_models_doubt(oracle):
    o, shares = oracle(), []
    for doubt in (0.5, 0.2, 0.05):
        doubting(o.ctx, lambda codes, d=doubt: np.full(len(codes), d))
        shares.append(small().propose(o.ctx, 8).random_share)
    assert shares == pytest.approx([d / o.ctx.y.max() for d in (0.5, 0.2, 0.05)])


def test_a_model_without_doubt_gets_the_first_epsilon(oracle):
    o = oracle()
    assert small(first=0.07).propose(o.ctx, 8).random_share == 0.07
    o.ctx.fitted = False
    p = small(first=0.07).propose(o.ctx, 8)
    assert p.random_share == 0.07 and "epsilon" not in p.info


def test_it_anneals_as_anneal_does(oracle):
    a, b = oracle().ctx, oracle().ctx
    doubting(a, lambda codes: np.full(len(codes), 0.1))
    mine = ContextualAnneal(chains=16, steps=40).propose(a, 8)
    plain = Anneal(16, 40, temperature=0.3, unit="spread").propose(b, 8)
    assert np.array_equal(mine.codes, plain.codes) and np.array_equal(mine.scores, plain.scores)
    assert {k: v for k, v in mine.info.items() if k != "epsilon"} == plain.info


def test_nothing_left_to_explore(oracle):
    o = oracle(knobs=3, choices=3, measured=27)
    p = small().propose(o.ctx, 4)
    assert len(p.codes) == 0 and p.random_share == 0.0
