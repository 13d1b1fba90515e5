"""Every registered piece keeps its role's contract."""

import functools
import warnings

import pytest
from tt_spec import Plugins
from tt_spec.testing import CONTRACTS, SamplerContract, cases, check, contract_for, tiny_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # tests of the plug-ins report what is broken
    PLUGINS = Plugins()

# Options that make a piece small or buildable here; functions get tmp_path.
OPTIONS = {
    ("searcher", "ppo"): lambda tmp_path: {"episodes": 16, "steps": 20, "patience": 10},
    ("store", "sqlite"): lambda tmp_path: {"path": tmp_path / "tt.db"},
    # its default backend needs no compiler: programs are pauses
    ("measurer", "local"): lambda tmp_path: {"workers": 1, "lock": tmp_path / "lock"},
}
FIXTURES = {("measurer", "local"): {"task": tiny_task()}}


class Synthesises(SamplerContract):
    """For samplers that make rows of their own."""

    subset = False


SYNTHESISES = {"adaptive"}


def entries():
    for role in CONTRACTS:
        for name in PLUGINS.names(role):
            for test in cases(contract_for(role)):
                yield pytest.param(role, name, test, id=f"{role}-{name}-{test.removeprefix('test_')}")


@pytest.mark.parametrize(("role", "name", "test"), list(entries()))
def test_keeps_its_contract(role, name, test, tmp_path):
    options = OPTIONS.get((role, name), lambda tmp_path: {})(tmp_path)
    factory = functools.partial(PLUGINS.build, role, name, **options)
    contract = Synthesises if role == "sampler" and name in SYNTHESISES else None
    check(role, factory, only=test, contract=contract, **FIXTURES.get((role, name), {}))


def test_no_plugin_is_broken():
    assert PLUGINS.broken == []
