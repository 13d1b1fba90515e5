"""DynaTune's scheduler: hand-worked bounds, gains, and what is updated when."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from tt_schedule import Belief, DynaTune, Linear, RandomTurns
from tt_schedule.actions import epsilon_greedy, softmax, ucb
from tt_schedule.belief import Curve
from tt_spec import PieceError, Task, TaskState, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SchedulerContract

CLOCK = VirtualClock()


def state(op="conv", flops=1e9, weight=1.0, **what):
    return TaskState(Task(f"{op}{flops}{weight}", op, op, "none", synthetic_task().spaces, flops, weight), **what)


def spend(s, trials, best_s):
    s.trials, s.best_s = s.trials + trials, min(s.best_s, best_s)
    s.curve.append((s.trials, 0.0, s.best_s))


class TestDynaTuneContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return DynaTune(steps=110, samples=20)


class TestRandomContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return RandomTurns()


class TestLinearContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return Linear()


@pytest.fixture
def fits(monkeypatch):
    """Beliefs in which performance always gains a tenth; the task units' best performances that were asked about."""
    asked = []

    def fit(self, gains, trials, ahead, ceiling, rng):
        asked.append((gains, trials, ahead, ceiling))
        best = gains[-1][1]
        return Curve("loglinear", np.array([[0.0, 1.1 * best]]), 0, best)

    monkeypatch.setattr(Belief, "fit", fit)
    return asked


def warm(best_ms, trials=16, **what):
    s = state(**what)
    spend(s, trials, 1e-3 * best_ms)
    s.incumbents.append((trials, 1e-3 * best_ms))
    return s


def test_ucb_by_hand():
    # t = 1 + 2 + 4: log 8 = 2.0794; sqrt(2 * 2.0794 / 1), ... / 2, ... / 4
    assert ucb([0.5, 0.0, 3.0], [1, 2, 4], 2.0) == pytest.approx([0.5 + 2.0393, 1.4420, 3.0 + 1.0197], abs=1e-4)
    assert ucb([0.5, 0.0, 3.0], [1, 2, 4], 0.0).tolist() == [0.5, 0.0, 3.0]


def test_softmax_and_epsilon_greedy_follow_the_gains():
    assert softmax(np.log([1.0, 2.0, 5.0]), 1.0) == pytest.approx([0.125, 0.25, 0.625])
    rng, gains = np.random.default_rng(0), np.array([0.1, 0.9, 0.3])
    picks = Counter(epsilon_greedy(gains, 0.3, rng) for _ in range(600))
    assert picks[1, "greedy"] == pytest.approx(420, abs=40)
    assert sum(n for (_, why), n in picks.items() if why == "random") == pytest.approx(180, abs=40)
    assert {epsilon_greedy(gains, 0.0, rng) for _ in range(20)} == {(1, "greedy")}


def test_the_gain_is_the_latency_that_the_model_loses(fits):
    scheduler = DynaTune(peak_gflops=1000.0, c=2.0)
    # weight 3, 2 GFLOP in 8 ms; a tenth more performance: 3 * (8 - 8 / 1.1) ms
    assert scheduler.gain_s([s := warm(8.0, flops=2e9, weight=3.0)], 0, 16) == pytest.approx(3 * 8e-3 * (1 - 1 / 1.1))
    ((gains, trials, ahead, ceiling),) = fits
    assert gains[-1] == (16, pytest.approx(0.25)) and (trials, ahead, ceiling) == (16, 32, 1.0)  # 250 of 1000 GFLOP/s
    winograd = warm(1.0, flops=2e9)
    scheduler.gain_s([winograd], 0, 16)
    assert DynaTune(peak_gflops=1000.0).gain_s([winograd], 0, 16) > 0 and fits[-1][3] == pytest.approx(1.25 * 2.0)
    assert DynaTune().gain_s([warm(1.0, flops=0.0)], 0, 16) == pytest.approx(1e-3 * (1 - 1 / 1.1))
    assert DynaTune().gain_s([state()], 0, 16) == 0.0
    assert s.batches == 0


