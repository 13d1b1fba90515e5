"""The contracts that every measurer and evaluator keeps."""

import numpy as np
import pytest
from tt_measure import Adaptive, Fixed, Racing, WorkerPool
from tt_spec.testing import EvaluatorContract, MeasurerContract


class TestWorkerPool(MeasurerContract):
    @pytest.fixture
    def piece(self, tmp_path):
        with WorkerPool(workers=2, lock=tmp_path / "lock") as pool:
            yield pool

    @pytest.fixture
    def library(self, tmp_path):
        path = tmp_path / "pause.txt"
        path.write_text("0.001")
        return str(path), {"x": np.arange(3.0)}


class TestFixed(EvaluatorContract):
    @pytest.fixture
    def piece(self):
        return Fixed()


class TestAdaptive(EvaluatorContract):
    @pytest.fixture
    def piece(self):
        return Adaptive()


class TestRacing(EvaluatorContract):
    @pytest.fixture(params=["adaptive", "fixed"])
    def piece(self, request):
        return Racing(request.param)
