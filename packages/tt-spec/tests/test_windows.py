"""Windows and the state in which they count, against machines whose states are known."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_spec import Reference, Seen, Windows
from tt_spec.testing.machine import TwoStates
from tt_spec.windows import ANCHOR_S, FEW_TURNS, MOST, SUFFERS, TURNS, beside, suffered

STEADY = (1e9, 1e-9)


def machine(fast_s=0.01, slow_s=0.01, seed=0, **more):
    return TwoStates(np.random.default_rng(seed), fast_s, slow_s, **more)


def scripted(states, each_s=1e-3):
    """A candidate and a probe that read `states`, a slowdown each, one after the other; a run has the last one's."""
    at = iter(states)
    now = [1.0]

    def probe():
        now[0] = next(at, now[0])
        return 1e-4 * now[0]

    return (lambda n: each_s * now[0]), probe


def test_a_steady_machine_counts_every_window():
    m = machine(*STEADY, jitter=0.0)
    w = Windows(m.candidate(1e-4), m.probe, TwoStates.PROBE_S)
    assert w(50) == pytest.approx(1e-4)
    noise = w.noise()
    assert noise.discarded == 0 and noise.vain_s == 0 and noise.slowdown == pytest.approx(1) and w.wasted == 0
    # windows of 0.5, 1, 2, ... ms: 1 (unknown length), 10, 20, 19 executions, and a probe on both sides of each
    assert noise.windows == 4 and len(w.seen().readings) == 5 and w.seen().met


def test_no_window_begins_in_another_state_and_one_that_ends_in_it_is_made_again():
    run, probe = scripted([1.9, 1.9, 1.0, 1.9, 1.0, 1.0])
    w = Windows(run, probe, 1e-4)
    assert w(1) == pytest.approx(1e-3)
    # slow, slow, good: a window that ended slow; good: a window that counts
    noise = w.noise()
    assert (noise.windows, noise.discarded, w.wasted) == (1, 1, 1)
    assert noise.slowdown == pytest.approx(1.0)
    assert noise.vain_s == pytest.approx(2 * 1.9e-4 + 1.9e-4 + 1e-3)


def test_a_state_that_is_faster_than_the_reference_does_not_count_either():
    run, probe = scripted([0.5, 1.0, 1.0])
    assert Windows(run, probe, 1e-4)(1) == pytest.approx(1e-3)


def test_without_a_window_that_counts_the_others_do_corrected_by_what_the_probe_says():
    m = machine(1e-9, 1e9, factor=1.8, jitter=0.0)
    w = Windows(m.candidate(1e-3, sensitivity=0.5), m.probe, TwoStates.PROBE_S, sensitivity=0.5, most_s=0.01)
    assert w(5) == pytest.approx(1e-3, rel=1e-6)
    noise = w.noise()
    assert noise.slowdown == pytest.approx(1.8) and noise.discarded == 0 and noise.windows >= 5
    assert not w.seen().met and w.seen().sensitivity is None


def test_a_probe_that_was_interrupted_is_no_state_to_correct_for():
    run, probe = scripted([20.0], each_s=1e-3)
    w = Windows(run, probe, 1e-4, most_s=0.001)
    assert w(3) == pytest.approx(20e-3 / MOST) and w.noise().slowdown == pytest.approx(20)


def sleeping(naps, each_s=0.5):
    """A candidate of long executions and a probe, whose first readings after each take so many times as long."""
    left: list[float] = []

    def run(n):
        left[:] = naps
        return each_s

    return run, lambda: 1e-4 * (left.pop(0) if left else 1.0)


@pytest.mark.parametrize("naps", [[1.3], [5.7], [20.0, 40.0]], ids=["a thread woke up", "late", "interrupted, twice"])
def test_one_late_probe_after_a_long_execution_says_nothing_of_it(naps):
    w = Windows(*sleeping(naps), 1e-4, most_s=2.0)
    assert w(3) == pytest.approx(0.5)
    assert w.seen().met and w.noise().discarded == 0 and w.noise().slowdown == pytest.approx(1)


def test_a_long_execution_is_corrected_only_for_a_state_that_was_there_before_and_after():
    for naps, told in (([5.7] * 9, 0.5), ([], 0.5 / 2.0)):
        run, probe = sleeping(naps)
        w = Windows(run, (lambda p=probe: 2.0 * p()) if not naps else probe, 1e-4, most_s=0.0)
        assert w(1) == pytest.approx(told)


def test_without_sensitivity_nothing_is_corrected():
    run, probe = scripted([2.0], each_s=1e-3)
    assert Windows(run, probe, 1e-4, sensitivity=0.0, most_s=0.001)(3) == pytest.approx(2e-3)


