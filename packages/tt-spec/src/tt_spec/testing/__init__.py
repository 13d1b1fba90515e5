"""Contracts: what every piece of a role must do, as tests that ship.

A plug-in author subclasses the role's contract with one fixture and lets pytest run it:

    from tt_spec.testing import SearcherContract

    class TestMySearcher(SearcherContract):
        @pytest.fixture
        def piece(self):
            return MySearcher()

`check` runs one on a piece without pytest's fixtures; needs the extra `tt-spec[testing]`.
"""

from tt_spec.testing.contract import CONTRACTS, cases, check, contract_for
from tt_spec.testing.evaluator import EvaluatorContract
from tt_spec.testing.examples import context, mixed_space, mixed_task, tiny_task, wide_task
from tt_spec.testing.format import FormatContract
from tt_spec.testing.host import HostContract
from tt_spec.testing.measurer import MeasurerContract
from tt_spec.testing.model_format import ModelFormatContract
from tt_spec.testing.replay import ReplayContract
from tt_spec.testing.sampler import SamplerContract
from tt_spec.testing.scheduler import SchedulerContract
from tt_spec.testing.searcher import SearcherContract
from tt_spec.testing.space import SpaceContract
from tt_spec.testing.stopper import StopperContract
from tt_spec.testing.store import StoreContract
from tt_spec.testing.surrogate import SurrogateContract
from tt_spec.testing.transfer import TransferContract

__all__ = [
    "CONTRACTS",
    "EvaluatorContract",
    "FormatContract",
    "HostContract",
    "MeasurerContract",
    "ModelFormatContract",
    "ReplayContract",
    "SamplerContract",
    "SchedulerContract",
    "SearcherContract",
    "SpaceContract",
    "StopperContract",
    "StoreContract",
    "SurrogateContract",
    "TransferContract",
    "check",
    "context",
    "contract_for",
    "mixed_space",
    "mixed_task",
    "cases",
    "tiny_task",
    "wide_task",
]
