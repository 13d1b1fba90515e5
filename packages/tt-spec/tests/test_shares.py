"""Shares of a model's latency, and a handful of trials for what hardly matters."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_spec import Slot, TaskState, VirtualClock
from tt_spec.light import LightScheduler
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.shares import heavy, latencies, shares
from tt_spec.testing import SchedulerContract

CLOCK = VirtualClock()
INF = math.inf


def task(name, flops=1e9, weight=1.0, op="conv2d"):
    return dataclasses.replace(synthetic_task(name), flops=flops, weight=weight, op=op)


def state(name, flops=1e9, weight=1.0, op="conv2d", **what):
    return TaskState(task(name, flops, weight, op), **what)


class TestLightContract(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return LightScheduler(SequentialScheduler())


def test_what_is_measured_counts_and_the_rest_follows_its_operator():
    tasks = [task("a", 4e9), task("b", 2e9), task("c", 1e9), task("d", 1e9, op="dense"), task("e", 2e9, op="pool")]
    # the convolutions reach 6 GFLOP in 3 ms together, the dense one 1 GFLOP in 5 ms, all of them 7 GFLOP in 8 ms
    found = latencies(tasks, [1e-3, 2e-3, INF, 5e-3, INF])
    assert found == pytest.approx([1e-3, 2e-3, 0.5e-3, 5e-3, 2e9 / (7e9 / 8e-3)])


def test_shares_before_any_measurement_are_those_of_the_flop():
    assert shares([task("a", 6e9), task("b", 1e9, weight=2), task("c", 0.0)], [INF] * 3) == pytest.approx(
        [0.75, 0.25, 0.0]
    )
    assert shares([task("a", 0.0, weight=3), task("b", 0.0)], [INF] * 2) == pytest.approx([0.75, 0.25])


def test_a_measured_copy_has_a_share_although_it_has_no_flop():
    assert shares([task("a", 1e9), task("copy", 0.0)], [3e-3, 1e-3]) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    ("share", "portion", "found"),
    [
        ([0.5, 0.46, 0.04], 0.95, [True, True, False]),
        ([0.04, 0.5, 0.46], 0.95, [False, True, True]),
        ([0.5, 0.45, 0.05], 0.95, [True, True, False]),
        ([0.5, 0.44, 0.03, 0.03], 0.95, [True, True, True, False]),
        ([1.0], 0.95, [True]),
        ([0.6, 0.4], 0.5, [True, False]),
        ([], 0.95, []),
    ],
)
def test_heavy_by_hand(share, portion, found):
    assert heavy(np.array(share), portion).tolist() == found


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=40).filter(lambda x: sum(x) > 0), st.floats(0.05, 1.0))
def test_heavy_is_the_smallest_set_that_holds_the_portion(spent, portion):
    share = np.array(spent) / sum(spent)
    found = heavy(share, portion)
    assert found.any() and share[found].sum() >= portion - 1e-8
    assert share[found].sum() - share[found].min() < portion  # none of them could be left out
    assert share[found].min() >= share[~found].max(initial=0.0)


def light(trials=16, **options):
    return LightScheduler(SequentialScheduler(), trials, **options)


def test_a_light_task_gets_a_handful_and_a_heavy_one_all():
    states = [state("conv"), state("softmax", 1e6, op="softmax")]
    assert light().room(states) == [INF, 16]
    slot = light().next(states, CLOCK)
    assert (slot.task, slot.trials) == (0, 1000) and "light" not in slot.info
    states[0].finished = "done"
    slot = light().next(states, CLOCK)
    assert (slot.task, slot.trials, slot.info["light"]) == (1, 16, 16)
    states[1].trials, states[1].restored = 6, 4
    assert light().next(states, CLOCK).trials == 6  # those of former runs count
    states[1].trials = 12
    assert light().next(states, CLOCK) is None


def test_a_lone_task_is_never_light():
    assert light().room([state("softmax", 0.0)]) == [INF]


def test_measured_latency_decides_afterwards():
    conv, norm = state("conv", trials=16, best_s=50e-3), state("norm", 1e6, op="norm", trials=16, best_s=1e-3)
    assert light().room([conv, norm]) == [INF, 0]
    conv.best_s = 5e-3  # the convolution became faster: the other one now takes 1 ms of 6
    assert light().room([conv, norm]) == [INF, INF]


@pytest.mark.parametrize(("rows", "each"), [(INF, 16), (2000, 16), (200, 4), (90, 1), (1, 1)])
def test_light_tasks_together_take_a_fifth_of_the_budget(rows, each):
    scheduler = light()
    scheduler.budget(rows)
    states = [state("conv"), *(state(f"copy {i}", 0.0, op="copy") for i in range(10))]
    assert scheduler.room(states) == [INF, *[each] * 10]
    if rows == 200:
        states[0].trials = 100
        scheduler.budget(100)  # the whole budget counts, not what is left of it
        assert scheduler.room(states) == [INF, *[each] * 10]


def test_slots_in_seconds_and_without_a_bound_are_capped_too():
    class Turn:
        def __init__(self, slot):
            self.slot = slot

        def next(self, states, clock):
            return self.slot

    states = [state("conv"), state("copy", 0.0)]
    for slot in (Slot(1), Slot(1, seconds=9.0), Slot(1, trials=500)):
        capped = LightScheduler(Turn(slot)).next(states, CLOCK)
        assert (capped.trials, capped.seconds) == (16, slot.seconds)
    assert LightScheduler(Turn(Slot(1, trials=3))).next(states, CLOCK).trials == 3
    assert LightScheduler(Turn(Slot(7))).next(states, CLOCK) == Slot(7)  # the loop says what is wrong with it


def test_one_after_the_other_shares_a_budget_evenly_and_leftovers_again():
    scheduler, states, order = SequentialScheduler(), [state(n) for n in "abcd"], []
    left = 40
    while left:
        scheduler.budget(left)
        slot = scheduler.next(states, CLOCK)
        taken = min(slot.trials, left, 2 if slot.task == 1 else 99)  # b has no more than two rows
        if slot.task == 1:
            states[1].finished = "its space is exhausted"
        states[slot.task].trials += taken
        left -= taken
        order.append((slot.task, taken))
    assert order[:4] == [(0, 10), (1, 2), (2, 14), (3, 14)] and len(order) == 4


def test_what_the_last_leaves_goes_round_again():
    scheduler, states = SequentialScheduler(), [state(n) for n in "abc"]
    for expected in [(0, 10), (1, 10), (2, 10)]:
        scheduler.budget(30 - sum(s.trials for s in states))
        slot = scheduler.next(states, CLOCK)
        assert (slot.task, slot.trials) == expected
        states[slot.task].trials += int(slot.trials or 0) if slot.task < 2 else 1
    scheduler.budget(9)
    slot = scheduler.next(states, CLOCK)
    assert (slot.task, slot.trials) == (0, 3)


def test_without_a_budget_each_task_gets_its_trials_once():
    scheduler, states, order = SequentialScheduler(20), [state(n) for n in "abc"], []
    while (slot := scheduler.next(states, CLOCK)) is not None:
        states[slot.task].trials += int(slot.trials or 0)
        order.append((slot.task, slot.trials))
    assert order == [(0, 20), (1, 20), (2, 20)]
