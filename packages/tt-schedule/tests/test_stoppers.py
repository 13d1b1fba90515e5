from __future__ import annotations

import pytest
from tt_schedule import Minutes, Patience
from tt_spec import RunState, TaskState, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import StopperContract


class TestPatienceContract(StopperContract):
    @pytest.fixture
    def piece(self):
        return Patience()


class TestMinutesContract(StopperContract):
    @pytest.fixture
    def piece(self):
        return Minutes()


def test_patience_counts_from_the_last_gain():
    s = TaskState(synthetic_task(), trials=249, last_gain_trial=50, restored=1000)
    assert Patience().stop(s, VirtualClock()) is None
    s.trials = 250
    assert Patience().stop(s, VirtualClock()) == "no gain of 1 % in 200 trials"
    assert Patience(trials=300).stop(s, VirtualClock()) is None


def test_minutes_count_from_the_start_of_the_run():
    clock = VirtualClock(1e9)
    run = RunState([], clock.now())
    clock.advance(299.9)
    assert Minutes().stop(run, clock) is None
    clock.advance(0.2)
    assert Minutes().stop(run, clock) == "5 minutes are spent"
    assert Minutes(minutes=0.5).stop(run, clock) == "0.5 minutes are spent"
