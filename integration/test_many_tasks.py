"""A model of many operators, like MobileNet-V2 on a small budget: who gets the trials."""

from __future__ import annotations

import dataclasses
import math

import pytest
from tt_schedule import Gradient, Minutes, RoundRobin
from tt_spec import Loop, Pipeline, RunInfo, VirtualClock
from tt_spec.light import LightScheduler
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper

HEAVY = [("conv2d", 30e6 / (1 + i / 16), 2.0) for i in range(24)]
LIGHT = [(op, 1e4, 1.0) for op in ("softmax", "mean", "pool", "add", "cast", "take")]
COPIES = [("transpose", 0.0, 1.0)] * 4
SCHEDULERS = {
    "sequential": SequentialScheduler,
    "round-robin": lambda: RoundRobin(trials=32),
    "gradient": Gradient,
}


class Machine(SyntheticMeasurer):
    """10 GFLOP/s at best and 5 us a call; three rows a second, by the run's clock."""

    def __init__(self, clock):
        super().__init__(noise=0)
        self.clock = clock

    def seconds(self, task, codes):
        return (task.flops / 10e9 + 5e-6) * super().seconds(task, codes) / 1e-3

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            self.clock.advance(1 / 3)
            yield m


def tune(scheduler, stopper, batch=64):
    clock = VirtualClock(1e9)
    tasks = tuple(
        dataclasses.replace(synthetic_task(f"{op} {i}"), op=op, flops=flops, weight=weight)
        for i, (op, flops, weight) in enumerate([*HEAVY, *LIGHT, *COPIES])
    )
    pipelines = [Pipeline(t, NullSurrogate(), RandomSearcher(), TopSampler(), clock=clock) for t in tasks]
    outcome = Loop(
        pipelines,
        Machine(clock),
        MemoryStore(),
        LightScheduler(scheduler),
        [stopper],
        clock,
        info=RunInfo("r", tasks),
        batch=batch,
    ).run()
    assert outcome.failure is None
    return outcome


@pytest.mark.parametrize("name", SCHEDULERS)
def test_two_hundred_trials_reach_all_and_are_not_eaten_by_trifles(name):
    outcome = tune(SCHEDULERS[name](), TrialsStopper(200))
    trials = [s.trials for s in outcome.states]
    assert sum(trials) == 200 and min(trials) >= 1
    assert sum(trials[len(HEAVY) :]) <= 0.2 * 200


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_light_task_never_gets_more_than_its_cap(name):
    outcome = tune(SCHEDULERS[name](), TrialsStopper(1500))
    trials = [s.trials for s in outcome.states]
    assert sum(trials) == 1500 and max(trials[len(HEAVY) :]) == 16
    assert sum(n > 32 for n in trials[: len(HEAVY)]) >= 20  # the last of them belong to the lightest twentieth


@pytest.mark.parametrize("name", SCHEDULERS)
def test_three_minutes_reach_every_task(name):
    outcome = tune(SCHEDULERS[name](), Minutes(3.0))  # 540 rows for 34 tasks, a batch of 64 takes more than a tenth
    assert outcome.reason == "3 minutes are spent" and outcome.trials == pytest.approx(540, abs=1)
    assert all(math.isfinite(s.best_s) for s in outcome.states)


def test_sequential_shares_minutes_evenly():
    outcome = tune(SequentialScheduler(), Minutes(10.0))
    first, *others = (s.trials for s in outcome.states[:20])
    assert min(others) > 60 and max(others) <= 1.1 * min(others)
    assert first > 30  # its turn came before the run had a pace


def test_gradient_gives_the_rest_to_the_largest_shares():
    outcome = tune(Gradient(), TrialsStopper(1000))
    by_share = sorted(outcome.states[: len(HEAVY)], key=lambda s: -s.weight * s.flops)
    assert sum(s.trials for s in by_share[:8]) > 1.5 * sum(s.trials for s in by_share[-8:])
