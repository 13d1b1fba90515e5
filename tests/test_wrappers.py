"""A piece that wraps another forwards every capability of its role."""

from __future__ import annotations

import inspect
from typing import cast

import numpy as np
import pytest
from tt_bench.recording import Pace, Recorded
from tt_bench.runs import Live
from tt_bench.tapes import _Charged
from tt_bench.thinking import Stopwatch, WatchedModel, WatchedPrograms
from tt_spec import Bar, Slot, VirtualClock
from tt_spec.light import LightScheduler
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.roles import CAPABILITIES, ProgramSource, Scheduler, Surrogate, capabilities

WRAPPERS = {
    "LightScheduler": ("scheduler", Scheduler, LightScheduler),
    "tapes": ("scheduler", Scheduler, lambda inner: _Charged(inner, VirtualClock(), lambda: 0.0)),
    "WatchedModel": ("surrogate", Surrogate, lambda inner: WatchedModel(inner, Stopwatch())),
}


class Everything:
    """Has every method that a piece may have, and says which was called."""

    inputs, shared, scope = "knobs", False, "run"

    def __init__(self):
        self.called = []

    def __getattr__(self, name):
        if name.startswith("_") or name == "tt_origin":
            raise AttributeError(name)
        return lambda *args, **options: self.called.append(name) or ()


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_forwards_role_and_capabilities(name):
    role, protocol, wrap = WRAPPERS[name]
    for asked in (protocol, *CAPABILITIES.get(role, ())):
        methods = [m for m in vars(asked) if inspect.isfunction(vars(asked)[m]) and not m.startswith("_")]
        for method in methods:
            inner = Everything()
            wrapper = wrap(inner)
            given = [[] if p == "states" else 1.0 for p in inspect.signature(getattr(wrapper, method)).parameters]
            getattr(wrapper, method)(*given)
            assert method in inner.called, f"{name} does not forward {method} of {asked.__name__}"


def test_a_capability_that_the_inner_piece_lacks_is_not_asked_of_it():
    class Plain:
        def next(self, states, clock):
            return None

    wrapped = LightScheduler(Plain())
    wrapped.budget(3.0)
    wrapped.peak(1e9)
    assert wrapped.next([], VirtualClock()) is None
    assert wrapped.beside([], VirtualClock(), Slot(0, trials=1)) is None
    assert wrapped.ahead([], VirtualClock(), Slot(0, trials=1), 9) == []


def test_a_recorded_tasks_measurer_forwards_what_its_pool_can():
    inner, task = Everything(), synthetic_task()
    whole = Recorded.of(task, None, [], {}, Pace(1, 1, 0.0, 0.0, 0.0))
    live, row = Live(inner, [whole]), np.zeros(4, dtype=np.int64)
    live.prestart()
    live.expect(task, row[None])
    live.begin(task, row[None], Bar())
    live.trace()
    list(live.retime(task, row[None]))
    live.prepare([(task, row[None])])
    live.rescaled(task)
    live.race(task, row[None])
    live.check(task, row)
    live.doubts(task, row)
    live.race_models(["a.so"], {})
    live.profile_models(["a.so"], {})
    live.run_model("a.so", {})
    live.nudge_model("a.so", {}, 1e-6, (1,))
    live.start_model("a.so", {}, 1e-6, (1,))
    live.close()
    called = ["prestart", "expect", "begin", "trace", "retime", "prepare", "rescaled", "race", "check", "doubts"]
    called += ["race_models", "profile_models", "run_model", "nudge_model", "start_model", "close"]
    assert inner.called == called
    assert {c.__name__ for c in capabilities("measurer", live)} == {c.__name__ for c in CAPABILITIES["measurer"]}


def test_programs_are_forwarded():
    inner = Everything()
    watched = WatchedPrograms(cast(ProgramSource, inner), Stopwatch())
    watched.realise(synthetic_task(), np.zeros((1, 1)))
    watched.features(synthetic_task(), np.zeros((1, 1)))
    assert inner.called == ["realise", "features"]
