"""Starting, replacing and listening to workers, and rows that are built ahead, without a backend."""

import os
import pickle
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from tt_measure import WorkerError, family, process
from tt_measure.ahead import DEPTH, Ahead
from tt_measure.team import STARTS, WAIT_S, Team
from tt_spec.testing.examples import tiny_task, wide_task

sys.path.insert(0, str(Path(__file__).parent))
from tt_measure_scripted import Scripted


@pytest.fixture
def made(monkeypatch):
    scripted = Scripted(monkeypatch)
    yield scripted
    scripted.close()


@pytest.fixture
def two(made):
    """Two workers that have started."""
    found = Team(2, 1, 1e9, {"limit_s": 60.0, "backend": "b:B"})
    found.revive()
    made.adopt(found.processes)
    assert found.busy() and not found.idle()
    for p in found.processes:
        made.ends[p].send_bytes(pickle.dumps((p.job.number, "done", (0.0, None))))
    while found.busy():
        found.pump()
    assert found.idle() == found.processes
    yield found
    for p in found.processes:
        p.close(0.0)


def test_a_task_is_named_by_all_that_a_worker_needs_of_it():
    task = tiny_task()
    others = [
        replace(task, payload=b"other"),
        replace(task, target="other"),
        replace(task, key="other"),
        replace(task, spaces=(*task.spaces, *wide_task().spaces)),
    ]
    assert len({Team.name(t) for t in [task, *others]}) == 5
    assert Team.name(task) == Team.name(replace(task, name="another", weight=7.0))


def test_a_worker_is_sent_a_task_once(made, two):
    p, q = two.processes
    made.hears(p)
    handle = two.handle(p, tiny_task())
    assert two.handle(p, tiny_task()) == two.handle(q, tiny_task()) == handle
    ((number, kind, (name, blob)),) = made.hears(p)
    assert (number, kind, name, pickle.loads(blob)) == (0, "task", handle, tiny_task())


def test_a_call_may_use_the_memory_of_all(two):
    p, q = two.processes
    assert two.submit(p, "build", "h", None, 1.0).memory_bytes == 1e9
    assert two.submit(q, "call", "h", "race", (), True, 1.0).memory_bytes == 2e9
    assert [w.what for w in two.trace()][-1] == "race"
    assert not two.idle() and two.busy()


def test_a_trace_hears_what_was_said_while_nobody_listened(made, two):
    p, _ = two.processes
    job = two.submit(p, "build", "h", None, 1.0)
    made.ends[p].send_bytes(pickle.dumps((job.number, "done", (job.began, {}))))
    two.trace()
    assert job.ending is not None and two.idle() == two.processes


def test_whoever_is_lost_has_its_place_taken(made, two):
    p, q = two.processes
    p.close(0.0)
    assert two.idle() == [q]
    two.revive()
    fresh = two.processes[1]
    assert two.processes[0] is q and (fresh.place, q.place) == (0, 1)
    made.adopt([fresh])


def test_only_a_worker_that_has_grown_and_holds_nothing_is_replaced(made, two, monkeypatch):
    p, q = two.processes
    monkeypatch.setattr(process.Process, "memory", lambda self: 600_000_000)
    p.tokens.add(1)
    job = made.job(q)
    two.revive()
    assert two.processes == [p, q], "one holds a program, the other is at work"
    p.tokens.clear()
    made.says(q, "done", (0.0, None))
    assert job.ending is not None
    monkeypatch.setattr(process.Process, "memory", lambda self: 500_000_000 if self is q else 600_000_000)
    two._base = {p: 0, q: 0}
    two.revive()
    assert p.lost and not q.lost, "half of what it may use is allowed"
    made.adopt(two.processes)


def test_a_start_that_fails_by_itself_is_not_tried_again(made):
    few = Team(1, 1, 1e9, {"limit_s": 60.0, "backend": "b:B"})
    few.revive()
    made.adopt(few.processes)
    (p,) = few.processes
    made.ends[p].send_bytes(pickle.dumps((p.job.number, "raised", (0.0, "no such module"))))
    with pytest.raises(WorkerError, match=r"backend 'b:B' does not start in a worker: no such module"):
        while True:
            few.pump()
    assert p.lost


