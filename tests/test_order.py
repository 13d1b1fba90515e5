"""The choice and order of the tests: what the root's conftest.py does to it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from workspace import ROOT


class Item:
    def __init__(self, number: int, slow: bool, mark: str = "slow", path: str = "tests/test_x.py") -> None:
        self.number, self.slow, self.mark, self.path = number, slow, mark, Path(path)

    def get_closest_marker(self, name: str) -> object:
        return self if self.slow and name == self.mark else None


def ordered(items: list[Item], together: bool = False, **more: object) -> list[Item]:
    spec = importlib.util.spec_from_file_location("order_of_tests", ROOT / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config = SimpleNamespace(getoption={"--together": together}.get, hook=hook, **more)
    module.pytest_collection_modifyitems(config, items)
    return items


@pytest.mark.parametrize("processes", [1, 2, 3, 8])
@pytest.mark.parametrize(("tests", "slow"), [(40, 0), (40, 3), (41, 7), (9, 9), (5, 1), (1, 1), (0, 0)])
def test_every_process_begins_with_its_share_of_the_slow_tests(tests, slow, processes):
    items = ordered([Item(i, i >= tests - slow) for i in range(tests)], workerinput={"workercount": processes})
    assert sorted(i.number for i in items) == list(range(tests)), "each runs once"
    kept = [i.number for i in items if not i.slow]
    assert kept == sorted(kept), "the others stay in their order"
    if tests >= 40:
        left, counts = [i.slow for i in items], []
        for k in range(processes):  # as worksteal deals them
            size = len(left) // (processes - k)
            share, left = left[:size], left[size:]
            assert share == sorted(share, reverse=True)
            counts.append(sum(share))
        assert max(counts) - min(counts) <= 1


def test_without_processes_the_slow_ones_are_first():
    assert [i.number for i in ordered([Item(0, False), Item(1, True)])] == [1, 0]


def test_what_a_package_runs_alone_is_left_out_and_nothing_else():
    """tools/alone.py runs what is marked neither `slow` nor `together`, and only packages."""
    path = "packages/tt-x/tests/test_x.py"
    items = [Item(0, False), Item(1, False, path=path), Item(2, True, path=path), Item(3, True, "together", path)]
    assert sorted(i.number for i in ordered(list(items), together=True)) == [0, 2, 3]
    assert len(ordered(items)) == 4
    assert '"not slow and not together"' in (ROOT / "tools" / "alone.py").read_text()
