"""The only loop."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from tt_spec import Listener as Base
from tt_spec import (
    Loop,
    PieceFailure,
    Pipeline,
    Prediction,
    Proposal,
    Realised,
    RunInfo,
    RunState,
    Selection,
    Slot,
    Trial,
    VirtualClock,
    draw,
    rows_left,
)
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.pieces.null_surrogate import NullSurrogate
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.pieces.sequential_scheduler import SequentialScheduler
from tt_spec.pieces.synthetic import SyntheticMeasurer
from tt_spec.pieces.top_sampler import TopSampler
from tt_spec.pieces.trials_stopper import TrialsStopper
from tt_spec.testing import mixed_task, tiny_task, wide_task


class Listener(Base):
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
    """A second per row, or `row_s`, by a virtual clock."""

    def __init__(self, clock, row_s=1.0, **options):
        super().__init__(**options)
        self.clock, self.row_s = clock, row_s

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            self.clock.advance(self.row_s)
            yield m


class Remembers:
    """A searcher whose rows depend on how often it was asked, and on what it knows."""

    def __init__(self):
        self.calls_ = 0

    def propose(self, ctx, n):
        self.calls_ += 1
        rng = np.random.default_rng([self.calls_, len(ctx.rows), *np.argsort(ctx.y)[-3:]])
        codes = draw(ctx.space, ctx.seen, n, rng)
        return Proposal(codes, np.zeros(len(codes)))


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
    sampler=TopSampler,
    surrogate=NullSurrogate,
    programs=None,
    listeners=None,
    **options,
):
    clock = clock or VirtualClock()
    tasks = tasks or [wide_task()]
    pipes = [Pipeline(t, surrogate(), searcher(), sampler(), programs=programs, clock=clock) for t in tasks]
    store = store or MemoryStore()
    listener = Listener()
    out = Loop(
        pipes,
        measurer or SyntheticMeasurer(noise=0),
        store,
        scheduler or SequentialScheduler(),
        [TrialsStopper(50)] if stoppers is None else stoppers,
        clock,
        info=RunInfo("r1", tuple(tasks)),
        listeners=[*(listeners or []), listener],
        **{"batch": 16, **options},
    ).run()
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
        yield Trial((7, 7, 7, 7), error="run")


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


class LateSearcher(RandomSearcher):
    """Fails only when told, after its batch was measured."""

    def tell(self, ctx, rows, y):
        raise ZeroDivisionError("late")


class BadListener(Listener):
    def tt_run_started(self, run):
        raise KeyError("listener")

    tt_batch_measured = tt_task_finished = tt_run_stopped = tt_run_started  # pyright: ignore[reportAssignmentType]


class BadModel(NullSurrogate):
    """Each method can fail or answer with rubbish."""

    def __init__(self, **answers):
        self.answers = answers

    def fit(self, groups, rng):
        if "fit" in self.answers:
            raise self.answers["fit"]
        super().fit(groups, rng)

    def predict(self, task, X):
        return self.answers.get("predict", super().predict)(task, X)

    def score(self, prediction, best):
        return self.answers.get("score", super().score)(prediction, best)


class Proposes(RandomSearcher):
    """A proposal with a field of its own making; every row is scored by the model."""

    def __init__(self, **rubbish):
        self.rubbish = rubbish

    def propose(self, ctx, n):
        proposal = super().propose(ctx, n)
        ctx.score(proposal.codes)
        return replace(proposal, **{k: v(proposal) for k, v in self.rubbish.items()})


class Speaks:
    """A piece of any role that answers or raises as it was told."""

    def __init__(self, **answers):
        self.answers, self.scope = answers, answers.pop("scope", "run")

    def __getattr__(self, name):
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)
        answer = self.answers[name]

        def method(*args):
            if isinstance(answer, Exception):
                raise answer
            return answer(*args) if callable(answer) else answer

        return method


def realises(**changes):
    class Realises(SyntheticMeasurer):
        def realise(self, task, codes):
            return replace(super().realise(task, codes), **{k: v(codes) for k, v in changes.items()})

    return Realises(noise=0)


NAN = {"mean": lambda n: np.full(n, np.nan), "std": np.zeros}
FAILURES = {
    "measurer": ({"measurer": BadMeasurer()}, "measurer", RuntimeError, 5),
    "measurer yields a stranger": ({"measurer": Stranger()}, "measurer", ValueError, 5),
    "measurer yields nothing": ({"measurer": Silent()}, "measurer", None, 0),
    "measurer yields a number": ({"measurer": Speaks(measure=[1.0], realise=0)}, "measurer", ValueError, 0),
    "measurer is no iterator": ({"measurer": Speaks(measure=1.0)}, "measurer", TypeError, 0),
    "realise": ({"programs": Speaks(realise=OSError("no"))}, "measurer", OSError, 0),
    "realise drops rows": ({"programs": realises(codes=lambda c: c[1:])}, "measurer", ValueError, 0),
    "realise leaves the space": ({"programs": realises(codes=lambda c: c + 99)}, "measurer", ValueError, 0),
    "store": ({"store": BadStore()}, "store", OSError, 5),
    "scheduler": ({"scheduler": Speaks(next=ZeroDivisionError("oops"))}, "scheduler", ZeroDivisionError, 0),
    "scheduler gives a number": ({"scheduler": Turns(Slot(0, trials=5), 0)}, "scheduler", ValueError, 5),
    "no task": ({"scheduler": Turns(Slot(0, trials=5), Slot(3))}, "scheduler", ValueError, 5),
    "no trials": ({"scheduler": Turns(Slot(0, trials=5), Slot(0, trials=0))}, "scheduler", ValueError, 5),
    "no time": ({"scheduler": Turns(Slot(0, trials=5), Slot(0, seconds=0.0))}, "scheduler", ValueError, 5),
    "run's stopper": (
        {"stoppers": [Speaks(stop=lambda s, c: 1 / (s.trials < 9) and None)]},
        "stopper",
        ZeroDivisionError,
        9,
    ),
    "task's stopper": ({"stoppers": [Speaks(stop=KeyError("x"), scope="task")]}, "stopper", KeyError, 16),
    "stopper says yes": ({"stoppers": [Speaks(stop=lambda s, c: s.trials >= 9 or None)]}, "stopper", ValueError, 9),
    "stopper without room": ({"stoppers": [Speaks(stop=None, room=float("nan"))]}, "stopper", ValueError, 0),
    "searcher": ({"searcher": BadSearcher}, "searcher", ZeroDivisionError, 16),
    "searcher is told": ({"searcher": LateSearcher}, "searcher", ZeroDivisionError, 16),
    "searcher gives rows": ({"searcher": lambda: Speaks(propose=np.zeros((3, 4)))}, "searcher", ValueError, 16),
    "rows of a wrong shape": ({"searcher": lambda: Proposes(codes=lambda p: p.codes[:, 1:])}, "searcher", None, 16),
    "one row": ({"searcher": lambda: Proposes(codes=lambda p: p.codes[0])}, "searcher", ValueError, 16),
    "rows of floats": ({"searcher": lambda: Proposes(codes=lambda p: p.codes + 0.5)}, "searcher", ValueError, 16),
    "NaN scores": ({"searcher": lambda: Proposes(scores=lambda p: p.scores + np.nan)}, "searcher", ValueError, 16),
    "too few scores": ({"searcher": lambda: Proposes(scores=lambda p: p.scores[1:])}, "searcher", ValueError, 16),
    "NaN share": ({"searcher": lambda: Proposes(random_share=lambda p: np.nan)}, "searcher", ValueError, 16),
    "info is no dict": ({"searcher": lambda: Proposes(info=lambda p: 3)}, "searcher", TypeError, 16),
    "sampler": ({"sampler": lambda: Speaks(select=LookupError("oops"))}, "sampler", LookupError, 16),
    "sampler gives indices": ({"sampler": lambda: Speaks(select=np.arange(4))}, "sampler", ValueError, 16),
    "sampler's rows": (
        {"sampler": lambda: Speaks(select=Selection(np.arange(4)))},
        "sampler",
        ValueError,
        16,
    ),
    "fit": ({"surrogate": lambda: BadModel(fit=MemoryError("big"))}, "surrogate", MemoryError, 16),
    "predict": ({"surrogate": lambda: BadModel(predict=lambda t, X: 1 / 0)}, "surrogate", ZeroDivisionError, 16),
    "prediction of a wrong length": (
        {"surrogate": lambda: BadModel(predict=lambda t, X: Prediction(np.ones(1), np.ones(1)))},
        "surrogate",
        ValueError,
        16,
    ),
    "NaN prediction": (
        {"surrogate": lambda: BadModel(predict=lambda t, X: Prediction(*(f(len(X)) for f in NAN.values())))},
        "surrogate",
        ValueError,
        16,
    ),
    "prediction is an array": (
        {"surrogate": lambda: BadModel(predict=lambda t, X: np.ones(len(X)))},
        "surrogate",
        ValueError,
        16,
    ),
    "NaN acquisition": (
        {"surrogate": lambda: BadModel(score=lambda p, best: p.mean * np.nan)},
        "surrogate",
        ValueError,
        16,
    ),
}
"""Failures: the options of `tune`, the piece at fault, what was raised, and how many rows are kept."""


@pytest.mark.parametrize(("options", "role", "error", "kept"), FAILURES.values(), ids=FAILURES)
def test_a_failing_piece_ends_the_run_is_named_and_loses_nothing(options, role, error, kept):
    options = {"searcher": Proposes, **options}
    out, store, listener, pipes = tune(**options)
    assert isinstance(out.failure, PieceFailure)
    assert error is None or isinstance(out.failure.__cause__, error)
    assert re.match(rf"{role} \S*\.\w+ failed: \S", str(out.failure)) and out.reason == f"broken off: {out.failure}"
    assert out.trials == len(list(store.query())) == len(pipes[0].rows) == kept
    assert out.states[0].best_s == pipes[0].best_s
    assert listener.events[0] == "started" and listener.events[-1] == "stopped"
    assert sum(len(results) for _, results, _ in listener.batches) == kept, "listeners heard of every measurement"


def test_a_model_is_blamed_for_its_own_failure_and_a_searcher_for_asking_what_is_no_row():
    class Asks(RandomSearcher):
        def propose(self, ctx, n):
            ctx.score(np.full((3, 4), 99))
            return super().propose(ctx, n)

    out, *_ = tune(searcher=Asks)
    assert str(out.failure).startswith("searcher ") and isinstance(out.failure.__cause__, IndexError)


@pytest.mark.parametrize(
    ("searcher", "warned"),
    [(lambda: Proposes(codes=lambda p: p.codes + 99), True), (lambda: Proposes(codes=lambda p: p.codes * 0), False)],
    ids=["outside", "duplicates"],
)
def test_rows_that_cannot_be_measured_are_replaced_by_random_ones(searcher, warned, recwarn):
    out, store, *_ = tune(searcher=searcher)
    found = list(store.query())
    assert out.failure is None and len({m.config for m in found}) == len(found) == 50
    assert sum(m.origin == "search" for m in found) == (0 if warned else 1)
    assert any("Proposes gives rows that are not in the space" in str(w.message) for w in recwarn) == warned


@pytest.mark.filterwarnings("ignore:.*gives rows that are not in the space")
def test_rows_outside_the_space_do_not_crowd_out_the_others():
    class Half(RandomSearcher):
        def propose(self, ctx, n):
            good = super().propose(ctx, n).codes
            return Proposal(np.concatenate([good + 99, good]), np.repeat([1.0, 0.0], n))

    _, store, *_ = tune(searcher=Half)
    assert [m.origin for m in store.query()] == ["random"] * 16 + ["search"] * 34


def test_a_sampler_that_leaves_the_space_is_the_one_that_is_named():
    with pytest.warns(UserWarning, match=r"sampler \S+Speaks gives rows that are not in the space"):
        out, *_ = tune(sampler=lambda: Speaks(select=Selection(np.full((2, 4), -1))))
    assert out.failure is None and out.trials == 50


def test_a_listener_that_fails_is_named_once_and_harms_nobody():
    with pytest.warns(UserWarning) as warned:
        out, store, listener, _ = tune(listeners=[BadListener(), BadListener()])
    assert out.failure is None and out.trials == len(list(store.query())) == 50
    assert listener.events == ["started", *["batch wide"] * 4, "stopped"]
    texts = [str(w.message) for w in warned]
    assert len(texts) == 2 and all("BadListener failed in tt_run_started" in t for t in texts), "one of each listener"


def test_a_scheduler_may_not_choose_a_finished_task():
    out, *_ = tune([tiny_task()], stoppers=[], scheduler=Turns(Slot(0, trials=99), Slot(0, trials=99)))
    assert "not finished" in str(out.failure)


def test_slots_in_seconds():
    clock = VirtualClock(1e9)
    slots = Turns(Slot(0, seconds=20.0), Slot(1, seconds=5.0), Slot(0))
    out, *_ = tune([wide_task(), mixed_task()], Slow(clock), slots, [], clock=clock, batch=8)
    assert [s.trials for s in out.states] == [20 + 8, 5], "the last batch is what fits into the slot"
    assert [t - 1e9 for _, t, _ in out.states[0].curve] == [8, 16, 20, 33]
    assert out.states[1].curve == [(5, 1e9 + 25, out.states[1].best_s)]


def test_slots_in_seconds_follow_the_pace_and_have_a_row_at_least():
    clock = VirtualClock(1e9)
    slots = Turns(Slot(0, seconds=20.0), Slot(0, seconds=2.0))
    out, *_ = tune(measurer=Slow(clock, row_s=3.0), scheduler=slots, clock=clock, batch=4)
    # 4 rows at a guess of a second each take 12 s, 2 more fit into the 8 s that are left
    assert [n for n, _, _ in out.states[0].curve] == [4, 6, 7] and out.states[0].row_s == 3.0


def test_a_task_goes_on_after_a_pause_as_if_there_had_been_none():
    def rows(scheduler):
        tasks = [wide_task(), replace(wide_task(), key="another")]
        out, store, *_ = tune(tasks, scheduler=scheduler, searcher=Remembers, stoppers=[])
        assert [s.trials for s in out.states] == [48, 48]
        return [[m.config for m in store.query(task_key=t.key)] for t in tasks]

    one_after_the_other = Turns(*[Slot(0, trials=16)] * 3, *[Slot(1, trials=16)] * 3)
    in_turns = Turns(*[Slot(0, trials=16), Slot(1, trials=16)] * 3)
    assert rows(one_after_the_other) == rows(in_turns)


def test_slots_say_what_they_promised_and_what_they_brought():
    out, _, listener, _ = tune(
        [replace(wide_task(), weight=3.0)], scheduler=Turns(*[Slot(0, trials=32, gain_s=0.5, info={"why": "x"})] * 2)
    )
    about = [b.info["slot"] for b, _, _ in listener.batches]
    assert [a["number"] for a in about] == [1, 1, 2, 2] and all(a["gain_s"] == 0.5 and a["why"] == "x" for a in about)
    assert "realised_s" not in about[0], "what brings the first program has no gain"
    curve = [best for _, _, best in out.states[0].curve]
    assert [a["realised_s"] for a in about[1:]] == pytest.approx([3 * (a - b) for a, b in pairwise(curve)])


def test_incumbents_are_every_result_that_beat_all_before():
    out, store, _, pipes = tune(measurer=SyntheticMeasurer(noise=0, fail=0.3))
    best, expected = math.inf, []
    for trial, m in enumerate(store.query(), 1):
        if m.latency_s < best:
            best = m.latency_s
            expected.append((trial, best))
    assert out.states[0].incumbents == expected == pipes[0].incumbents() and len(expected) > 2
    again = Pipeline(wide_task(), NullSurrogate(), RandomSearcher(), TopSampler())
    again.restore(list(store.query())[:4])
    known, info = again.incumbents(), RunInfo("r2", (wide_task(),))
    measurer, stop = SyntheticMeasurer(noise=0), [TrialsStopper(100)]
    out = Loop([again], measurer, MemoryStore(), SequentialScheduler(), stop, VirtualClock(), info=info).run()
    found = out.states[0].incumbents
    assert found == again.incumbents() and found[: len(known)] == known == [e for e in expected if e[0] <= 4]
    assert len(found) > len(known) > 0 and found[len(known)][0] > 4


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
    out = Loop(
        [p],
        SyntheticMeasurer(noise=0),
        store,
        SequentialScheduler(),
        [TrialsStopper(30)],
        VirtualClock(),
        info=RunInfo("r2", (p.task,)),
    ).run()
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


class Lucky(SyntheticMeasurer):
    """The first timing of every row is a tenth too good for the best; the second is true."""

    def __init__(self):
        super().__init__(noise=0)
        self.again = []

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            yield replace(m, seconds=(0.9 * m.latency_s if m.latency_s < bar.incumbent_s else m.latency_s,))

    def retime(self, task, codes):
        self.again.append(codes)
        yield from super().measure(task, codes, None)


def test_leaders_are_timed_again_and_the_later_timing_counts():
    measurer, store = Lucky(), MemoryStore()
    out, _, listener, _ = tune(measurer=measurer, store=store)
    again = [m for m in store.query() if m.origin == "again"]
    assert again and len(again) == sum(map(len, measurer.again))
    state = out.states[0]
    truth = SyntheticMeasurer(noise=0)
    latest = {m.config: m.latency_s for m in store.query()}
    assert state.best_s == min(latest.values()) and state.trials == out.trials == 50
    for m in again:
        assert m.latency_s == pytest.approx(float(truth.seconds(wide_task(), np.array([m.config]))[0]))
    logged = [a for batch, _, _ in listener.batches for a in batch.info.get("again", [])]
    assert [a["config"] for a in logged] == [m.config for m in again]
    looked = [bool(batch.info.get("again")) for batch, _, _ in listener.batches]
    assert any(looked[:-1]) and not looked[-1], "while the run goes on, and not after it"
    assert [s for _, s in state.incumbents] == sorted((s for _, s in state.incumbents), reverse=True)


class Slowed(SyntheticMeasurer):
    """After the second batch everything takes three times as long, which it estimates as 2.8."""

    def __init__(self):
        super().__init__(noise=0)
        self.asked = 0

    def rescaled(self, task):
        self.asked += 1
        return 2.8 if self.asked == 3 else 1.0

    def measure(self, task, codes, bar):
        for m in super().measure(task, codes, bar):
            yield replace(m, seconds=((3 if self.asked >= 3 else 1) * m.latency_s,))

    def retime(self, task, codes):
        return self.measure(task, codes, None)


def test_what_was_told_before_a_change_of_the_measurers_scale_is_multiplied_and_leaders_timed_again():
    out, store, listener, (pipe,) = tune(measurer=Slowed())
    factors = [batch.info.get("rescaled") for batch, _, _ in listener.batches]
    assert factors == [None, None, 2.8] + [None] * (len(factors) - 3), "and the log says so"
    truth = 3 * SyntheticMeasurer(noise=0).seconds(wide_task(), pipe.rows)
    latest = {m.config: m.latency_s for m in store.query()}
    kept = np.array([latest[tuple(row)] for row in pipe.rows.tolist()])
    early = kept < 0.9 * truth
    assert 0 < early.sum() < len(truth), "the store keeps what was measured"
    expected = np.where(early, 2.8 * kept, kept)
    np.testing.assert_allclose(pipe._told.seconds, expected)
    first = {m.config: m.latency_s for m in reversed(list(store.query()))}
    again = np.array([first[tuple(row)] for row in pipe.rows.tolist()]) < 0.9 * truth
    assert expected[again & ~early].min() <= 1.2 * expected[early].min(), "near the front they were timed again"
    assert out.states[0].best_s == pytest.approx(expected.min())


class Moody(SyntheticMeasurer):
    """In every second batch everything takes twice as long, and no probe shows it."""

    def __init__(self):
        super().__init__(noise=0)
        self.batches = 0

    def measure(self, task, codes, bar):
        self.batches += 1
        yield from self.retime(task, codes)

    def retime(self, task, codes):
        for m in super().measure(task, codes, None):
            yield replace(m, seconds=((2 - self.batches % 2) * m.latency_s,))


def test_rows_of_batches_that_met_two_machines_are_known_as_of_one():
    _, _, listener, (pipe,) = tune(measurer=Moody())
    factors = [batch.info.get("levelled") for batch, _, _ in listener.batches]
    assert factors == [None, 0.5, None, None], "the first machine is what counts; after the last nobody looks again"
    done = sum(len(batch.codes) for batch, _, _ in listener.batches[:-1])
    truth = SyntheticMeasurer(noise=0).seconds(wide_task(), pipe.rows)
    np.testing.assert_allclose(pipe._told.seconds[:done], truth[:done])


class Foresight(Turns):
    """Three tasks, a slot of two trials each, known beforehand; then as `Turns`."""

    def next(self, states, clock):
        return Slot(0, trials=2) if not any(s.trials for s in states) else super().next(states, clock)

    def ahead(self, states, clock, slot, rows):
        return [Slot(i, trials=2) for i in (1, 2) if slot.task == 0][: rows // 2]


class Expecting(SyntheticMeasurer):
    """Keeps what it is told, in order."""

    def __init__(self):
        super().__init__(noise=0)
        self.told = []

    def expect(self, task, codes):
        self.told.append(("expect", task.name, tuple(map(tuple, codes.tolist()))))

    def measure(self, task, codes, bar):
        self.told.append(("measure", task.name, tuple(map(tuple, codes.tolist()))))
        return super().measure(task, codes, bar)


def three():
    return [replace(wide_task(), key=name, name=name) for name in "abc"]


def test_slots_that_are_known_are_asked_and_expected_before_the_first_is_measured():
    measurer = Expecting()
    out, store, listener, _ = tune(three(), measurer, Foresight(Slot(1, trials=2)), batch=16)
    assert [(what, name) for what, name, _ in measurer.told] == [
        *[("expect", name) for name in "abc"],
        *[("measure", name) for name in "abcb"],
    ]
    rows = {(what, name): codes for what, name, codes in measurer.told[:6]}
    assert all(rows["expect", name] == rows["measure", name] and len(rows["expect", name]) == 2 for name in "abc")
    assert [b.info["slot"]["number"] for b, _, _ in listener.batches] == [1, 2, 3, 4]
    assert [b.info["slot"].get("ahead", False) for b, _, _ in listener.batches] == [False, True, True, False]
    assert out.trials == 8 and out.reason == "every task is finished"
    _, other, _, _ = tune(three(), None, Foresight(Slot(1, trials=2)), batch=16)
    first = [(m.task_key, m.config) for m in store.query()][:2]
    assert first == [(m.task_key, m.config) for m in other.query()][:2], "who expects nothing is asked the same first"


def test_slots_ahead_keep_to_the_batch_and_to_the_budget():
    for options in ({"batch": 4}, {"stoppers": [TrialsStopper(5)]}):
        measurer = Expecting()
        out, _, _, _ = tune(three(), measurer, Foresight(), **options)
        assert [name for what, name, _ in measurer.told if what == "expect"] == ["a", "b"]
        assert out.trials == 4


def test_a_run_that_ends_leaves_what_was_asked_ahead():
    measurer, store = Expecting(), MemoryStore()
    out, _, _, _ = tune(
        three(), measurer, Foresight(), store=store, halt=lambda: "enough" if len(list(store.query())) >= 3 else None
    )
    assert out.trials == 3 and out.reason == "enough"


def _one_more(rows):
    return [Slot(1, trials=rows), Slot(2, trials=1)]


@pytest.mark.parametrize(
    "bad", [[Slot(0, trials=1)], [Slot(1)], [Slot(1, trials=9), Slot(2, trials=9)], [Slot(7)], _one_more]
)
def test_slots_ahead_that_cannot_be_are_the_schedulers_fault(bad):
    class Bad(Foresight):
        def ahead(self, states, clock, slot, rows):
            return _one_more(rows) if bad is _one_more else bad

    out, _, _, _ = tune(three(), Expecting(), Bad())
    assert isinstance(out.failure, PieceFailure) and "scheduler" in str(out.failure)


class Beside(Turns):
    """Slots from a list, each chosen while the one before is in hand where that is another task's."""

    def __init__(self, *slots):
        super().__init__(*slots)
        self.seen = []

    def beside(self, states, clock, slot):
        self.seen.append([(s.trials, s.finished) for s in states])
        return self.slots.pop(0) if self.slots and self.slots[0].task != slot.task else None


