"""Failures are counted by cause; numbers in a message make no new one."""

from __future__ import annotations

from tt_core.causes import Cause, Causes
from tt_spec import Measurement


def failure(error: str, why: str) -> Measurement:
    return Measurement("task", "space", (0,), error=error, why=why)


def test_the_most_frequent_come_first_with_their_first_message():
    found = Causes.of(
        [
            failure("run", "crashed at 0x7f01"),
            failure("build", "line 3: too many\nlocals"),
            failure("build", "line 44: too many\nlocals"),
            Measurement("task", "space", (1,), seconds=(1.0,)),
            failure("build", "another"),
            failure("run", "crashed at 0x55aa"),
            failure("build", "line 5: too many\nlocals"),
        ]
    )
    assert found.found == (
        Cause(3, "build", "line 3: too many\nlocals"),
        Cause(2, "run", "crashed at 0x7f01"),
        Cause(1, "build", "another"),
    )
    assert found.headline() == "6 candidates failed: 4 build, 2 run"
    assert found.lines(2) == ["3 x build: line 3: too many\nlocals", "2 x run: crashed at 0x7f01"]


def test_one_message_of_two_errors_is_two_causes():
    assert [c.count for c in Causes.of([failure("run", "x"), failure("build", "x")]).found] == [1, 1]


def test_nothing_measured_is_said():
    assert "no candidate was measured" in Causes.of([]).headline()
    assert Causes.of([]).lines() == []
