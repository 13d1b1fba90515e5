"""Timing in turns, by a clock that only the timed programs move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tt_bench import turns


class Machine:
    """Its clock moves when a program runs on it, or when one waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.ran.append("rest")
        self.now += seconds

    def program(self, name: str, *seconds: float):
        """Takes so many seconds, call by call, the last ever after."""
        left = list(seconds)

        def run() -> None:
            self.ran.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.fixture
def machine(monkeypatch):
    m = Machine()
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: m.now, sleep=m.sleep))
    return m


def test_a_block_is_the_mean_of_whole_calls(machine):
    assert turns.block(machine.program("a", 0.4), seconds=1.0) == pytest.approx(0.4)
    assert machine.ran == ["a"] * 3


def test_a_block_has_at_least_one_call(machine):
    assert turns.block(machine.program("a", 2.0)) == pytest.approx(2.0)
    assert machine.ran == ["a"]


def test_warm_up_does_not_count(machine):
    assert turns.block(machine.program("a", 5.0, 5.0, 1.0), warm=2) == pytest.approx(1.0)
    assert machine.ran == ["a", "a", "a"]


def test_whoever_has_a_turn_waits_until_the_threads_of_the_one_before_sleep(machine):
    timed = {n: lambda n=n: turns.block(machine.program(n, 1.0)) for n in "ab"}
    assert turns.in_turns(timed, 2) == {"a": [1.0] * 2, "b": [1.0] * 2}
    assert machine.ran == ["rest", "a", "rest", "b"] * 2


def test_everybody_has_a_turn_in_each_round(machine):
    timed = {n: lambda n=n: turns.block(machine.program(n, 1.0)) for n in "ab"}
    assert turns.in_turns(timed, 3, settle_s=0) == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert machine.ran == list("ababab")


def test_a_drift_meets_all_alike(machine):
    """A machine that becomes slower with every call: in turns the two differ by one call's drift, not by three."""
    calls = iter(range(100))
    found = turns.in_turns({n: lambda: 1.0 + next(calls) for n in "ab"}, 3, settle_s=0)
    assert sum(found["b"]) - sum(found["a"]) == 3.0


def test_first_rounds_may_be_skipped():
    seconds = iter(range(10))
    assert turns.in_turns({"a": lambda: float(next(seconds))}, rounds=2, skip=3, settle_s=0) == {"a": [3.0, 4.0]}
