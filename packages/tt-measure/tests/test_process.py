"""The parent's end of a worker: what becomes of a job by what is heard of it, and by what happens to the process."""

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from tt_measure import process
from tt_measure.process import BEAT_S, Ending, brief
from tt_measure.team import end_all

sys.path.insert(0, str(Path(__file__).parent))
from tt_measure_scripted import Scripted


@pytest.fixture
def made(monkeypatch):
    scripted = Scripted(monkeypatch)
    yield scripted
    scripted.close()


def gone(p):
    return p.popen.wait(10)


def unheard(p):
    """As if nothing had been heard for long."""
    p.heard = p._looked = time.monotonic() - 5.0


def test_a_job_follows_what_is_said_of_it(made):
    p = made.make()
    assert p.job is None and p.load == 0
    job = made.job(p)
    assert made.hears(p)[1:] == [(job.number, "build", ("argument",))]
    made.says(p, "stage", ("build", 30.0))
    assert job.stage == "build" and job.since >= job.began
    assert p.deadline == pytest.approx(p.heard + 30.0 + p.grace_s)
    made.says(p, "waiting", "somebody has the lock")
    made.says(p, "waiting", "somebody has the lock")
    assert (p.waits, p.waiting_s) == ("somebody has the lock", 2 * BEAT_S)
    assert p.deadline == pytest.approx(p.heard + p.grace_s), "it lives, and is to be heard of again"
    made.says(p, "waited", (1.0, 2.0))
    assert p.waits == "" and job.waits == [(1.0, 2.0)] and job.ending is None
    over = time.monotonic()
    made.says(p, "done", (over, {"build": 1.0}))
    assert job.ending == Ending("done", {"build": 1.0}, "build")
    assert job.over == over <= job.ended and job.worked_until == over
    assert job.seconds == job.ended - job.since and p.job is None


@pytest.mark.parametrize("verdict", ["raised", "unopened", "undecided"])
def test_a_job_that_fails_says_so(made, verdict):
    p = made.make()
    job = made.job(p)
    made.says(p, "stage", ("open", 1.0))
    made.says(p, verdict, (0.0, "x" * 5000))
    assert job.ending is not None
    assert (job.ending.verdict, job.ending.stage, job.ending.value) == (verdict, "open", None)
    assert len(job.ending.text) < 1300
    assert job.over == job.began, "no sooner than it began"


def test_a_worker_is_done_no_later_than_it_says_so(made):
    p = made.make()
    job = made.job(p)
    made.says(p, "done", (time.monotonic() + 1e6, None))
    assert job.over <= time.monotonic()


def test_what_is_said_of_another_job_is_nothing(made):
    p = made.make()
    made.says(p, "done", (0.0, None), number=1)  # nobody has a job
    job, deadline = made.job(p), p.deadline
    made.says(p, "done", (0.0, None), number=job.number - 1)
    assert job.ending is None and p.job is job and p.deadline == deadline


def test_jobs_are_done_one_after_the_other(made):
    p = made.make()
    first, second = made.job(p), made.job(p)
    assert (p.load, p.job, second.ending) == (2, first, None)
    before = second.began
    made.says(p, "done", (0.0, 1))
    assert (p.load, p.job) == (1, second)
    assert second.began > before, "it begins when the worker turns to it"
    made.says(p, "done", (0.0, 2))
    assert (p.load, p.job, second.ending.value) == (0, None, 2)


class Unreadable:
    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise RuntimeError("not here")


def test_a_result_that_cannot_be_read_is_an_error_of_its_job(made):
    p = made.make()
    job, following = made.job(p), made.job(p)
    made.says(p, "done", (0.0, Unreadable()))
    assert job.ending.verdict == "raised"
    assert job.ending.text == "its result cannot be read here: RuntimeError: not here"
    assert p.job is following and not p.lost


def test_a_lost_worker_ends_all_its_jobs(made):
    p = made.make()
    first, second = made.job(p), made.job(p)
    made.says(p, "stage", ("build", 1.0))
    os.kill(p.popen.pid, signal.SIGSEGV)
    gone(p)
    made.hang_up(p)
    p.receive()
    assert p.lost and p.load == 0
    assert (first.ending.verdict, first.ending.stage, first.ending.reason) == ("lost", "build", "")
    assert "SIGSEGV" in first.ending.text
    assert (second.ending.verdict, second.ending.stage) == ("lost", ""), "it was not begun"
    assert second.ending.text == first.ending.text
    late = made.job(p)
    assert late.ending == Ending("lost", text="the worker had ended before")
    p.bury()
    p.close()


