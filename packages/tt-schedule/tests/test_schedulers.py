from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
from tt_schedule import Gradient, RoundRobin
from tt_spec import Slot, Task, TaskState, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SchedulerContract

CLOCK = VirtualClock()


class TestRoundRobinContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return RoundRobin()


class TestGradientContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return Gradient()


def state(op: str = "conv", flops: float = 1e9, weight: float = 1.0, algorithms: str = "space", **what) -> TaskState:
    space = dataclasses.replace(synthetic_task().space, name=algorithms)
    return TaskState(Task(f"{op}{flops}{weight}", op, op, "none", (space,), flops, weight), **what)


def tuned(*best_ms: float, **what) -> TaskState:
    """A task with one slot of 16 trials per value, of which the last is a gain unless `last_gain_trial` is given."""
    curve = [(16 * (i + 1), 0.0, 1e-3 * b) for i, b in enumerate(best_ms)]
    trials = 16 * len(best_ms)
    return state(curve=curve, trials=trials, best_s=1e-3 * best_ms[-1], **{"last_gain_trial": trials, **what})


def spend(s: TaskState, trials: int, best_s: float) -> None:
    s.trials += trials
    if best_s < 0.99 * s.best_s:
        s.last_gain_trial = s.trials
    s.best_s = min(s.best_s, best_s)
    s.curve.append((s.trials, 0.0, s.best_s))


def test_round_robin_takes_turns_and_is_fair_in_trials():
    states = [state(), state(), state()]
    states[1].finished = "done"
    order = []
    for _ in range(4):
        slot = RoundRobin().next(states, CLOCK)
        order.append(slot.task)
        states[slot.task].trials += slot.trials
    assert order == [0, 2, 0, 2]
    states[0].trials = 3  # a short slot is made up for
    assert RoundRobin().next(states, CLOCK).task == 0


def test_gradient_by_hand():
    a = tuned(20, 16, 12, 10, weight=2.0)
    # 2 * (0.2 * (10 - 20) / 3 + 0.8 * (min(10 - 10 / 4, 2 * 10) - 10)) ms
    assert Gradient().change([a], 0) == pytest.approx(-16e-3 / 3)
    b = tuned(2.0)
    # b reaches 0.5 TFLOP/s: 2 * 1e9 / 0.5e12 = 4 ms; 2 * (-2 / 3 + 0.8 * (4 - 10)) ms
    assert Gradient().change([a, b], 0) == pytest.approx(-(4 / 3 + 9.6) * 1e-3)
    assert Gradient().change([a, state("dense", best_s=1e-9)], 0) == pytest.approx(-16e-3 / 3)
    # b itself after one slot: no past, g / t = g: 0.8 * (0 - 2) ms
    assert Gradient().change([a, b], 1) == pytest.approx(-1.6e-3)
    slot = Gradient(epsilon=0).next([a, b], CLOCK)
    assert (slot.task, slot.trials, slot.info["why"]) == (0, 16, "gradient")
    assert slot.gain_s == pytest.approx((4 / 3 + 9.6) * 1e-3)


def test_what_is_expected_fades_with_slots_in_vain():
    a = tuned(20, 16, 12, 12, 12, 12, weight=2.0, last_gain_trial=48)
    # three slots in vain: nothing gained over the window, 2 * 0.8 * (12 - 12 / 6 - 12) / 4 ** fade ms
    for fade, factor in ((0.0, 1.0), (0.5, 0.5), (0.25, 0.5**0.5), (1.0, 0.25)):
        assert Gradient(fade=fade).change([a], 0) == pytest.approx(-3.2e-3 * factor)
    a.last_gain_trial = 81  # not a whole slot ago
    assert Gradient(fade=1.0).change([a], 0) == pytest.approx(-3.2e-3)
    rival = state(flops=1e9, best_s=1e-3, trials=96, last_gain_trial=96)
    a.last_gain_trial = 48
    # the rival's 1 TFLOP/s promise 2 ms of 12: 2 * 0.8 * (2 - 12) / 4 ** fade ms
    assert Gradient(fade=0.0).change([a, rival], 0) == pytest.approx(-16e-3)
    assert Gradient(fade=0.5).change([a, rival], 0) == pytest.approx(-8e-3)
    assert Gradient(fade=0.5, epsilon=0).next([a, rival], CLOCK).gain_s == pytest.approx(8e-3)


