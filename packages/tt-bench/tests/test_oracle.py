"""Pieces that know every result."""

from __future__ import annotations

import numpy as np
import pytest
from tt_bench.oracle import OracleScheduler, OracleSearcher
from tt_bench.runs import tune
from tt_bench.stats import quality
from tt_bench.thinking import Thoughts
from tt_bench_toy import recorded, task
from tt_spec import TaskState, VirtualClock
from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.testing import SchedulerContract, SearcherContract, mixed_task, wide_task
from tt_spec.types import Measurement


class TestSearcher(SearcherContract):
    @pytest.fixture
    def piece(self):
        known = []
        for t in (wide_task(), mixed_task()):
            rows = np.unique(t.space.sample(40, np.random.default_rng(1)), axis=0)
            found = [
                Measurement(t.key, t.space.key, tuple(map(int, r)), seconds=(1e-3 + 1e-6 * i,))
                for i, r in enumerate(rows)
            ]
            part = recorded(task())
            known.append(type(part).of(t, None, found, {}, part.pace))
        return OracleSearcher(known)


class TestScheduler(SchedulerContract):
    @pytest.fixture
    def piece(self):
        return OracleScheduler()


def test_regret_is_zero_from_the_first_trial(host, part):
    run = tune(host, [part], "oracle", [], 3, 40, thoughts=Thoughts())
    assert quality(run, part.best_s).tolist() == [1.0] * 40


def test_rows_come_by_recorded_latency(host, part):
    searcher = OracleSearcher([part])
    ranked = searcher.ranked(part.task)
    latency = [part.latency[part.index[r.tobytes()]] for r in ranked]
    assert latency == sorted(part.latency[np.isfinite(part.latency)])


def slot_of(scheduler, states):
    slot = scheduler.next(states, VirtualClock())
    assert slot is not None
    return slot


def test_the_slot_goes_where_most_can_be_saved():
    parts = [recorded(task("a")), recorded(task("b", weight=5.0))]
    scheduler = OracleScheduler(parts, trials=4)
    states = [TaskState(p.task) for p in parts]
    assert slot_of(scheduler, states).task in (0, 1)
    for s, p, factor in zip(states, parts, (3.0, 2.0), strict=True):
        s.trials, s.best_s = 4, factor * p.best_s
    slot = slot_of(scheduler, states)
    assert slot.task == 1 and slot.gain_s == pytest.approx(5 * parts[1].best_s)
    states[1].best_s = parts[1].best_s
    assert slot_of(scheduler, states).task == 0


def test_a_whole_model_is_tuned_with_weights(host, recording):
    run = tune(host, recording.parts, "oracle", [], 0, 40, thoughts=Thoughts())
    best = sum(p.task.weight * p.best_s for p in recording.parts)
    assert run.true_s[-1] == pytest.approx(best) and set(run.task) == {0, 1}
    assert run.true_s[0] is None, "no model before each task has a program"


def test_what_a_store_holds_is_not_measured_again_and_counts_as_held(host, part):
    store = MemoryStore()
    tune(host, [part], "oracle", [], 0, 8, thoughts=Thoughts(), store=store)
    later = tune(host, [part], "random", [], 0, 16, thoughts=Thoughts(), store=store)
    assert quality(later, part.best_s).tolist() == [1.0] * 16
    first = [m.config for m in store.query() if m.origin != "again"]
    assert len(set(first)) == len(first) == 24
