"""Order of the tests: the long ones first, so that no process works on one while the others have nothing left."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests marked `slow` first in the share that every process of pytest-xdist begins with.

    `--dist worksteal` deals shares of equal size in the order of the tests.
    """
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