def test_similar_are_operators_whose_algorithms_it_can_use():
    stem, fast = tuned(8, 8, algorithms="template+sketch"), tuned(1.0, algorithms="template+winograd+sketch")
    alone = 0.8 * (8 - 8 / 2 - 8) * 1e-3
    assert Gradient(fade=0).change([stem, fast], 0) == pytest.approx(alone)
    # 1x1 convolutions have no Winograd either: 2 TFLOP/s promise 2 * 1e9 / 2e12 = 1 ms of 8
    plain = tuned(0.5, algorithms="template+sketch")
    assert Gradient(fade=0).change([stem, fast, plain], 0) == pytest.approx(0.8 * (1 - 8) * 1e-3)
    # and what they reach is within reach of whoever has more to choose from: 1 ms, behind its own rate's 2 ms
    slow = tuned(8, 8, algorithms="template+winograd+sketch")
    assert Gradient(fade=0).change([plain, slow], 1) == pytest.approx(0.8 * (1 - 8) * 1e-3)


@pytest.mark.parametrize(("options", "least", "most"), [({"fade": 0.0, "share": 1.0}, 0.8, 1.0), ({}, 0.0, 0.15)])
def test_no_operator_keeps_slots_for_nothing(options, least, most):
    """A stem as slow as all others together, which is expected to reach their rate and never gains; they do."""
    states = [tuned(4.0), *(tuned(0.5, 0.4) for _ in range(14))]
    scheduler = Gradient(epsilon=0, **options)
    for _ in range(120):
        i = scheduler.next(states, CLOCK).task
        spend(states[i], 16, math.inf if i == 0 else 0.97 * states[i].best_s)
    assert least <= states[0].trials / sum(s.trials for s in states) <= most


def test_a_share_is_at_least_twice_an_even_one_and_binds_nobody_who_gains():
    two = [tuned(4.0), tuned(0.5, 0.4)]
    scheduler = Gradient(epsilon=0)
    for _ in range(20):
        i = scheduler.next(two, CLOCK).task
        spend(two[i], 16, math.inf if i == 0 else two[i].best_s)
    assert two[0].trials > 0.5 * sum(s.trials for s in two)
    many = [tuned(8.0, 4.0), *(tuned(0.5, 0.4) for _ in range(14))]
    for _ in range(60):
        i = scheduler.next(many, CLOCK).task
        spend(many[i], 16, 0.98 * many[i].best_s)
    assert many[0].trials > 0.3 * sum(s.trials for s in many)


def test_in_a_short_run_who_gains_first_does_not_shut_the_others_out():
    """One row of each of 28 convolutions, then 70 for all: the first of them to find Winograd is soon done."""
    states = [state(flops=1e9 + i, trials=1, best_s=5e-4, curve=[(1, 0.0, 5e-4)], last_gain_trial=1) for i in range(28)]
    scheduler = Gradient(epsilon=0)
    scheduler.budget(70)
    while sum(s.trials for s in states) < 98:
        slot = scheduler.next(states, CLOCK)
        spend(states[slot.task], slot.trials, 2e-4)
        scheduler.budget(98 - sum(s.trials for s in states))
    assert max(s.trials for s in states) <= 9 and sum(s.trials > 1 for s in states) >= 14


def test_of_a_restored_task_what_the_history_knew_is_no_gain():
    s = state(best_s=8e-3, restored=32, incumbents=[(1, 20e-3), (30, 8e-3)])
    other = tuned(4, 2)
    spend(s, 160, math.inf)
    assert Gradient(epsilon=0).next([s, other, *(tuned(1, 0.9) for _ in range(14))], CLOCK).task != 0


def test_a_past_without_a_valid_result_counts_as_no_past():
    s = tuned(math.inf, 9, 8, 8)
    assert Gradient().change([s], 0) == pytest.approx(0.8 * -2e-3)


def test_restored_tasks_are_warm():
    s, new = state(best_s=8e-3, restored=32), state()
    # t = 2: 0.8 * (8 - 8 / 2 - 8) ms
    assert Gradient().change([s], 0) == pytest.approx(-3.2e-3)
    assert Gradient().next([s, new], CLOCK).task == 1
    assert Gradient(epsilon=0).next([s], CLOCK).info["why"] == "gradient"