def test_a_start_that_fails_from_outside_is_tried_again_and_not_for_ever(made):
    made.script = "exec sleep 60"
    few = Team(1, 1, 1e9, {"limit_s": 60.0, "backend": "b:B"})
    started = []

    def start():
        few.revive()
        (p,) = few.processes
        started.append(p)
        made.adopt([p])
        p.popen.kill()
        made.hang_up(p)
        while p.job is not None:
            few.pump()

    for _ in range(STARTS - 1):
        start()
    few.revive()
    (p,) = few.processes
    made.adopt([p])
    made.ends[p].send_bytes(pickle.dumps((p.job.number, "done", (0.0, None))))
    while p.job is not None:
        few.pump()
    assert few._failed == 0, "one that starts begins the count again"
    p.close(0.0)
    with pytest.raises(WorkerError, match="SIGKILL"):
        for _ in range(STARTS):
            start()
    assert len(started) == 2 * STARTS - 1


def test_who_keeps_the_lock_is_said_now_and_then(two, monkeypatch, recwarn):
    now = [1000.0]
    monkeypatch.setattr("tt_measure.team.time.monotonic", lambda: now[0])
    p, _ = two.processes
    p.waits, p.waiting_s = "somebody has it", WAIT_S - 1
    two._tell(p)
    assert not recwarn
    p.waiting_s = WAIT_S
    two._tell(p)
    two._tell(p)
    assert [str(w.message) for w in recwarn] == ["somebody has it"]
    now[0] += WAIT_S + 1
    two._tell(p)
    assert len(recwarn) == 2
    p.waits, now[0] = "", now[0] + 2 * WAIT_S
    two._tell(p)
    assert len(recwarn) == 2, "it waits no more"


def test_the_end_of_a_team_is_the_end_of_its_workers(two):
    every = list(two.processes)
    two.end()
    assert not two.processes and all(p.lost and p.popen.poll() is not None for p in every)


# -- rows that are built ahead ---------------------------------------------------------------------------------------


ROWS = np.arange(24, dtype=np.int64).reshape(6, 4)


def built(made, two, task, ahead):
    """The rows that workers have been given since, one list each."""
    return [[row[1].tolist() for _, kind, row in made.hears(p) if kind == "build"] for p in two.processes]


def test_idle_workers_build_expected_rows_while_there_is_room(made, two):
    task, ahead = wide_task(), Ahead(two, 9.0, 3)
    ahead.expect(task, ROWS[:2])
    ahead.work(0)
    assert built(made, two, task, ahead) == [[], []]
    ahead.work(1)
    assert built(made, two, task, ahead) == [[ROWS[0].tolist()], []]
    ahead.work()
    assert built(made, two, task, ahead) == [[], [ROWS[1].tolist()]]
    ahead.expect(task, ROWS[:1])  # it is built already
    assert not ahead._waiting


def test_a_worker_builds_rows_of_a_task_that_it_knows_first(made, two):
    known, other, last = (replace(wide_task(), key=key) for key in ("known", "other", "last"))
    ahead = Ahead(two, 9.0, 8)
    two.handle(two.processes[0], known)
    ahead.expect(other, ROWS[:1])
    ahead.expect(known, ROWS[1:2])
    ahead.expect(last, ROWS[2:3])
    ahead.work()
    assert built(made, two, known, ahead) == [[ROWS[1].tolist()], [ROWS[0].tolist()]]


