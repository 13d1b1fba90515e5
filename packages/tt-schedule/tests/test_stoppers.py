from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
    s = TaskState(synthetic_task(), trials=249, restored=1000)
    s.incumbents = [(3, 9e-3), (700, 8e-3), (1050, 7e-3), (1100, 6.95e-3)]
    assert Patience().stop(s, VirtualClock()) is None
    s.trials = 250
    assert Patience().stop(s, VirtualClock()) == "no gain of 1 % in 200 trials"
    assert Patience(trials=300).stop(s, VirtualClock()) is None


def test_patience_lets_restored_rows_set_the_bar():
    s = TaskState(synthetic_task(), trials=200, restored=10)
    s.incumbents = [(4, 1e-3), (15, 0.995e-3)]
    assert Patience().stop(s, VirtualClock()) == "no gain of 1 % in 200 trials"
    assert Patience(gain=0).stop(s, VirtualClock()) is None
    s.incumbents = []
    assert Patience(gain=0).stop(s, VirtualClock()) == "no gain in 200 trials"


def autotvm(seconds: list[float], early_stopping: int, n_trial: int, batch: int) -> int:
    """Trials of AutoTVM's `tune`: its best row has an index from 0, and the counter is looked at after each batch."""
    best, best_iter, i = math.inf, 0, 0
    while i < min(n_trial, len(seconds)):
        part = seconds[i : min(i + batch, n_trial)]
        for k, s in enumerate(part):
            if s < best:
                best, best_iter = s, i + k
        i += len(part)
        if i >= best_iter + early_stopping:
            break
    return i


latencies = st.integers(1, 40).map(float)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    latencies,
    st.lists(latencies | st.just(math.inf), max_size=299),
    st.integers(2, 90),
    st.integers(1, 300),
    st.integers(1, 20),
)
def test_patience_without_a_least_gain_is_autotvms(first, rest, early_stopping, n_trial, batch):
    seconds = [first, *rest]
    piece = Patience(trials=early_stopping - 1, gain=0, cap=n_trial)
    state = TaskState(synthetic_task())
    while state.trials < len(seconds) and (not state.trials or piece.stop(state, VirtualClock()) is None):
        left = int(min(batch, piece.rows_left(state)))
        for s in seconds[state.trials : state.trials + left]:
            state.trials += 1
            if s < state.best_s:
                state.best_s = s
                state.incumbents.append((state.trials, s))
    assert state.trials == autotvm(seconds, early_stopping, n_trial, batch)


def test_where_every_row_fails_patience_ends_one_row_before_autotvm():
    assert autotvm([math.inf] * 50, early_stopping=20, n_trial=50, batch=1) == 20
    piece = Patience(trials=19, gain=0)
    assert piece.stop(TaskState(synthetic_task(), trials=18), VirtualClock()) is None
    assert piece.stop(TaskState(synthetic_task(), trials=19), VirtualClock()) == "no gain in 19 trials"


@pytest.mark.parametrize("options", [{"trials": 0}, {"cap": 0}, {"gain": 1}, {"gain": -0.1}])
def test_wrong_options_of_patience_are_refused_when_it_is_made(options):
    with pytest.raises(ValueError, match="must be"):
        Patience(**options)


def test_minutes_count_from_the_start_of_the_run():
    clock = VirtualClock(1e9)
    run = RunState([], clock.now())
    clock.advance(299.9)
    assert Minutes().stop(run, clock) is None
    clock.advance(0.2)
    assert Minutes().stop(run, clock) == "5 minutes are spent"
    assert Minutes(minutes=0.5).stop(run, clock) == "0.5 minutes are spent"


def test_minutes_that_are_not_all_the_search_s():
    clock = VirtualClock(1e9)
    run, minutes = RunState([], clock.now()), Minutes(minutes=5, apart_s=60.0)
    clock.advance(239.5)
    assert minutes.stop(run, clock) is None and minutes.left_s(run, clock) == pytest.approx(0.5)
    clock.advance(0.5)
    assert minutes.stop(run, clock) == "5 minutes are spent, 60 s of them to start and to finish"


def test_minutes_wait_some_seconds_for_operators_without_a_measurement():
    clock, first = VirtualClock(1e9), {"trials": 1}
    tasks = [TaskState(synthetic_task(name), **first) for name in ("a", "b")]
    run, minutes = RunState(tasks, clock.now()), Minutes(minutes=1, first_s=10.0)
    clock.advance(61.0)
    assert minutes.stop(run, clock) == "1 minutes are spent" and minutes.left_s(run, clock) == pytest.approx(-1.0)
    tasks.append(TaskState(synthetic_task("c")))
    assert minutes.stop(run, clock) is None and minutes.left_s(run, clock) == pytest.approx(9.0)
    for at, left_s in ((20.0, 40.0), (55.0, 10.0), (60.0, 10.0), (68.0, 2.0)):
        assert minutes.left_s(run, VirtualClock(1e9 + at)) == pytest.approx(left_s), "it plans with no more than that"
    for known in ({"restored": 3}, {"finished": "all rows are measured"}):
        tasks[2] = TaskState(synthetic_task("c"), **known)
        assert minutes.stop(run, clock) == "1 minutes are spent", known
    tasks[2] = TaskState(synthetic_task("c"))
    clock.advance(9.5)
    assert minutes.stop(run, clock) == "1 minutes are spent", "not for ever"
