"""The measurer keeps its contract, over a backend of pauses that needs no compiler."""

import numpy as np
import pytest
from acme_tt.here import InThisProcess
from tt_spec.testing import MeasurerContract

pytest.importorskip("tt_measure")


class TestInThisProcess(MeasurerContract):
    @pytest.fixture
    def piece(self):
        return InThisProcess("tt_measure.example:PythonBackend")

    @pytest.fixture
    def library(self, tmp_path):
        path = tmp_path / "pause.txt"
        path.write_text("0.001")
        return str(path), {"x": np.arange(3.0)}
