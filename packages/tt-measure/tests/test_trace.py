"""What workers did when, as the pool tells it."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tt_measure import WorkerPool
from tt_measure.lock import TimingLock
from tt_measure.process import Ending, Job, Process
from tt_measure.team import _apart, _Traced
from tt_spec import Bar
from tt_spec.pieces.once_evaluator import OnceEvaluator

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import tt_measure_wild as wild  # noqa: E402


@pytest.fixture
def pool(tmp_path):
    options = {"workers": 2, "threads": 1, "evaluator": OnceEvaluator(), "lock": tmp_path / "lock", "path": [HERE]}
    with WorkerPool("tt_measure_wild:Backend", **options) as pool:
        yield pool


def _jobs(found):
    """How many jobs of each kind there are; what lies on both sides of a wait for the lock is one."""
    count, before = Counter(), {}
    for w in sorted(found, key=lambda w: -w.ago_s):
        began, what = -w.ago_s, w.what
        last, ended = before.get(w.who, (None, began))
        follows = abs(began - ended) < 1e-6
        if what == "lock":
            what = last if follows else None
        elif not (follows and what == last):
            count[what] += 1
        before[w.who] = what, began + w.seconds
    return count


def test_jobs_in_pieces_are_counted_once():
    """A start that waits for the lock, and a build before and after a wait that is the second one's."""
    pieces = [("start", 9, 1), ("lock", 8, 1), ("start", 7, 1), ("build", 5, 1), ("lock", 3.5, 1), ("build", 2.5, 1)]
    found = [SimpleNamespace(who=0, what=what, ago_s=ago_s, seconds=seconds) for what, ago_s, seconds in pieces]
    assert _jobs(found) == {"start": 1, "build": 2}


def test_builds_and_timings_are_told_with_their_workers(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    assert pool.trace() == [], "nothing was begun"
    began = time.monotonic()
    assert len(list(pool.measure(task, np.array([wild.row("ok", 1, i) for i in range(4)]), Bar()))) == 4
    found, passed = pool.trace(), time.monotonic() - began
    jobs = _jobs(found)
    assert (jobs["start"], jobs["build"], jobs["time"]) == (2, 4, 4)
    assert {w.who for w in found} == {0, 1} and all(w.ago_s <= passed for w in found)
    timings = sorted((-w.ago_s, -w.ago_s + w.seconds) for w in found if w.what == "time")
    assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(timings)), "one after the other"


def test_work_ends_when_the_worker_is_done_not_when_somebody_listens(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    list(pool.measure(task, np.array([wild.row("ok", 1, i) for i in range(2)]), Bar()))
    pool.trace()
    pool.expect(task, np.array([wild.row("ok", 1, 9)]))
    time.sleep(1.0)  # the caller thinks, and hears nothing
    list(pool.measure(task, np.array([wild.row("ok", 1, 9)]), Bar()))
    (build,) = [w for w in pool.trace() if w.what == "build"]
    assert build.seconds < 0.9 and build.ago_s > 1.0


def test_what_is_in_hand_is_told_in_pieces():
    job, other = Job(1, "build"), Job(2, "build")
    process = cast(Process, SimpleNamespace(job=job, place=0, waits="", waiting_s=0.0))
    traced, began = _Traced(process, "build", job), job.began
    assert _Traced(process, "build", other).told(began + 2.0) == (began + 2.0, began + 2.0), "it is not begun"
    assert traced.told(began + 2.0) == (began, began + 2.0)
    assert traced.told(began + 3.0) == (began + 2.0, began + 3.0)
    process.waits, process.waiting_s = "another tt times", 2.0
    job.waits = [(began, 0.5)]
    assert traced.waits(began + 3.0) == [(began, 0.5), (began + 1.0, 2.0)], "a wait that lasts"
    job.ending, job.ended, job.over = Ending("done"), began + 5.0, began + 4.0
    assert traced.told(began + 6.0) == (began + 3.0, began + 4.0), "done before anybody listened"


def test_waiting_for_the_lock_is_told_apart(pool, tmp_path):
    task = wild.task(tmp_path / "log")
    list(pool.measure(task, np.array([wild.row("ok", 1, 1)]), Bar()))
    pool.trace()
    with TimingLock(tmp_path / "lock").exclusive():
        pool.expect(task, np.array([wild.row("ok", 1, 2)]))
        time.sleep(0.5)  # another process times
    list(pool.measure(task, np.array([wild.row("ok", 1, 2)]), Bar()))
    found = pool.trace()
    assert sum(w.seconds for w in found if w.what == "lock") >= 0.3
    assert sum(w.seconds for w in found if w.what == "build") < 0.5


def test_waits_are_taken_out_of_a_job():
    assert list(_apart("time", 1.0, 9.0, [(5.0, 1.0), (0.0, 2.0)])) == [
        ("lock", 1.0, 2.0),
        ("time", 2.0, 5.0),
        ("lock", 5.0, 6.0),
        ("time", 6.0, 9.0),
    ]
    assert list(_apart("build", 1.0, 1.0, [])) == []
