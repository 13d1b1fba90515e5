"""Choice and order of the tests: the long ones first, so that no process works on one while the others have nothing
left; and processors that are free while nobody works."""

import os

import pytest

# the threads of TVM's pool wait busily for the next program: processors that other tests could use
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

_TOGETHER = ("slow", "together")
"""Marks of packages' tests that need the workspace's environment, or are too long to be run twice."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--together", action="store_true", help="leave out what `hatch run alone` runs: see tools/suite.py"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is asked for; put the tests marked `slow` first in the share that every process of pytest-xdist
    begins with.

    `--dist worksteal` deals shares of equal size in the order of the tests.
    """
    if config.getoption("--together"):
        apart = [i for i in items if "packages" in i.path.parts and not any(map(i.get_closest_marker, _TOGETHER))]
        config.hook.pytest_deselected(items=apart)
        items[:] = [i for i in items if i not in set(apart)]
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [i for i in items if i.get_closest_marker("slow")]
    rest = [i for i in items if not i.get_closest_marker("slow")]
    made: list[pytest.Item] = []
    for k in range(processes):
        own = slow[k::processes]
        more = max((len(items) - len(made)) // (processes - k) - len(own), 0)
        made += own + rest[:more]
        rest = rest[more:]
    items[:] = made + rest
