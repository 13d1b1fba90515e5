"""Models over statements, and `xgb` in all its forms, keep tt's contract of a surrogate."""

from __future__ import annotations

import pytest
from tt_spec.testing import SurrogateContract
from tt_surrogate import LSTM, MLP, XGB, ATFormer, LightGBM, MultiHeadAttention


@pytest.mark.parametrize("objective", ["rank", "regression"])
@pytest.mark.parametrize("inputs", ["knobs", "statements"])
class TestXGB(SurrogateContract):
    @pytest.fixture
    def piece(self, inputs, objective):
        return XGB(inputs, objective, rounds=10)


@pytest.mark.parametrize("model", [ATFormer, MultiHeadAttention, LSTM, MLP], ids=lambda m: m.name)
@pytest.mark.parametrize("options", [{}, {"freeze": "none", "loss": "squared", "mask": False, "operator": False}])
class TestNetworks(SurrogateContract):
    @pytest.fixture
    def piece(self, model, options):
        return model(width=8, epochs=3, tune_steps=3, dropout=0.1, **options)


class TestLightGBM(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return LightGBM(rounds=30, fit_rounds=5, tune_rounds=5)