def test_without_flops_similarity_says_nothing():
    assert Gradient().change([tuned(8, 8, flops=0.0)], 0) == pytest.approx(0.8 * -4e-3)


def test_warm_up_gives_one_slot_each_by_weight_times_flops():
    states = [state(flops=1e9), state(flops=5e9), state(flops=2e9, weight=4)]
    order = []
    for _ in range(3):
        slot = Gradient().next(states, CLOCK)
        assert slot.info["why"] == "warm-up" and slot.gain_s == 0
        order.append(slot.task)
        spend(states[slot.task], 16, 1e-3)
    assert order == [2, 1, 0]


def test_a_failing_task_neither_starves_nor_holds_the_rest_up():
    states = [state("a"), state("b")]
    scheduler = Gradient(epsilon=0.0)
    picks = []
    for _ in range(12):
        slot = scheduler.next(states, CLOCK)
        picks.append(slot.task)
        spend(states[slot.task], 16, math.inf if slot.task == 0 else 1e-3)
    assert Counter(picks[:5]) == {0: 4, 1: 1} and set(picks[5:]) == {1}
    states[1].finished = "done"
    slot = scheduler.next(states, CLOCK)
    assert slot.task == 0 and slot.info["why"] == "nothing valid yet"
    states[1].finished = None
    often = Counter(_random_picks(Gradient(epsilon=0.3, seed=1), states, 100))
    assert 3 <= often[0] <= 30


def _random_picks(scheduler: Gradient, states: list[TaskState], n: int) -> list[int]:
    picks = []
    for _ in range(n):
        slot = scheduler.next(states, CLOCK)
        picks.append(slot.task)
        states[slot.task].trials += 16
    return picks


def test_random_slots_depend_on_the_seed_alone():
    def picks(seed: int) -> list[int]:
        return _random_picks(Gradient(epsilon=1.0, seed=seed), [tuned(1.0) for _ in range(4)], 40)

    assert picks(0) == picks(0) != picks(1)
    assert set(picks(0)) == {0, 1, 2, 3}


def test_a_negligible_task_gets_few_slots():
    # 10 ms, 5 ms and 0.05 ms of the model; each falls as 1 + 1 / slots towards those
    floors, states = (10e-3, 5e-3, 5e-5), [state(op) for op in "abc"]
    slots = Counter()
    for _ in range(100):
        i = Gradient().next(states, CLOCK).task
        slots[i] += 1
        spend(states[i], 16, floors[i] * (1 + 1 / slots[i]))
    assert slots[0] > slots[1] > 20 and slots[2] <= 8


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="at least one trial, got trials=0"):
        RoundRobin(trials=0).next([state()], CLOCK)
    with pytest.raises(ValueError, match="at least 1, got 0 and 3"):
        Gradient(trials=0).next([state()], CLOCK)
    with pytest.raises(ValueError, match=r"fade must be at least 0, got -1"):
        Gradient(fade=-1).next([state()], CLOCK)


def test_a_light_task_warms_up_with_a_quarter_of_a_slot():
    scheduler = Gradient(trials=16, epsilon=0.0)
    heavy, light = state(flops=1e9), state(flops=9e6)
    assert scheduler.next([heavy, light], CLOCK).trials == 16
    spend(heavy, 16, 1.0)
    slot = scheduler.next([heavy, light], CLOCK)
    assert (slot.task, slot.trials) == (1, 4)
    assert Gradient(trials=16, epsilon=0.0, light=0.0).next([heavy, light], CLOCK).trials == 16


def test_slots_of_a_task_that_had_many_trials_are_twice_as_long():
    """The history's trials count, too."""
    scheduler = Gradient(trials=16, doubled=128, epsilon=0.0)
    for trials, restored, rows in ((127, 0, 16), (128, 0, 32), (28, 100, 32), (500, 0, 32)):
        assert scheduler.next([state(trials=trials, restored=restored, best_s=1e-3)], CLOCK).trials == rows
    assert Gradient(trials=16, epsilon=0.0).next([state(trials=500, best_s=1e-3)], CLOCK).trials == 16


