"""Recording: what is measured, and that nothing is lost or measured twice."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tt_bench import files
from tt_bench import record as recording
from tt_bench.errors import BenchError
from tt_bench.recording import Pace, Recorded, Recording
from tt_bench.series import Series
from tt_bench_toy import SyntheticHost, measured, task
from tt_history import SqliteStore
from tt_spec import Bar, StoreError


def record(host, out, **options):
    return recording.record(host, "op:toy", out, **{"most": 1000, "long": (3, 60), **options})


def test_a_whole_space_is_recorded_with_failures_and_series(tmp_path):
    found = record(SyntheticHost(), tmp_path / "x")
    (part,) = found.parts
    assert part.complete and len(part.rows) == 72
    errors = [m.error for m in part.measured]
    assert errors.count("build") == 9 and errors.count("invalid") == 4
    lengths = sorted(len(m.seconds) for m in part.measured if m.seconds)
    assert lengths == [20] * 26 + [60] * 33, "the 32 fastest, and the last of three from the fastest to the slowest"
    long = np.array([m.latency_s for m in part.measured if len(m.seconds) == 60])
    valid = part.latency[np.isfinite(part.latency)]
    assert np.isin(np.sort(valid)[:25], long).all() and long.max() > np.quantile(valid, 0.9)
    assert all((s is None) == (m.error == "invalid") for s, m in zip(part.statements, part.measured, strict=True))


def test_a_large_space_is_cut_to_what_matters(tmp_path):
    found = record(SyntheticHost(tiles=12), tmp_path / "x", most=40)
    (part,) = found.parts
    assert part.complete and 10 <= len(part.rows) <= 40
    assert len(part.space.knobs[0].choices) > 1, "the tile matters most"
    assert len(part.space.knobs[3].choices) == 1, "a knob without effect is fixed"


def test_a_sample_has_as_many_rows_as_asked_for(tmp_path):
    (part,) = record(SyntheticHost(), tmp_path / "x", candidates=17).parts
    assert len(part.rows) == 17 and not part.complete and part.keep is None


@pytest.mark.parametrize("after", [1, 30, 67, 70])
def test_an_interrupted_recording_goes_on(tmp_path, after):
    host = SyntheticHost()
    partial = record(host, tmp_path / "x", halt=lambda: "interrupted" if len(host.calls) >= after else None)
    assert len(host.calls) == after
    assert sum(len(m.seconds) > 0 or m.error == "build" for m in partial.parts[0].measured) == min(after, 68)
    found = record(host, tmp_path / "x")
    straight = SyntheticHost()
    whole = record(straight, tmp_path / "y")
    assert sorted(host.calls) == sorted(straight.calls), "nothing is measured twice, nothing left out"
    assert [m.seconds for m in found.parts[0].measured] == [m.seconds for m in whole.parts[0].measured]
    assert found.parts[0].complete


@pytest.mark.parametrize("after", [5, 63])
def test_a_half_pilot_decides_nothing(tmp_path, after):
    host = SyntheticHost(tiles=12)
    with pytest.raises(KeyboardInterrupt):
        record(host, tmp_path / "x", most=40, halt=lambda: "interrupted" if len(host.calls) >= after else None)
    found = record(host, tmp_path / "x", most=40)
    straight = record(SyntheticHost(tiles=12), tmp_path / "y", most=40)
    assert found.parts[0].keep == straight.parts[0].keep and found.parts[0].complete
    long = sum(len(m.seconds) == 60 for m in found.parts[0].measured)
    assert len(host.calls) == len(set(host.calls)) + long, "only long series are second measurements"


def test_an_unfinished_recording_writes_no_t4(tmp_path):
    host = SyntheticHost()
    record(host, tmp_path / "x", halt=lambda: "interrupted" if len(host.calls) >= 9 else None)
    kept = files.load(tmp_path / "x.db").parts[0].measured
    assert not (tmp_path / "x.json.gz").exists() and sum(m.error != "invalid" for m in kept) == 9


def test_a_full_disk_keeps_what_is_finished(tmp_path, monkeypatch):
    append, done = SqliteStore.append, []

    def full(self, batch):
        if len(done) > 20:
            raise StoreError("x.db: the disk is full; free some space")
        done.extend(batch)
        append(self, batch)

    monkeypatch.setattr(SqliteStore, "append", full)
    host = SyntheticHost()
    with pytest.raises(BenchError, match="disk is full"):
        record(host, tmp_path / "x")
    monkeypatch.undo()
    kept = files.load(tmp_path / "x.db").parts[0]
    assert len(kept.measured) == len(done) and not kept.complete
    assert record(host, tmp_path / "x").parts[0].complete


def test_another_recording_or_a_changed_space_is_refused(tmp_path, monkeypatch):
    record(SyntheticHost(), tmp_path / "x")
    with pytest.raises(BenchError, match="is the recording of op:toy with --space template, not of op:other"):
        recording.record(SyntheticHost(), "op:other", tmp_path / "x")
    changed = SyntheticHost()
    monkeypatch.setattr(changed, "device", lambda target: "another machine")
    with pytest.raises(BenchError, match="another machine"):
        record(changed, tmp_path / "x")
    changed = SyntheticHost(tiles=7)
    monkeypatch.setattr(changed, "prepare", lambda *a, **k: _renamed(SyntheticHost(tiles=7)))
    with pytest.raises(BenchError, match="the space of task layer has changed"):
        record(changed, tmp_path / "x")
    store = SqliteStore(tmp_path / "runs.db")
    store.begin_run({"recipe": "tt"})
    store.close()
    with pytest.raises(BenchError, match="a history of tuning runs"):
        record(SyntheticHost(), tmp_path / "runs")


def _renamed(host):
    ready = host.prepare("op:toy")
    ready.tasks = [dataclasses.replace(t, key="key-layer-6") for t in ready.tasks]
    return ready


def test_a_series_is_contiguous_single_runs_within_the_cap():
    clock = iter(range(1, 10_000))
    asked = []

    def run(n):
        asked.append(n)
        return next(clock) * 1e-3

    timing = Series(5).evaluate(run, Bar(), np.random.default_rng(0))
    assert asked == [1] * 11 and timing.runs == 11  # 1 + 2 + ... + 6 ms to warm up
    assert timing.seconds == (0.007, 0.008, 0.009, 0.010, 0.011)
    assert Series(5, warm_s=0.0).evaluate(run, Bar(), np.random.default_rng(0)).runs == 6
    slow = Series(20).evaluate(lambda n: 3.0, Bar(cap_s=10.0), np.random.default_rng(0))
    assert slow.seconds == (3.0, 3.0) and "2 of 20" in slow.why


def test_the_pace_is_what_the_clock_shows_and_a_pause_does_not_count():
    rows, at = [], 100.0
    for i in range(200):
        at += 0.04 / 2 + 0.01 + 0.025 + (30.0 if i == 90 else 0.0)
        rows.append(measured(task(), np.array([i % 6, 0, 0, 0]), 0.0))
        cost = {"apply": 0.01, "build": 0.03, "run": 0.01}
        rows[-1] = dataclasses.replace(rows[-1], cost=cost, origin="record", at=at)
    series = [dataclasses.replace(m, origin="series", at=m.at + 1e4) for m in rows[:20]]
    seen = Pace(workers=2, realise_s=0.005, features_s=0.7).observed([*series, *rows[::-1]])
    assert (seen.realise_s, seen.features_s, seen.workers) == (0.005, 0.7, 2)
    assert seen.engine_s == pytest.approx(0.02, abs=1e-5)
    assert Pace(workers=2, realise_s=0.5).observed(rows).realise_s == pytest.approx(0.025, abs=1e-5)
    assert Pace(engine_s=0.3).observed(rows[:1]) == Pace(engine_s=0.3)
    few = Pace(workers=2).observed(rows[:4])
    assert few.engine_s == pytest.approx(0.025, abs=1e-5)


def test_rows_that_do_not_repeat_are_a_doubt():
    """Ten rows, timed twice: nine of ten within 10 %, or one row in five three times slower the second time."""
    every = (measured(task(), row, 0.0) for row in task().space.enumerate())
    first = [dataclasses.replace(m, origin="record") for m in every if m.seconds][:12]

    def again(factors):
        return [
            dataclasses.replace(m, seconds=tuple(f * s for s in m.seconds), origin="series")
            for m, f in zip(first, factors, strict=True)
        ]

    quiet = Pace().observed([*first, *again([1.1, 1 / 1.1] * 6)])
    assert quiet.repeat == pytest.approx(0.1, abs=1e-3) and not quiet.busy
    loud = Pace().observed([*first, *again([1, 1, 1, 1, 3] * 2 + [1, 3])])
    assert loud.repeat == pytest.approx(2.0) and loud.busy
    assert Pace().observed([*first, *again([3] * 12)[:9]]).repeat is None
    (doubt,) = Recording("op:toy", "toy", (Recorded.of(task(), None, first, pace=loud),)).doubts()
    assert "200%" in doubt and "record it again" in doubt
    assert Recording("op:toy", "toy", (Recorded.of(task(), None, first, pace=quiet),)).doubts() == []
