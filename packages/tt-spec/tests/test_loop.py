"""The only loop."""

import math

import numpy as np
import pytest
from tt_spec import Measurement, Pipeline, Realised, RunInfo, RunState, Slot, VirtualClock, rows_left, run
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.testing import mixed_task, tiny_task, wide_task


class Listener:
    def __init__(self):
        self.events, self.batches, self.reason = [], [], None

    def tt_run_started(self, run):
        self.events.append("started")

    def tt_batch_measured(self, run, state, batch, results):
        self.events.append(f"batch {state.task.name}")
        self.batches.append((batch, results, state.trials))

    def tt_task_finished(self, run, state):
        self.events.append(f"finished {state.task.name}")

    def tt_run_stopped(self, run, states, reason):
        self.events.append("stopped")
        self.reason = reason


class Slow(SyntheticMeasurer):
    """A second per row, by a virtual clock."""

    def __init__(self, clock, **options):
        super().__init__(**options)
        self.clock = clock

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            self.clock.advance(1.0)
            yield m


class Turns:
    """One slot after the other from a list."""

    def __init__(self, *slots):
        self.slots = list(slots)

    def next(self, states, clock):
        return self.slots.pop(0) if self.slots else None


def tune(
    tasks=None,
    measurer=None,
    scheduler=None,
    stoppers=None,
    store=None,
    clock=None,
    searcher=RandomSearcher,
    programs=None,
    listeners=None,
    **options,
):
    clock = clock or VirtualClock()
    tasks = tasks or [wide_task()]
    pipes = [Pipeline(t, NullSurrogate(), searcher(), TopSampler(), programs=programs, clock=clock) for t in tasks]
    store = store or MemoryStore()
    listener = Listener()
    out = run(
        pipes,
        measurer or SyntheticMeasurer(noise=0),
        store,
        scheduler or SequentialScheduler(),
        [TrialsStopper(50)] if stoppers is None else stoppers,
        clock,
        info=RunInfo("r1", tuple(tasks)),
        listeners=[*(listeners or []), listener],
        **{"batch": 16, **options},
    )
    return out, store, listener, pipes


@pytest.mark.parametrize("trials", [1, 16, 17, 50])
def test_the_budget_of_trials_is_exact(trials):
    out, store, _, _ = tune(stoppers=[TrialsStopper(trials)])
    assert out.trials == len(list(store.query())) == trials and out.failure is None
    assert out.reason == f"{trials} trials are spent"


def test_measurements_are_stamped_and_stored():
    out, store, listener, pipes = tune(stamp={"device": "d", "versions": {"tvm": "0"}})
    found = list(store.query())
    assert {(m.run_id, m.device, m.versions["tvm"]) for m in found} == {("r1", "d", "0")}
    assert {m.origin for m in found} == {"random", "search"}
    assert all(m.knobs == pipes[0].space.decode(m.config) for m in found)
    state = out.states[0]
    assert [t for t, _, _ in state.curve] == [16, 32, 48, 50] and state.batches == 4
    assert state.curve[-1][2] == state.best_s == min(m.latency_s for m in found) == pipes[0].best_s
    assert [n for _, _, n in listener.batches] == [16, 32, 48, 50]
    assert listener.batches[0][0].info["slot"]["gain_s"] == 0.0


def test_events_come_in_order():
    out, _, listener, _ = tune([tiny_task(), wide_task()], stoppers=[], scheduler=SequentialScheduler(20))
    assert listener.events == ["started", "batch tiny", "finished tiny", "batch wide", "batch wide", "stopped"]
    assert out.reason == listener.reason == "every task is finished"


def test_an_exhausted_space_finishes_its_task():
    out, store, _, _ = tune([tiny_task()], stoppers=[])
    assert out.states[0].finished == "its space is exhausted" and out.trials == 6 == len(list(store.query()))


def test_a_halt_keeps_what_was_measured():
    store = MemoryStore()
    out, _, listener, pipes = tune(
        store=store, halt=lambda: "Ctrl-C" if len(list(store.query())) >= 21 else None, stoppers=[]
    )
    assert out.reason == "Ctrl-C" and out.failure is None and out.trials == 21
    assert len(pipes[0].rows) == 21 and out.states[0].curve[-1][0] == 21
    batch, results, _ = listener.batches[-1]
    assert len(batch.codes) == 16 and len(results) == 5
    assert listener.events[-1] == "stopped"