@pytest.mark.parametrize(
    ("script", "text", "reason"),
    [
        ("exit 3", "the worker exited with status 3", ""),
        ("exit 0", "the worker exited with status 0", ""),
        ("echo said; echo why; exit 1", "the worker exited with status 1; last output: said | why", ""),
        (
            "kill -9 $$",
            "the worker was killed by SIGKILL (Killed) (the kernel does this when memory runs out)",
            "killed",
        ),
        ("kill -ALRM $$", "took too long", "time"),
        ("kill -35 $$", "the worker was killed by signal 35 (Real-time signal 1)", ""),
    ],
)
def test_why_a_worker_ended(made, script, text, reason):
    made.script = f"sleep 0.2; {script}"  # a job begins before
    p = made.make()
    job = made.job(p)
    made.hang_up(p)
    p.receive()
    assert (job.ending.text, job.ending.reason) == (text, reason)


def test_a_worker_that_is_stopped_in_mid_message_is_silent(made):
    p = made.make(grace_s=0.2)
    job = made.job(p)
    os.write(made.ends[p].fileno(), b"\0\0\1\0half")
    p.receive()
    assert job.ending.reason == "silent" and "the worker did not answer for 0 s" in job.ending.text
    assert gone(p) == -signal.SIGKILL


def test_a_worker_that_takes_no_message_is_silent(made):
    p = made.make(grace_s=0.2)
    job = made.job(p)
    p.tell("task", b"0" * 50_000_000)
    assert p.lost and job.ending.reason == "silent"


@pytest.mark.parametrize("method", ["send_bytes", "recv_bytes"])
def test_an_interrupt_in_mid_message_ends_the_worker(made, method):
    """What the other half of the message would be taken for nobody knows."""

    class Interrupted:
        def __init__(self, conn):
            self.conn = conn

        def __getattr__(self, name):
            if name == method:
                raise KeyboardInterrupt
            return getattr(self.conn, name)

    p = made.make()
    p.conn = Interrupted(p.conn)
    with pytest.raises(KeyboardInterrupt):
        p.tell("drop", []) if method == "send_bytes" else p.receive()
    assert gone(p) == -signal.SIGKILL


def test_more_memory_than_the_job_may_use_ends_the_worker(made):
    p = made.make()
    job = made.job(p, memory_bytes=1000.0)
    p.watch()
    p.watch()
    assert gone(p) == -signal.SIGKILL
    made.hang_up(p)
    p.receive()
    assert job.ending.reason == "memory"
    assert job.ending.text == "used 0.00 GB of memory, more than the 0.00 GB allowed"
    assert p.memory() == 0, "of a process that is gone"


def test_a_worker_that_answers_is_left_in_peace(made):
    p = made.make(grace_s=0.0)
    job = made.job(p)
    made.says(p, "stage", ("build", 60.0))
    unheard(p)
    p.watch()
    assert not p.lost and job.ending is None
    p.deadline = 0.0
    made.ends[p].send_bytes(b"there is something to read")
    unheard(p)
    p.watch()
    assert not p.lost, "it has answered"


def test_a_worker_that_is_silent_for_longer_than_announced_is_ended(made):
    p = made.make()
    job = made.job(p)
    p.deadline = time.monotonic() - 1.0
    unheard(p)
    p.watch()
    assert (job.ending.reason, job.ending.text) == ("silent", "the worker did not answer for 5 s")
    assert gone(p) == -signal.SIGKILL


