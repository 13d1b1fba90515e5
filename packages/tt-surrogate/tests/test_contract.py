"""`xgb` in all its forms keeps tt's contract of a surrogate."""

from __future__ import annotations

import pytest
from tt_spec.testing import SurrogateContract
from tt_surrogate import XGB


@pytest.mark.parametrize("objective", ["rank", "regression"])
@pytest.mark.parametrize("inputs", ["knobs", "statements"])
class TestXGB(SurrogateContract):
    @pytest.fixture
    def piece(self, inputs, objective):
        return XGB(inputs, objective, rounds=10)