class BadMeasurer(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        for i, m in enumerate(super().measure(task, codes, bar)):
            if i == 5:
                raise RuntimeError("the machine is on fire")
            yield m


class Stranger(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        yield from super().measure(task, codes[:5], bar)
        yield Measurement(task.key, task.space.key, (7, 7, 7, 7), error="run")


class Silent(SyntheticMeasurer):
    def measure(self, task, codes, bar):
        return iter(())


class BadStore(MemoryStore):
    def append(self, batch):
        if len(self._all) == 5:
            raise OSError("disk full")
        super().append(batch)


class BadSearcher:
    def propose(self, ctx, n):
        raise ZeroDivisionError("oops")


class BadListener(Listener):
    def tt_batch_measured(self, run, state, batch, results):
        raise KeyError("listener")

    def tt_run_stopped(self, run, states, reason):
        raise KeyError("again")


@pytest.mark.parametrize(
    ("options", "error", "kept"),
    [
        ({"measurer": BadMeasurer()}, RuntimeError, 5),
        ({"measurer": Stranger()}, ValueError, 5),
        ({"measurer": Silent()}, ValueError, 0),
        ({"store": BadStore()}, OSError, 5),
        ({"searcher": BadSearcher}, ZeroDivisionError, 16),
        ({"listeners": [BadListener()]}, KeyError, 16),
        ({"scheduler": Turns(Slot(0, trials=5), Slot(3))}, ValueError, 5),
        ({"scheduler": Turns(Slot(0, trials=5), Slot(0, trials=0))}, ValueError, 5),
        ({"scheduler": Turns(Slot(0, trials=5), Slot(0, seconds=0.0))}, ValueError, 5),
    ],
    ids=["measurer", "stranger", "silent", "store", "searcher", "listener", "no task", "no trials", "no time"],
)
def test_a_failure_ends_the_run_and_keeps_what_was_stored(options, error, kept):
    out, store, listener, pipes = tune(**options)
    assert isinstance(out.failure, error)
    assert out.reason.startswith(f"failed: {error.__name__}")
    assert out.trials == len(list(store.query())) == len(pipes[0].rows) == kept
    assert out.states[0].best_s == pipes[0].best_s
    assert listener.events[0] == "started" and listener.events[-1] == "stopped"


def test_a_listener_that_fails_at_the_end_keeps_the_outcome():
    class Last(Listener):
        def tt_run_stopped(self, run, states, reason):
            raise KeyError("late")

    out, _, listener, _ = tune(listeners=[Last()])
    assert isinstance(out.failure, KeyError) and out.trials == 50 and listener.events[-1] == "stopped"


def test_a_scheduler_may_not_choose_a_finished_task():
    out, *_ = tune([tiny_task()], stoppers=[], scheduler=Turns(Slot(0, trials=99), Slot(0, trials=99)))
    assert "not finished" in str(out.failure)


def test_slots_in_seconds():
    clock = VirtualClock(1e9)
    slots = Turns(Slot(0, seconds=20.0), Slot(1, seconds=5.0), Slot(0))
    out, *_ = tune([wide_task(), mixed_task()], Slow(clock), slots, [], clock=clock, batch=8)
    assert [s.trials for s in out.states] == [24 + 8, 8], "a batch that began within the slot is finished"
    assert [t - 1e9 for _, t, _ in out.states[0].curve] == [8, 16, 24, 40]
    assert out.states[1].curve == [(8, 1e9 + 32, out.states[1].best_s)]


def test_a_task_stopper_is_asked_after_every_batch():
    class Twenty:
        scope = "task"

        def stop(self, state, clock):
            return "twenty" if state.trials >= 20 else None

    out, *_ = tune([wide_task(), mixed_task()], stoppers=[Twenty()], scheduler=SequentialScheduler(1000))
    assert [(s.trials, s.finished) for s in out.states] == [(32, "twenty")] * 2


def test_a_run_stopper_is_asked_after_every_measurement():
    clock = VirtualClock()

    class Ten:
        scope = "run"

        def stop(self, state, clock):
            return "ten seconds" if clock.now() - state.started >= 10 else None

    out, *_ = tune(measurer=Slow(clock), stoppers=[Ten()], clock=clock)
    assert out.trials == 10 and out.reason == "ten seconds"


def test_refused_rows_are_stored_and_cost_no_trial():
    class Refuses(SyntheticMeasurer):
        def realise(self, task, codes):
            return Realised(codes, tuple("odd" if r[0] % 2 else None for r in codes))

    out, store, listener, pipes = tune(programs=Refuses(), stoppers=[TrialsStopper(20)])
    found = list(store.query())
    refused = [m for m in found if m.error == "invalid"]
    assert out.trials == 20 == len(found) - len(refused) and refused
    assert out.states[0].errors == {"invalid": len(refused)} == {"invalid": pipes[0].errors()["invalid"]}
    assert {m.why for m in refused} == {"odd"} and {m.run_id for m in refused} == {"r1"}
    assert sum(len(r) for _, r, _ in listener.batches) == len(found)


def test_failed_candidates_are_counted_and_are_no_failure():
    out, *_ = tune(measurer=SyntheticMeasurer(noise=0, fail=1.0))
    assert out.failure is None and out.states[0].errors == {"build": 50} and math.isinf(out.states[0].best_s)
    assert out.states[0].last_gain_trial == 0


class Minute(TrialsStopper):
    """A minute and `trials` rows."""

    def left_s(self, state, clock):
        return state.started + 60.0 - clock.now()


def test_rows_left_follow_trials_and_the_pace_of_the_run():
    clock = VirtualClock(1e9)
    whole = RunState([], clock.now())
    assert rows_left([], whole, clock) == math.inf
    assert rows_left([TrialsStopper(50)], whole, clock) == 50
    assert rows_left([Minute(1000)], whole, clock) == 60  # one a second until there is a pace
    clock.advance(20.0)
    whole.trials = 10
    assert rows_left([Minute(1000)], whole, clock) == pytest.approx(20)  # 40 s at 2 s a row
    assert rows_left([TrialsStopper(15), Minute(1000)], whole, clock) == 5
    clock.advance(50.0)
    assert rows_left([Minute(1000)], whole, clock) == 1


def test_a_scheduler_is_told_the_budget_before_each_slot():
    class Told(Turns):
        def __init__(self, *slots):
            super().__init__(*slots)
            self.rows = []

        def budget(self, rows):
            self.rows.append(rows)

    scheduler = Told(Slot(0, trials=5), Slot(0, trials=20), Slot(0, trials=5))
    tune(scheduler=scheduler, stoppers=[TrialsStopper(28)])
    assert scheduler.rows == [28, 23, 3]


def test_what_a_store_knows_is_not_measured_again():
    _, store, _, _ = tune(stoppers=[TrialsStopper(30)])
    p = Pipeline(wide_task(), NullSurrogate(), RandomSearcher(), TopSampler(), clock=VirtualClock())
    p.restore(store.query())
    out = run(
        [p],
        SyntheticMeasurer(noise=0),
        store,
        SequentialScheduler(),
        [TrialsStopper(30)],
        VirtualClock(),
        info=RunInfo("r2", (p.task,)),
    )
    found = list(store.query())
    assert len({m.config for m in found}) == len(found) == 60
    assert (out.trials, out.states[0].restored, out.states[0].trials) == (30, 30, 30)


def test_the_stream_is_closed_when_a_batch_is_left():
    closed = []

    class Watched(SyntheticMeasurer):
        def measure(self, task, codes, bar):
            try:
                yield from super().measure(task, codes, bar)
            finally:
                closed.append(len(codes))

    store = MemoryStore()
    tune(measurer=Watched(), store=store, halt=lambda: "enough" if len(list(store.query())) >= 3 else None)
    assert closed == [16]


def test_same_seed_same_run():
    (a, _, _, pa), (b, _, _, pb) = tune([wide_task(), mixed_task()]), tune([wide_task(), mixed_task()])
    assert [s.curve for s in a.states] == [s.curve for s in b.states]
    assert all(np.array_equal(x.rows, y.rows) for x, y in zip(pa, pb, strict=True))