def test_who_is_far_behind_its_kind_may_catch_up(fits):
    # 2 GFLOP in 1 ms: 2 TFLOP/s. 3 GFLOP should then take 2 * 1.5 ms, take 9 and may save 6 ms, each of 2 executions
    states = [warm(1.0, flops=2e9), warm(9.0, flops=3e9, weight=2.0), warm(9.0, op="pool", flops=3e9)]
    scheduler, own = DynaTune(peak_gflops=1000.0), 9e-3 * (1 - 1 / 1.1)
    assert scheduler.gain_s(states, 1, 16) == pytest.approx(2 * 6e-3 / 2)  # one slot: even odds
    assert scheduler.gain_s(states, 2, 16) == pytest.approx(own)  # the only one of its kind
    assert DynaTune(peak_gflops=1000.0, beta=math.inf).gain_s(states, 1, 16) == pytest.approx(2 * own)
    slot = scheduler.next(states, CLOCK)
    assert slot.task == 1 and slot.info["similar_gain_s"] == pytest.approx(6e-3) == slot.gain_s
    scheduler.slots_[1] = 5
    assert scheduler.gain_s(states, 1, 16) == pytest.approx(2 * 6e-3 / 6)  # five in vain
    states[1].best_s = 2.9e-3
    assert scheduler.behind_s(states, 1) == 0.0


@pytest.mark.parametrize(("latencies", "c"), [((8.0, 4.0), 2.0), ((0.4, 0.2), 0.2)])
def test_the_papers_c_is_for_milliseconds(fits, latencies, c):
    states = [warm(ms) for ms in latencies]
    slot = DynaTune(c="paper").next(states, CLOCK)
    bounds = ucb([ms * (1 - 1 / 1.1) for ms in latencies], [1, 1], c)
    assert slot.task == 0 and slot.info["why"] == "ucb"
    assert slot.gain_s + slot.info["bonus_s"] == pytest.approx(1e-3 * bounds[0])
    assert DynaTune(c=c).next(states, CLOCK).info["bonus_s"] == pytest.approx(slot.info["bonus_s"])


def test_weights_count(fits):
    assert DynaTune(c=0.0).next([warm(8.0), warm(3.0, weight=4.0)], CLOCK).task == 1


def test_auto_chooses_alike_whatever_the_scale(monkeypatch):
    monkeypatch.setattr(DynaTune, "gain_s", lambda self, states, i, size: 0.0)

    def picks(scale):
        scheduler, found = DynaTune(), []
        states = [warm(scale * ms) for ms in (1.0, 2.7, 8.9)]
        for _ in range(39):
            slot = scheduler.next(states, CLOCK)
            found.append(slot.task)
            states[slot.task].trials += slot.trials
        return found

    assert picks(1.0) == picks(1e-3)
    shares = Counter(picks(1.0))  # nothing is expected of any: slots in proportion to latency
    assert [shares[i] for i in range(3)] == pytest.approx([3, 9, 27], abs=2)


def test_only_the_operator_just_tuned_is_believed_anew(fits):
    scheduler, states = DynaTune(), [warm(8.0), warm(4.0), warm(2.0)]
    slot = scheduler.next(states, CLOCK)
    assert len(fits) == 3
    spend(states[slot.task], 16, 1e-3)
    scheduler.next(states, CLOCK)
    assert len(fits) == 4 and fits[-1][1] == 32
    scheduler.next(states, CLOCK)
    assert len(fits) == 4


def test_a_light_operator_warms_up_with_a_quarter_of_a_slot():
    states = [state("conv", flops=2e9), state("pool", flops=1e6)]
    first = DynaTune().next(states, CLOCK)
    assert (first.task, first.trials) == (0, 16)
    spend(states[0], 16, 1e-3)
    assert (DynaTune().next(states, CLOCK).task, DynaTune().next(states, CLOCK).trials) == (1, 4)
    assert DynaTune(light=0.0).next(states, CLOCK).trials == 16


def test_a_failing_operator_is_bounded_and_not_forgotten(fits):
    states, scheduler, picks = [state("a"), state("b"), state("c")], DynaTune(c="paper"), []
    for _ in range(60):
        slot = scheduler.next(states, CLOCK)
        picks.append(slot.task)
        spend(states[slot.task], slot.trials, math.inf if slot.task == 0 else 1e-3)
    assert Counter(picks[:6]) == {0: 4, 1: 1, 2: 1}
    assert 0 < picks[6:].count(0) < 25


def test_no_slot_is_longer_than_what_the_operator_has_had():
    for trials, restored, wanted in ((16, 0, 16), (20, 0, 20), (40, 0, 32), (16, 10, 26), (4, 0, 16)):
        s = warm(8.0, trials=trials)
        s.restored = restored
        scheduler = DynaTune()
        slot = scheduler.next([s], CLOCK)
        assert slot.trials == wanted
        assert slot.gain_s == scheduler.gain_s([s], 0, wanted) <= scheduler.gain_s([s], 0, 32)
    assert DynaTune(trials=8).next([warm(8.0)], CLOCK).trials == 8