def test_of_two_tasks_only_rows_of_the_first_are_built_of_three_all(made, two):
    first, second, third = (replace(wide_task(), key=key) for key in ("first", "second", "third"))
    ahead = Ahead(two, 9.0, 8)
    ahead.expect(first, ROWS[:1])
    ahead.expect(second, ROWS[1:2])
    ahead.work()
    assert built(made, two, first, ahead) == [[ROWS[0].tolist()], []] and not ahead.several
    ahead.expect(third, ROWS[2:3])
    assert ahead.several
    ahead.work()
    assert built(made, two, first, ahead) == [[], [ROWS[1].tolist()]]


def test_each_worker_has_two_rows_in_hand_of_the_task_expected_first(made, two):
    task, other = wide_task(), replace(wide_task(), key="other")
    ahead = Ahead(two, 9.0, 8)
    ahead.supply()
    ahead.expect(task, ROWS[:5])
    ahead.expect(other, ROWS)
    ahead.supply()
    ahead.supply()
    assert [len(rows) for rows in built(made, two, task, ahead)] == [DEPTH, DEPTH]
    assert {key[0] for key in ahead._built} == {task.key}
    few = Ahead(two, 9.0, 1)
    few.expect(task, ROWS)
    few.supply()
    assert not few._built, "nobody has a hand free"


def test_what_was_begun_is_handed_over_once(made, two):
    task, ahead = wide_task(), Ahead(two, 9.0, 8)
    ahead.expect(task, ROWS[:3])
    ahead.work()
    p, q = two.processes
    assert ahead.take(task, ROWS[2]) is None and len(ahead._waiting) == 0
    made.says(p, "done", (0.0, {"build": 1.0}))
    first = ahead.take(task, ROWS[0])
    assert first.process is p and first.job.number in p.tokens
    assert ahead.take(task, ROWS[0]) is None
    made.says(q, "raised", (0.0, "it fails here"))
    assert ahead.take(task, ROWS[1]) is None, "built again when its turn comes"


def test_the_oldest_expected_rows_are_dropped_and_newest_programs_freed(made, two):
    task, ahead = wide_task(), Ahead(two, 9.0, 1)
    ahead.expect(task, ROWS)
    assert len(ahead._waiting) == 4
    assert [row[2].tolist() for row in ahead._waiting.values()] == ROWS[2:].tolist()
    ahead.work()
    (p,) = [p for p in two.processes if p.job is not None]
    made.says(p, "done", (0.0, {}))
    made.hears(p)
    assert ahead._collect() is None and p.tokens
    ahead.expect(task, ROWS[:2])
    assert not p.tokens and not ahead._built, "what nobody asked for is freed"
    assert [kind for _, kind, _ in made.hears(p)] == ["drop"]


def test_rows_of_a_lost_worker_are_forgotten(made, two):
    task, ahead = wide_task(), Ahead(two, 9.0, 8)
    ahead.expect(task, ROWS[:1])
    ahead.work()
    (p,) = [p for p in two.processes if p.job is not None]
    p.popen.kill()
    made.hang_up(p)
    p.receive()
    assert ahead.take(task, ROWS[0]) is None and not ahead._built


# -- what a worker started -------------------------------------------------------------------------------------------


def test_processes_are_found_by_their_mark_and_by_name(monkeypatch):
    mark = family.fresh_mark()
    assert mark != family.fresh_mark()
    child = psutil.Popen(["sleep", "60"], env={**os.environ, family.MARK: mark})
    other = psutil.Popen(["sleep", "60"])
    family.end([family.fresh_mark()])
    assert child.poll() is None
    family.end([mark])
    assert child.wait(10) == -signal.SIGKILL and other.poll() is None
    family.end([mark], [other])
    assert other.wait(10) == -signal.SIGKILL
    assert family.descendants(child.pid) == []


def test_whoever_starts_others_without_end_is_left_after_some_rounds(monkeypatch):
    child = psutil.Popen(["sleep", "60"])
    monkeypatch.setattr(family, "_mark", lambda p: "mine" if p.pid == child.pid else None)
    monkeypatch.setattr(psutil.Process, "kill", lambda self: None)
    began = time.monotonic()
    family.end(["mine"])
    assert time.monotonic() - began < 60 and child.poll() is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
