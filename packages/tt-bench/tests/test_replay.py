"""Replay: recorded results, the machine's time, and evaluators that meet recorded noise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tt_bench.errors import BenchError
from tt_bench.recording import Pace
from tt_bench.replay import Block, Replay, Unrecorded
from tt_bench_toy import recorded, task
from tt_measure import Fixed
from tt_spec import Bar, Timing, VirtualClock
from tt_spec.testing import MeasurerContract


class Shortest:
    """One run counts."""

    def evaluate(self, run, bar, rng):
        return Timing((run(1),), 1)


class Whole:
    """As many runs as a series has, one by one."""

    def __init__(self, n=20):
        self.n = n

    def evaluate(self, run, bar, rng):
        return Timing(tuple(run(1) for _ in range(self.n)), self.n)


def replay(part, evaluator=None, seed=0, unrecorded: Unrecorded = "refuse"):
    return Replay([part], evaluator or Whole(), VirtualClock(), seed, unrecorded)


class TestContract(MeasurerContract):
    @pytest.fixture
    def piece(self, part):
        return replay(part, Fixed())

    @pytest.fixture
    def task(self, part):
        return part.task


@given(
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30),
    st.integers(0, 29),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_runs_are_one_contiguous_block_around_the_end(series, start, asks):
    block = Block(np.array(series), start % len(series))
    at = start % len(series)
    for n in asks:
        want = [series[(at + i) % len(series)] for i in range(n)]
        assert block.run(n) == pytest.approx(np.mean(want), rel=1e-9)
        at += n
    assert block.spent == pytest.approx(sum(series[(start + i) % len(series)] for i in range(sum(asks))), rel=1e-6)


def test_an_evaluator_gets_the_recorded_series(part):
    for m in replay(part).measure(part.task, part.rows, Bar()):
        known = part.measured[part.index[np.array(m.config).tobytes()]]
        assert m.error == known.error
        if m.error is None:
            doubled = np.array(known.seconds * 2)
            places = [i for i in range(20) if np.allclose(doubled[i : i + 20], m.seconds, rtol=1e-9)]
            assert places, "a rotation of the series, in its order"


def test_series_begin_anywhere_and_the_seed_says_where(part):
    def first(seed):
        return [m.seconds for m in replay(part, Shortest(), seed).measure(part.task, part.rows, Bar())]

    assert first(0) == first(0) and first(0) != first(1)
    row = part.rows[20:21]
    starts = {next(replay(part, Shortest(), s).measure(part.task, row, Bar())).seconds for s in range(200)}
    assert len(starts) > 15, "of 20 beginnings nearly all occur"


def test_time_passes_as_on_the_machine(part):
    """Two workers build up to four each, then candidates are timed one by one."""
    m = replay(part)
    rows = part.rows[[20, 21, 22, 23, 3, 24]]  # the fifth cannot be built
    builds = [part.measured[part.index[r.tobytes()]].cost for r in rows]
    builds = [b["apply"] + b["build"] for b in builds]
    free = [0.0, 0.0]
    ends = []
    for b in builds:
        i = free.index(min(free))
        free[i] += b
        ends.append(free[i])
    seen = []
    for got in m.measure(part.task, rows, Bar()):
        seen.append((got.error, m.clock.now(), sum(got.seconds)))
    assert seen[0][0] == "build" and seen[0][1] == pytest.approx(ends[4])
    at = max(e for e, r in zip(ends, rows, strict=True) if tuple(r[:2]) != (0, 1))
    for error, now, runs in seen[1:]:
        at += part.pace.engine_s + runs
        assert error is None and now == pytest.approx(at)
    assert m.clock.now() == pytest.approx(sum(m.spent.values()))


def test_more_rows_than_the_workers_hold_are_built_in_turns(part):
    m = replay(part, Shortest())
    rows = part.rows[30:60]
    times = []
    for _ in m.measure(part.task, rows, Bar()):
        times.append(m.clock.now())
    gaps = np.diff(times)
    assert (gaps > 0.02).sum() == 3, "four chunks of eight: three pauses for building"


def test_reading_back_and_extracting_cost_time(part):
    m = replay(part)
    m.realise(part.task, part.rows[:10])
    assert m.clock.now() == pytest.approx(10 * part.pace.realise_s)
    found, ok = m.features(part.task, part.rows[:10])
    assert m.clock.now() == pytest.approx(10 * (part.pace.realise_s + part.pace.features_s))
    want = [i for i in range(10) if part.statements[i] is not None]
    assert ok.tolist() == [i in want for i in range(10)]
    assert found.values[::2, 0].tolist() == [part.statements[i][0, 0] for i in want]


@pytest.mark.parametrize("unrecorded", ["refuse", "nearest"])
def test_rows_that_are_missing(unrecorded):
    t = task()
    every = np.stack(list(t.space.enumerate()))
    part = recorded(t, rows=every[::3])
    m = replay(part, unrecorded=unrecorded)
    real = m.realise(t, every)
    known = {tuple(r) for r in part.rows.tolist()}
    assert m.asked == 72 and m.lacking == 48
    for asked, got, why in zip(every.tolist(), real.codes.tolist(), real.why, strict=True):
        if tuple(asked) in known:
            assert got == asked and why is None
        elif unrecorded == "refuse":
            assert got == asked and why == "not recorded"
        else:
            distance = ((t.space.encode(part.rows) - t.space.encode(np.array([asked]))) ** 2).sum(axis=1)
            near = part.rows[distance <= distance.min() + 1e-12].tolist()
            assert why is None and got in near


def test_a_row_that_was_refused_when_recorded_is_refused(part):
    found = list(part.measured)
    found[40] = dataclasses.replace(found[40], seconds=(), error="invalid", why="too wide")
    part = dataclasses.replace(part, measured=tuple(found))
    assert replay(part).realise(part.task, part.rows[40:42]).why == ("too wide", None)


def test_a_task_with_another_space_is_refused(part):
    other = task(tiles=7)
    with pytest.raises(BenchError, match="is not in the recording"):
        list(replay(part).measure(other, other.space.sample(1, np.random.default_rng(0)), Bar()))


def test_failures_cost_what_they_cost(part):
    m = dataclasses.replace(
        part.measured[30], seconds=(), error="run-timeout", why="10 s", cost={"build": 0.1, "run": 9.0}
    )
    part = dataclasses.replace(
        part, measured=(*part.measured[:30], m, *part.measured[31:]), pace=Pace(workers=1, engine_s=0.5)
    )
    served = replay(part)
    (got,) = served.measure(part.task, part.rows[30:31], Bar())
    assert (got.error, got.why) == ("run-timeout", "10 s") and served.clock.now() == pytest.approx(9.6)