def test_slots_in_seconds_look_as_far_ahead_as_they_reach(fits):
    scheduler = DynaTune(seconds=30.0)
    states = [warm(8.0, trials=48)]
    scheduler.slots_[0] = 2
    slot = scheduler.next(states, CLOCK)
    assert (slot.seconds, slot.trials) == (30.0, None) and fits[-1][2] == 48 + 24


def test_the_runner_tells_the_peak(fits):
    scheduler = DynaTune()
    scheduler.peak(5e11)
    scheduler.gain_s([warm(8.0, flops=2e9)], 0, 16)
    assert fits[-1][0][-1][1] == pytest.approx(0.5)
    DynaTune().gain_s([warm(8.0, flops=2e9), warm(1.0, flops=1e9)], 0, 16)  # nobody told: the best rate, 1 TFLOP/s
    assert fits[-1][0][-1][1] == pytest.approx(0.25)


def test_restored_results_are_part_of_the_curve(fits):
    s = state(restored=32, best_s=4e-3, incumbents=[(3, 8e-3), (30, 4e-3)])
    DynaTune(peak_gflops=1000.0).next([s], CLOCK)
    gains, trials, *_ = fits[0]
    assert trials == 32 and [t for t, _ in gains] == [3, 30]


def test_the_slot_says_how_it_was_found():
    slot = DynaTune().next([warm(8.0), warm(4.0)], CLOCK)
    assert slot.info["belief"] == "mcmc" and 0.1 <= slot.info["acceptance"] <= 0.9
    assert slot.info["autocorrelation"] > 1


def test_other_actions_and_bad_options(fits):
    states = [warm(8.0), warm(4.0)]
    assert DynaTune(action="epsilon-greedy", epsilon=0.0).next(states, CLOCK).info["why"] == "greedy"
    picks = [DynaTune(action="softmax", seed=k).next(states, CLOCK) for k in range(40)]
    assert {p.task for p in picks} == {0, 1} and picks[0].info["why"] == "softmax"
    for options, text in (
        ({"action": "thompson"}, "action must be one of ucb, epsilon-greedy, softmax, got 'thompson'"),
        ({"curve": "exp3"}, "curve must be one of log_power, pow2"),
        ({"c": "much"}, "c must be a number, auto or paper, got 'much'"),
        ({"beta": 0.0}, "beta must be above 0, or infinite for no trust in similar operators, got 0.0"),
        ({"trials": 0}, "a slot needs trials and seconds above 0, got 0"),
        ({"seconds": -1.0}, "a slot needs trials and seconds above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            DynaTune(**options).next(states, CLOCK)


def test_without_its_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PieceError, match=r"pip install 'tt-schedule\[mcmc\]'"):
        DynaTune().next([state()], CLOCK)


def test_linear_gives_trials_in_proportion_to_flop():
    states, scheduler = [warm(1.0, flops=3e9), warm(1.0, flops=1e9), warm(1.0, flops=1e9, weight=2.0)], Linear()
    for _ in range(60):
        slot = scheduler.next(states, CLOCK)
        states[slot.task].trials += slot.trials
    shares = np.array([s.trials for s in states]) / sum(s.trials for s in states)
    assert shares == pytest.approx([3 / 6, 1 / 6, 2 / 6], abs=0.03)


def test_random_turns_are_even_and_depend_on_the_seed():
    def picks(seed):
        states, found = [warm(1.0) for _ in range(4)], []
        for _ in range(200):
            found.append(RandomTurns(seed=seed).next(states, CLOCK).task)
            states[found[-1]].trials += 16
        return found

    assert picks(0) == picks(0) != picks(1)
    assert min(Counter(picks(0)).values()) > 30


@pytest.mark.parametrize("scheduler", [RandomTurns, Linear, DynaTune])
def test_everyone_warms_up_first(scheduler, fits):
    states, piece, picks = [state(), state(), state()], scheduler(), []
    for _ in range(3):
        slot = piece.next(states, CLOCK)
        assert slot.info["why"] == "warm-up"
        picks.append(slot.task)
        spend(states[slot.task], slot.trials, 1e-3)
    assert sorted(picks) == [0, 1, 2] and piece.next(states, CLOCK).info["why"] != "warm-up"