def test_no_more_first_slots_are_foreseen_than_one_full_slot_holds():
    """However many rows the run asks for at once."""
    scheduler = Gradient(trials=16, doubled=128, epsilon=0.0)
    states = [state(flops=1e9, trials=16, best_s=1e-3), *(state(flops=1e3) for _ in range(9))]
    assert scheduler.ahead(states, CLOCK, Slot(1, trials=4, info={"why": "warm-up"}), 28) == [
        Slot(i, trials=4, info={"why": "warm-up"}) for i in (2, 3, 4)
    ]


def test_first_slots_shrink_to_half_of_the_budget():
    scheduler, states = Gradient(epsilon=0.0), [state() for _ in range(8)]
    left, slots = 96, []
    for _ in range(10):
        scheduler.budget(left)
        slot = scheduler.next(states, CLOCK)
        slots.append((slot.task, slot.trials, slot.info["why"]))
        spend(states[slot.task], slot.trials, 1e-3)
        left -= slot.trials
    assert slots[:8] == [(i, 6, "warm-up") for i in range(8)]
    assert [(n, why) for _, n, why in slots[8:]] == [(6, "gradient")] * 2
    scheduler.budget(8000)
    assert scheduler.next(states, CLOCK).trials == 16


@pytest.mark.parametrize(("left", "trials"), [(40, 2), (100, 2), (130, 3), (200, 4), (1000, 4)])
def test_where_little_is_left_later_slots_are_short_so_that_all_get_one(left, trials):
    """Forty operators that have a program each, and from one to twenty-five more trials for each."""
    scheduler = Gradient(epsilon=0.0)
    scheduler.budget(left)
    slot = scheduler.next([state(trials=1, best_s=1e-3) for _ in range(40)], CLOCK)
    assert (slot.trials, slot.info["why"]) == (max(trials, (left + 40) // 2 // 40), "gradient")


def test_a_failing_task_does_not_take_a_small_budget():
    scheduler, states = Gradient(epsilon=0.0), [state("a"), *(state("b") for _ in range(7))]
    left, failing = 96, 0
    while left > 0:
        scheduler.budget(left)
        slot = scheduler.next(states, CLOCK)
        spend(states[slot.task], slot.trials, math.inf if slot.task == 0 else 1e-3)
        left, failing = left - slot.trials, failing + slot.trials * (slot.task == 0)
    assert failing == 4 * 6


def test_less_than_a_slot_is_urgent():
    s = state(trials=4, best_s=8e-3, weight=2.0)
    # t = 1 / 4: 2 * 0.8 * (8 - 8 * 4 - 8) ms; no more than the task takes can be gained
    assert Gradient().change([s], 0) == pytest.approx(-51.2e-3)
    assert Gradient(epsilon=0.0).next([s], CLOCK).gain_s == pytest.approx(16e-3)


def test_round_robin_shares_a_last_round_out_evenly():
    scheduler, states = RoundRobin(16), [state() for _ in range(4)]
    left = 64 + 10
    while left > 0:
        scheduler.budget(left)
        slot = scheduler.next(states, CLOCK)
        states[slot.task].trials += slot.trials
        left -= slot.trials
    assert left == 0 and [s.trials for s in states] == [19, 19, 18, 18]


def test_gradient_chooses_beside_a_slot_what_brings_half_as_much():
    def beside(gain_ms, *states, why="gradient", finished=0):
        mine = dataclasses.replace(states[finished], finished="in hand")
        after = [*states[:finished], mine, *states[finished + 1 :]]
        slot = Slot(finished, trials=16, gain_s=1e-3 * gain_ms, info={"why": why})
        return Gradient(epsilon=0).beside(after, CLOCK, slot)

    first, second = tuned(20.0, 18.0), tuned(10.0, 9.0, 8.0)
    expected_ms = 1e3 * beside(0.0, first, second).gain_s
    assert expected_ms > 0
    assert beside(1.9 * expected_ms, first, second).task == 1
    assert beside(2.1 * expected_ms, first, second) is None, "the first may deserve the next slot, too"
    assert beside(0.0, first) is None, "nobody else"
    assert beside(0.0, first, state()) is None, "first slots come in a row"
    assert beside(0.0, first, second, why="warm-up") is None
