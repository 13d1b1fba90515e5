"""What a run would do, without doing it."""

from __future__ import annotations

import dataclasses
import inspect
import math
from types import SimpleNamespace

import pytest
from tt_core.planning import PAUSE_S, paces, plan, simulate
from tt_core.request import Asked, Request
from tt_core.tuning import tune
from tt_spec import Loop, Measurement, Pipeline, Plugins, RunInfo, Slot, TaskState, VirtualClock
from tt_spec.light import LightScheduler
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper


def state(name, flops=1e9, **what):
    return TaskState(dataclasses.replace(synthetic_task(name, knobs=2), flops=flops), **what)


def light(scheduler=None):
    return LightScheduler(scheduler or SequentialScheduler())


class Minutes:
    scope = "run"

    def __init__(self, minutes):
        self.minutes = minutes

    def stop(self, state, clock):
        return None if self.left_s(state, clock) > 0 else "spent"

    def left_s(self, state, clock):
        return state.started + 60 * self.minutes - clock.now()


def test_trials_are_handed_out_to_the_last():
    states = [state("a"), state("b"), state("tiny", 1e3)]
    planned = simulate(states, [0.1] * 3, light(), [TrialsStopper(100)], 16)
    assert sum(planned) == 100 and planned[2] == 16 and abs(planned[0] - planned[1]) <= 24
    assert [s.trials for s in states] == [0, 0, 0] and states[0].best_s == math.inf


def test_minutes_end_by_what_the_trials_cost():
    cheap, dear = simulate([state("a"), state("b")], [0.5, 4.0], light(), [Minutes(2.0)], 16)
    assert cheap > dear > 0 and 120 <= cheap * 0.5 + dear * 4.0 < 124


def test_a_space_is_not_planned_beyond_its_rows():
    planned = simulate([state("a"), state("b", restored=60, best_s=1e-3)], [0.1] * 2, light(), [TrialsStopper(500)], 16)
    assert planned == [64, 4]  # of 64 rows each


def test_a_slot_in_seconds_and_one_without_a_bound():
    class Turns:
        def __init__(self):
            self.slots = [Slot(0, seconds=2.0), Slot(1)]

        def next(self, states, clock):
            return self.slots.pop(0) if self.slots else None

    assert simulate([state("a"), state("b")], [0.5] * 2, light(Turns()), [TrialsStopper(500)], 16) == [4, 16]


def test_the_plan_is_what_the_loop_then_does():
    sizes = [("a", 4e9), ("b", 2e9), ("c", 1e9), ("tiny", 1e5), ("copy", 0.0)]
    tasks = tuple(dataclasses.replace(synthetic_task(n), flops=f, op=n) for n, f in sizes)
    planned = simulate([TaskState(t) for t in tasks], [1.0] * 5, light(), [TrialsStopper(120)], 16)

    class Machine(SyntheticMeasurer):
        def seconds(self, task, codes):
            return super().seconds(task, codes) * max(task.flops, 1e4) / 1e9

    clock = VirtualClock()
    out = Loop(
        [Pipeline(t, NullSurrogate(), RandomSearcher(), TopSampler(), clock=clock) for t in tasks],
        Machine(noise=0),
        MemoryStore(),
        light(),
        [TrialsStopper(120)],
        clock,
        info=RunInfo("r", tasks),
        batch=16,
    ).run()
    assert out.failure is None and out.trials == 120
    assert [s.trials for s in out.states] == planned


def test_a_plan_is_asked_for_as_a_run_is():
    planned, tuned = (inspect.signature(f).parameters for f in (plan, tune))
    assert planned["asked"].annotation == tuned["asked"].annotation == "Unpack[Asked]"
    fields = {f.name for f in dataclasses.fields(Request)} - {"model"}
    assert set(Asked.__annotations__) == {"set" if name == "sets" else name for name in fields}


def test_a_trial_takes_as_long_as_from_one_result_to_the_next():
    def result(key, at, run="r", error=None):
        what = {"error": error} if error else {"seconds": (1e-3,)}
        return Measurement(key, "s", (int(at * 8),), **what, cost={"build": 9.0}, at=at, run_id=run)

    rows = [result("a", 10.0), result("a", 11.0), result("b", 14.0), result("b", 14.5, error="invalid")]
    rows += [result("b", 16.0), result("a", 16.5 + PAUSE_S), result("a", 18.5 + PAUSE_S)]
    rows += [result("a", 12.0, "other"), result("a", 15.0, "other", "build"), result("c", 99.0, "first of its run")]
    assert paces(rows[::-1]) == {"a": pytest.approx((1 + 2 + 3) / 3), "b": pytest.approx((3 + 2) / 2)}


def test_a_scheduler_of_a_plugins_run_may_know_the_peak_of_its_target(monkeypatch):
    """As `tt bench` asks for; no target, no peak."""
    from tt_core.host import Host

    monkeypatch.setattr("tt_core.assembly.peak_flops", lambda target: 7e9)
    asked = []
    monkeypatch.setattr("tt_spec.assembly.assemble", lambda *_, **options: asked.append(options.get("peak")))
    host = Host()
    for target in (None, "llvm"):
        host.assemble(SimpleNamespace(plugins=Plugins()), [], None, trials=4, target=target)
    assert asked[0] is None and asked[1]() == 7e9
