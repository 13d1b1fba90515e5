"""The pieces keep the contracts that tt ships."""

import pytest
from acme_tt.climb import HillClimb
from acme_tt.knn import NearestNeighbours
from acme_tt.linear import LinearModel
from acme_tt.lines import LinesStore
from tt_spec.testing import SearcherContract, StoreContract, SurrogateContract


class TestHillClimb(SearcherContract):
    @pytest.fixture
    def piece(self):
        return HillClimb()


class TestNearestNeighbours(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return NearestNeighbours(neighbours=3)


class TestLinearModel(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return LinearModel()


class TestLinesStore(StoreContract):
    @pytest.fixture
    def piece(self, tmp_path):
        return LinesStore(tmp_path / "tt.jsonl")