def test_what_was_spent_in_vain_is_bounded_over_all_calls():
    m = machine(1e-9, 1e9)
    w = Windows(m.candidate(1e-4), m.probe, TwoStates.PROBE_S, most_s=0.005)
    for _ in range(20):
        w(10)
    assert 20 * 10 * 1e-4 * 1.9 < m.now < 20 * 10 * 1e-4 * 1.9 * 1.5 + 0.01


def test_how_much_a_candidate_suffers_is_seen_where_it_met_both_states():
    m = machine(0.01, 0.01, factor=1.9, jitter=0.0)
    w = Windows(m.candidate(2e-4, sensitivity=0.7), m.probe, TwoStates.PROBE_S)
    for _ in range(30):
        w(20)
    assert w.seen().sensitivity == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize(("good", "met"), [(1, False), (2, True)])
def test_most_calls_must_meet_the_state_and_the_others_are_corrected_by_the_candidates_own_sensitivity(good, met):
    """A program that the slow state costs nothing, of which it was said that it suffers with the probe."""
    slow = [False]

    def probe():
        return 1e-4 * (1.8 if slow[0] else 1.0)

    w = Windows(lambda n: 1e-3, probe, 1e-4, sensitivity=1.0, most_s=0.02)
    got = [w(4) for _ in range(good)]
    slow[0] = True
    got += [w(4) for _ in range(3 - good)]
    assert got == pytest.approx([1e-3] * 3), "a correction by 1.8 would be no timing"
    assert w.seen().met == met
    assert Windows(lambda n: 1e-3, probe, 1e-4, sensitivity=1.0, most_s=0.02)(4) == pytest.approx(1e-3 / 1.8)


def test_the_reference_is_the_fastest_state_that_is_frequent_enough():
    ref = Reference()
    assert ref.seconds is None
    ref.look([1.0] * 40 + [1.9] * 60)
    assert ref.seconds == pytest.approx(1.0)
    rare = Reference()
    rare.look([1.0] * 5 + [1.9] * 95)
    assert rare.seconds == pytest.approx(1.9)
    spread = Reference()  # no state holds a third: the most frequent
    spread.look([1.0, 1.3, 1.7, 2.2, 2.9, 3.0, 3.1, 3.9, 5.0, 6.5])
    assert spread.seconds == pytest.approx(3.0)


def test_without_readings_it_is_known_that_nothing_tells():
    ref = Reference()
    assert not ref.blind
    ref.look(())
    assert ref.blind and ref.seconds is None


def tell(ref: Reference, *seen: Seen) -> None:
    """Batches of one candidate."""
    for s in seen:
        ref.tell("a", s)
        ref.settle()


def test_a_reference_that_no_candidate_meets_any_more_is_given_up():
    ref = Reference(early=(), recent=10)
    ref.look([1.0] * 100)
    tell(ref, *[Seen((2.0,) * 20, False)] * 9)
    assert ref.seconds == pytest.approx(1.0) and ref.changes == 0
    tell(ref, Seen((2.0,) * 20, False))
    assert ref.seconds == pytest.approx(2.0) and ref.changes == 1
    tell(ref, *[Seen((2.0,) * 20, True)] * 30)
    assert ref.changes == 1


def test_a_state_that_only_the_first_look_met_is_corrected_early():
    ref = Reference(early=(3, 8))
    ref.look([2.0] * 100)
    for i in range(8):
        assert ref.seconds == pytest.approx(2.0), i
        tell(ref, Seen((1.0, 2.0, 2.0, 2.0), False))  # while it waited the state changed: that has no vote
    assert ref.seconds == pytest.approx(1.0) and ref.changes == 1
    tell(ref, *[Seen((2.0,), False)] * 100)  # a long slow state is no reason to change again
    assert ref.seconds == pytest.approx(1.0) and ref.changes == 1


def test_a_rare_state_that_most_candidates_meet_by_waiting_stays_the_reference():
    ref = Reference(early=(3, 8))
    ref.look([1.0] * 100)
    tell(ref, *[Seen((2.0, 1.0), met=i % 4 != 0) for i in range(8)])
    assert ref.seconds == pytest.approx(1.0) and ref.changes == 0


