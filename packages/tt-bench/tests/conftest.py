"""Small recordings whose truth is known, by `tt_bench_toy`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tt_bench.recording import Recorded, Recording
from tt_core.host import Host

sys.path.insert(0, str(Path(__file__).parent))

from tt_bench_toy import recorded, task  # noqa: E402


@pytest.fixture
def part() -> Recorded:
    return recorded(task())


@pytest.fixture
def recording() -> Recording:
    """A model of two tasks."""
    parts = (recorded(task("a", 6)), recorded(task("b", 8, weight=3.0)))
    return Recording("op:toy", "template", parts, "toy/2 cores", {"tvm": "0"})


@pytest.fixture(scope="session")
def host() -> Host:
    return Host()