class Thinks(Remembers):
    """Thinking takes `think_s` by the clock."""

    clock, think_s = VirtualClock(), 0.0

    def propose(self, ctx, n):
        self.clock.advance(self.think_s)
        return super().propose(ctx, n)


class Builds(Expecting):
    """Builds a row a second beside what the clock passes otherwise, and times it in no time."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.ready, self.free = clock, {}, 0.0

    def expect(self, task, codes):
        super().expect(task, codes)
        for row in map(tuple, codes.tolist()):
            if (task.name, row) not in self.ready:
                self.ready[task.name, row] = self.free = max(self.free, self.clock.now()) + 1.0

    def measure(self, task, codes, bar):
        self.expect(task, codes)
        self.told.append(("measure", task.name, tuple(map(tuple, codes.tolist()))))
        for m in SyntheticMeasurer.measure(self, task, codes, bar):
            self.clock.advance(max(0.0, self.ready[task.name, m.config] - self.clock.now()))
            yield m


class Opens(Turns):
    """A slot of one trial for each task that has none yet, all known beforehand."""

    def next(self, states, clock):
        return next((Slot(i, trials=1) for i, s in enumerate(states) if not s.trials), None)

    def ahead(self, states, clock, slot, rows):
        return [Slot(i, trials=1) for i, s in enumerate(states) if not s.trials and i != slot.task][:rows]


class Waves(Builds):
    """Times nothing before all that it was told of is built; `waves`: how many were built at once."""

    def __init__(self, clock):
        super().__init__(clock)
        self.waves = []

    def measure(self, task, codes, bar):
        if (left_s := self.free - self.clock.now()) > 0:
            self.waves.append(left_s)
            self.clock.advance(left_s)
        return super().measure(task, codes, bar)


def test_what_is_built_before_the_time_is_up_is_timed_in_it():
    clock = VirtualClock()
    tasks = [replace(wide_task(), key=f"k{i}", name=f"k{i}") for i in range(100)]
    measurer = Waves(clock)
    over = clock.now() + 60.0
    minute = {"stoppers": [Minute(1000)], "halt": lambda: "its minute is over" if clock.now() > over else None}
    out, _, _, _ = tune(tasks, measurer, Opens(), clock=clock, batch=16, **minute)
    assert measurer.waves == [16, 16, 16, 12], "a row takes a second, and the last 12 s hold no sixteen"
    assert out.trials == 60 + 1, "a fourth wave of sixteen would be built after 64 s, and one row of it timed"


FOUR = [Slot(i, trials=4) for i in (0, 1, 0, 2, 2, 1)]


class Elsewhere(Builds):
    """Measures elsewhere: what was begun counts from then on."""

    def begin(self, task, codes, bar):
        self.told.append(("begin", task.name, bar.incumbent_s))
        Builds.expect(self, task, codes)

    def expect(self, task, codes):
        pass

    def measure(self, task, codes, bar):
        Builds.expect(self, task, codes)
        self.told.append(("measure", task.name, bar.incumbent_s))
        return super().measure(task, codes, bar)


def test_rows_that_are_thought_of_ahead_are_begun_with_the_bar_of_their_turn():
    made = []
    here = thinking(think_s=4.0)
    there = thinking(think_s=4.0, measurer=lambda clock: made.append(Elsewhere(clock)) or made[0])
    assert there[-1] == here[-1] and there[0].trials == here[0].trials
    bars = {}
    for what, name, bar in made[0].told:
        if what == "begin":
            bars[name] = bar
        elif what == "measure" and name in bars:
            assert bar == bars.pop(name)
    assert not bars and sum(what == "begin" for what, _, _ in made[0].told) > 4


def thinking(think_s, slots=FOUR, measurer=Builds, **options):
    clock, scheduler = VirtualClock(), Beside(*slots)
    searcher = type("Thinks", (Thinks,), {"clock": clock, "think_s": think_s})
    found = tune(three(), measurer(clock), scheduler, searcher=searcher, clock=clock, batch=4, **options)
    return *found, scheduler, clock.now()


def test_the_next_slot_is_thought_of_while_the_rows_in_hand_are_built():
    (_, _, listener, _, scheduler, took_s) = thinking(think_s=4.0)
    # 6 slots of 4 rows. The first rows are random; the third, fourth and sixth batch are thought of for 4 s each while
    # others are built; the fifth waits for the fourth, which is the same task's
    assert took_s == 4 * 6 + 4, "only the thinking for a task whose rows are in hand takes time of its own"
    about = [b.info["slot"] for b, _, _ in listener.batches]
    assert [a.get("beside", False) for a in about] == [False, True, True, True, False, True]
    assert [a["number"] for a in about] == [1, 2, 3, 4, 5, 6] and all(a["decided_s"] == 0.0 for a in about)
    assert scheduler.seen[0] == [(4, "in hand"), (0, None), (0, None)], "what is in hand counts as tried"
    assert scheduler.seen[1] == [(4, None), (4, "in hand"), (0, None)]


def test_the_same_rows_come_whatever_thinking_and_building_take():
    def rows(**options):
        _, store, *_ = thinking(**options)
        return [(m.task_key, m.config) for m in store.query()]

    assert rows(think_s=0.0) == rows(think_s=100.0) == rows(think_s=3.0, measurer=lambda clock: Expecting())
    assert len(rows(think_s=0.0)) == 24
    assert rows(think_s=0.0) == rows(think_s=0.0, measurer=Slow), "tasks that share nothing lose nothing by it"


@pytest.mark.parametrize("trials", [1, 4, 5, 9, 23])
def test_thinking_ahead_keeps_to_the_trials(trials):
    out, store, _, pipes, _, _ = thinking(1.0, stoppers=[TrialsStopper(trials)])
    assert out.trials == len(list(store.query())) == trials and out.reason == f"{trials} trials are spent"
    assert sum(len(p.rows) for p in pipes) == trials


def test_a_failure_of_thinking_ahead_waits_until_the_rows_in_hand_are_measured():
    class Fails(Beside):
        def beside(self, states, clock, slot):
            raise ZeroDivisionError("oops")

    class FailsToThink(RandomSearcher):
        def propose(self, ctx, n):
            raise LookupError("oops")

    for scheduler, searcher, cause, kept in (
        (Fails(*FOUR), RandomSearcher, ZeroDivisionError, 4),
        (Beside(*FOUR), FailsToThink, LookupError, 8),
    ):
        out, store, listener, _ = tune(three(), Expecting(), scheduler, searcher=searcher, batch=4, stoppers=[])
        assert isinstance(out.failure, PieceFailure) and isinstance(out.failure.__cause__, cause)
        assert out.trials == len(list(store.query())) == kept and listener.events[-1] == "stopped"


@pytest.mark.parametrize("bad", [Slot(0, trials=1), Slot(1), Slot(7, trials=1), 3])
def test_slots_beside_that_cannot_be_are_the_schedulers_fault(bad):
    class Bad(Turns):
        def beside(self, states, clock, slot):
            return bad

    out, *_ = tune(three(), Expecting(), Bad(Slot(0, trials=2), Slot(1, trials=2)))
    assert isinstance(out.failure, PieceFailure) and "scheduler" in str(out.failure) and out.trials == 2


def test_a_run_that_ends_leaves_the_slot_that_was_thought_of():
    store = MemoryStore()

    def halt():
        return "Ctrl-C" if len(list(store.query())) >= 6 else None

    out, _, listener, pipes = tune(three(), Expecting(), Beside(*FOUR), store=store, halt=halt)
    assert out.trials == 6 == sum(len(p.rows) for p in pipes) and out.reason == "Ctrl-C" and out.failure is None
    assert [len(results) for _, results, _ in listener.batches] == [4, 2]


def test_a_slot_of_several_batches_is_followed_only_from_its_last():
    measurer = Expecting()
    tune(three(), measurer, Beside(Slot(0, trials=8), Slot(1, trials=4)), batch=4)
    assert [(what, name) for what, name, _ in measurer.told] == [
        ("measure", "a"),
        ("expect", "a"),
        ("expect", "b"),
        ("measure", "a"),
        ("expect", "b"),
        ("measure", "b"),
    ]