def test_a_change_waits_for_the_end_of_a_batch_and_is_told_to_each_task_once():
    ref = Reference(early=(20,))
    ref.look([2.0] * 10)
    for task in ("a", "b") * 10:
        ref.tell(task, Seen((4.0,), False, sensitivity={"a": 0.5, "b": 1.0}[task]))
    assert ref.seconds == pytest.approx(2.0) and ref.rescaled("a") == ref.rescaled("b") == 1, "not in a batch"
    ref.settle()
    assert ref.seconds == pytest.approx(4.0)
    ref.tell("c", Seen((4.0,), True))
    assert ref.rescaled("a") == pytest.approx(2**0.5) and ref.rescaled("b") == pytest.approx(2.0)
    assert ref.rescaled("a") == ref.rescaled("b") == ref.rescaled("c") == ref.rescaled("never timed") == 1


def test_a_candidate_that_was_never_run_has_no_vote():
    ref = Reference(early=(1,))
    ref.look([1.0] * 100)
    ref.tell("a", Seen((), False))
    assert ref.seconds == pytest.approx(1.0) and ref.changes == 0


def test_nobody_waits_long_for_a_state_that_stays_away():
    ref = Reference()
    ref.look([1.0] * 100)
    for _ in range(2):
        ref.tell("a", Seen((2.0,), False))
    assert ref.wait_s() == Reference.WAIT_S
    ref.tell("a", Seen((2.0,), False))
    assert ref.wait_s() == Reference.SHORT_S < Reference.WAIT_S
    ref.tell("a", Seen((1.0,), True))
    assert ref.wait_s() == Reference.WAIT_S


@pytest.mark.parametrize("suffers", [0.3, 1.0, 1.4])
@pytest.mark.parametrize("each_s", [2e-5, 2e-3, 2e-2])
def test_a_known_program_tells_how_much_a_state_costs(suffers, each_s):
    m = machine(1e-9, 1e9, factor=1.9, jitter=0.0)
    found = suffered(m.candidate(each_s, suffers), each_s, m.probe, TwoStates.PROBE_S)
    assert found == pytest.approx(suffers)
    steady = machine(1e9, 1e-9, jitter=0.0)
    assert suffered(steady.candidate(each_s), each_s, steady.probe, TwoStates.PROBE_S) is None


def test_what_a_known_program_tells_is_bounded():
    readings = iter([2.0] * 4)
    assert suffered(lambda n: 0.2, 0.01, lambda: next(readings), 1.0) == SUFFERS
    readings = iter([2.0] * 4)
    assert suffered(lambda n: 0.005, 0.01, lambda: next(readings), 1.0) == 0.0


def test_sensitivity_is_the_tasks_own_then_all_tasks_then_one():
    ref = Reference()
    assert ref.sensitivity("a") == 1.0
    for x in (0.2, 0.4, 0.3):
        ref.tell("b", Seen((1.0,), True, x))
    assert ref.sensitivity("b") == ref.sensitivity("a") == pytest.approx(0.3)
    ref.tell("a", Seen((1.0,), True, 0.9))
    assert ref.sensitivity("a") == pytest.approx(0.9)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    n=st.integers(1, 200),
    each_s=st.floats(1e-6, 0.02),
    fast_s=st.floats(1e-3, 1.0),
    slow_s=st.floats(1e-3, 1.0),
    factor=st.floats(1.2, 4),
    seed=st.integers(0, 100),
)
def test_whatever_the_machine_does(n, each_s, fast_s, slow_s, factor, seed):
    m = machine(fast_s, slow_s, seed, factor=factor, jitter=0.0)
    done = []
    run = m.candidate(each_s)

    def counted(k):
        done.append(k)
        return run(k)

    w = Windows(counted, m.probe, TwoStates.PROBE_S, most_s=0.02)
    seconds = w(n)
    assert sum(done) == n + w.wasted >= n
    assert each_s / factor <= seconds * (1 + 1e-9) and seconds <= each_s * factor * (1 + 1e-9)
    noise = w.noise()
    assert noise.windows >= 1 and noise.discarded >= 0 and math.isfinite(noise.slowdown)
    assert w.seen().met == (abs(math.log(noise.slowdown)) <= math.log(1.15) and noise.vain_s < math.inf) or factor < 1.4


@pytest.mark.parametrize(("each_s", "turns"), [(2e-4, TURNS), (4 * ANCHOR_S, FEW_TURNS)])
def test_turns_with_a_known_program_tell_the_seconds_while_the_machine_drifts(each_s, turns):
    """By the geometric mean of the known program's turns before and after, a steady drift cancels out exactly."""
    state, called = [1.0], []

    def program(true_s):
        def run(n):
            called.append((true_s, n))
            state[0] *= 1.07
            return true_s * state[0]

        return run

    ((seconds, runs),) = beside([program(each_s)], program(3e-4), 3e-4)
    assert seconds == pytest.approx([each_s] * turns)
    assert runs == sum(n for true_s, n in called if true_s == each_s)
    assert beside([], program(3e-4), 3e-4) == []