def test_a_stopped_worker_is_ended_after_the_grace_whatever_it_announced(made):
    p = made.make(grace_s=0.3)
    job = made.job(p)
    made.says(p, "stage", ("call", 600.0))
    os.kill(p.popen.pid, signal.SIGSTOP)
    while psutil.Process(p.popen.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    unheard(p)
    p.watch()
    assert job.ending is None, "not at once: a shell may have stopped the whole command"
    os.kill(p.popen.pid, signal.SIGCONT)
    while psutil.Process(p.popen.pid).status() == psutil.STATUS_STOPPED:
        time.sleep(0.01)
    time.sleep(0.3)
    unheard(p)
    p.watch()
    assert job.ending is None, "it goes on"
    os.kill(p.popen.pid, signal.SIGSTOP)
    until = time.monotonic() + 20.0
    while job.ending is None and time.monotonic() < until:
        time.sleep(0.05)
        unheard(p)
        p.watch()
    assert job.ending.reason == "silent" and "it was stopped" in job.ending.text


def test_a_dead_worker_whose_connection_somebody_holds_open_is_noticed(made):
    p = made.make()
    job = made.job(p)
    p.popen.kill()
    while not p._dead():
        time.sleep(0.01)
    unheard(p)
    p.watch()
    assert (job.ending.verdict, job.ending.reason) == ("lost", "killed")


def test_a_log_does_not_fill_the_disk(made, monkeypatch):
    p = made.make()
    os.write(p.log.fileno(), b"of the job before\n")
    p.watch()
    assert p._tail() == "of the job before", "it is small"
    made.job(p)
    assert p._tail() == ""
    os.write(p.log.fileno(), b"of this one\n")
    assert p._tail() == "of this one"
    monkeypatch.setattr(process, "LOG_BYTES", 100)
    os.write(p.log.fileno(), b"\0one\ntwo\nthree\nfour\nfive\nsix\n")
    assert p._tail() == "two | three | four | five | six"
    assert len(p._tail(chars=7)) == 7
    p.watch()
    assert p._tail() == "two | three | four | five | six"
    os.write(p.log.fileno(), b"x" * 100)
    p.watch()
    assert os.fstat(p.log.fileno()).st_size == 0 and p._tail() == ""
    os.write(p.log.fileno(), b"again\n")
    assert p._tail() == "again"


def test_programs_that_are_held_no_more_are_forgotten(made):
    p = made.make()
    p.keep("t", b"a", 1, (1,))
    p.keep("t", b"b", 2, (1, 2))
    p.keep("u", b"a", 3, ())
    assert p.kept == {"t": {b"a": 1, b"b": 2}, "u": {}}
    p.keep("t", b"c", 4, (2, 4))
    assert p.kept["t"] == {b"b": 2, b"c": 4}


def test_an_idle_worker_may_leave_by_itself_and_a_busy_one_is_killed(made):
    made.script = "exec sleep 0.2"
    p = made.make()
    p.leave()
    p.close(10.0)
    assert p.lost and gone(p) == 0
    made.script = "exec sleep 60"
    q = made.make()
    job = made.job(q)
    q.leave()
    assert not q.conn.closed
    q.close(10.0)
    assert gone(q) == -signal.SIGKILL and q.conn.closed
    assert job.ending == Ending("lost", text="the pool was closed")


def test_a_fork_ends_no_worker_of_its_parent(made):
    p = made.make()
    for owner in (os.getpid() - 1, os.getpid() + 1):
        p.owner = owner
        p.close()
        end_all([p])
        assert not p.lost and p.popen.poll() is None
    p.owner = os.getpid()


@pytest.mark.parametrize(
    ("ending", "from_outside", "unbegun"),
    [
        (Ending("done"), False, False),
        (Ending("raised", stage="open"), False, False),
        (Ending("lost", stage="build"), False, False),
        (Ending("lost", stage="build", reason="killed"), True, False),
        (Ending("lost", stage="build", reason="silent"), True, False),
        (Ending("lost", stage="open", reason="silent"), True, True),
        (Ending("lost", stage="", reason="killed"), True, True),
        (Ending("lost", stage="", reason="memory"), False, False),
        (Ending("lost", stage="", reason="time"), False, False),
    ],
)
def test_who_is_to_blame_for_an_ending(ending, from_outside, unbegun):
    assert (ending.from_outside, ending.unbegun) == (from_outside, unbegun)


def test_a_long_message_keeps_both_ends():
    assert brief("x" * 1200) == "x" * 1200
    assert brief("a" * 1000 + "b" * 1000) == "a" * 400 + " […] " + "b" * 800
