"""The processor that a worker's main thread works on."""

import os
import threading

import pytest
from tt_core.compiler import seat as module
from tt_core.compiler.seat import Seat


@pytest.fixture
def moves(monkeypatch):
    """Where the main thread was moved to; no thread is really moved. Other threads are bound as `bound` says."""
    made, bound = [], {}
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, to: made.append(set(to)), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: bound.get(pid, {0, 1, 2, 3}), raising=False)
    return made, bound


def tasks(tmp_path, *numbers):
    for n in numbers:
        (tmp_path / str(n)).mkdir(exist_ok=True)
    return tmp_path


def test_each_worker_builds_on_a_processor_of_its_own(moves, tmp_path):
    for worker, wanted in ((0, {2}), (1, {5}), (2, {2})):
        Seat({5, 2}, worker, tasks(tmp_path)).build()
        assert moves[0].pop() == wanted


def test_programs_run_where_the_pool_is_not_bound(moves, tmp_path):
    made, bound = moves
    bound |= {71: {1}, 72: {2}, 73: {3}, 74: {0, 1}}
    seat = Seat({0, 1, 2, 3}, 1, tasks(tmp_path, 71, 72, 73, 74, os.getpid()))
    seat.build()
    seat.run()
    seat.run()
    seat.build()
    assert made == [{1}, {0}, {1}]


def test_a_pool_that_comes_later_is_seen(moves, tmp_path):
    made, bound = moves
    seat = Seat({0, 1}, 1, tasks(tmp_path, 71))
    seat.build()
    seat.run()  # its threads are started by the first program
    bound[71] = {1}
    seat.build()
    seat.run()
    assert made == [{1}, {0, 1}, {1}, {0}]


def test_threads_are_looked_at_once_for_all_programs_of_a_batch(moves, tmp_path, monkeypatch):
    seat, looks = Seat({0, 1}, 0, tasks(tmp_path, 71)), []
    monkeypatch.setattr(seat, "_bound", lambda: looks.append(1) or set())
    for _ in range(2):
        seat.build()
        for _ in range(9):
            seat.run()
    assert len(looks) == 2


def test_a_pool_on_every_processor_leaves_all(moves, tmp_path):
    made, bound = moves
    bound |= {71: {0}, 72: {1}}
    seat = Seat({0, 1}, 0, tasks(tmp_path, 71, 72))
    seat.build()
    seat.run()
    assert made == [{0}, {0, 1}]


@pytest.mark.parametrize(("processors", "worker", "bind"), [({0}, 0, ""), ({0, 1}, None, ""), ({0, 1}, 0, "0")])
def test_nobody_is_moved_without_a_choice(moves, tmp_path, monkeypatch, processors, worker, bind):
    monkeypatch.setenv("TVM_BIND_THREADS", bind)
    monkeypatch.delenv(module.WORKER, raising=False)
    seat = Seat(processors, worker, tasks(tmp_path))
    seat.build()
    seat.run()
    assert moves[0] == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_a_real_thread_is_seen():
    allowed = os.sched_getaffinity(0)
    one, stop, ready = min(allowed), threading.Event(), threading.Event()

    def bound():
        os.sched_setaffinity(threading.get_native_id(), {one})
        ready.set()
        stop.wait()

    before = Seat(allowed, 0)._bound()  # this process may have a pool
    thread = threading.Thread(target=bound)
    thread.start()
    ready.wait()
    try:
        assert Seat(allowed, 0)._bound() == before | {one}
    finally:
        stop.set()
        thread.join()
