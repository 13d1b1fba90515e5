"""Workers that do not answer or are killed from outside, and what they leave: real signals to real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tt_measure import TimingLock, WorkerError, WorkerPool, family
from tt_spec import Bar
from tt_spec.pieces.once_evaluator import OnceEvaluator

pytestmark = pytest.mark.slow  # deadlines are waited for

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import tt_measure_wild as wild  # noqa: E402


def make(tmp_path, backend="Backend", **options: Any):
    limits = {"build_timeout_s": 1.0, "run_timeout_s": 1.0, "check_timeout_s": 1.0, "realise_timeout_s": 1.0}
    defaults: dict[str, Any] = {**limits, "start_timeout_s": 10.0, "grace_s": 2.0, "path": [HERE]}
    defaults |= {"workers": 2, "threads": 1, "evaluator": OnceEvaluator(), "lock": tmp_path / "lock", **options}
    return WorkerPool(f"tt_measure_wild:{backend}", **defaults)


@pytest.fixture
def pool(tmp_path):
    with make(tmp_path) as pool:
        yield pool


def oks(n, first=0):
    return [wild.row("ok", 2, first + i) for i in range(n)]


def by_id(pool, task, rows):
    found = {m.config[2]: m for m in pool.measure(task, np.array(rows), Bar())}
    assert len(found) == len(rows)
    return found


def pids(pool):
    return [p.popen.pid for p in pool._team.processes]


def ended(wanted, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in wanted):
            return True
        time.sleep(0.02)
    return False


def free(lock):
    """Whether the lock can be had at once."""
    code = f"from tt_measure import TimingLock\nwith TimingLock({str(lock)!r}).exclusive(): pass"
    return subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0


@pytest.mark.parametrize(
    ("kind", "error", "doing"),
    [
        ("build-stop", "build-timeout", "while building: the worker did not answer for"),
        ("run-stop", "run-timeout", "while running: the worker did not answer for"),
        ("check-stop", "run-timeout", "while checking: the worker did not answer for"),
    ],
)
def test_a_worker_stopped_at_work_costs_its_row_and_no_other(pool, tmp_path, kind, error, doing):
    before = pool.threads() and pids(pool)
    found = by_id(pool, wild.task(tmp_path / "log"), [*oks(6), wild.row(kind, 1, 500)])
    assert found[500].error == error and found[500].why.startswith(doing), found[500]
    assert found[500].why.endswith("it was stopped")
    assert all(m.error is None for i, m in found.items() if i != 500)
    assert free(tmp_path / "lock")
    after = pool.threads() and pids(pool)
    assert ended(set(before) - set(after)) and len(set(before) - set(after)) == 1


def test_a_candidate_that_takes_off_its_time_limit_is_ended_all_the_same(pool, tmp_path):
    found = by_id(pool, wild.task(tmp_path / "log"), [*oks(3), wild.row("build-deaf", 1, 500)])
    assert found[500].error == "build-timeout" and "did not answer" in found[500].why
    assert all(m.error is None for i, m in found.items() if i != 500)


def test_a_worker_stopped_while_it_opens_a_task_is_replaced(tmp_path):
    with make(tmp_path, open_timeout_s=1.0) as pool:
        found = by_id(pool, wild.task(tmp_path / "log", "open-stop"), oks(4))
    assert all(m.error is None for m in found.values()) and (tmp_path / "log.done").exists()


def test_workers_stopped_while_idle_cost_no_row(pool, tmp_path):
    by_id(pool, wild.task(tmp_path / "log"), oks(2))
    for pid in pids(pool):
        os.kill(pid, signal.SIGSTOP)
    assert all(m.error is None for m in by_id(pool, wild.task(tmp_path / "other"), oks(6)).values())


def test_closing_a_pool_of_stopped_workers_ends_them(tmp_path):
    pool = make(tmp_path)
    pool.threads()
    stopped = pids(pool)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    pool.close()
    assert ended(stopped)


def test_a_worker_stopped_while_it_starts_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("TT_TEST_FLAG", str(tmp_path / "flag"))
    with make(tmp_path, "StopsOnce", start_timeout_s=5.0) as pool:
        assert all(m.error is None for m in by_id(pool, wild.task(), oks(4)).values())
    assert (tmp_path / "flag.done").exists()


def test_rows_that_stop_whoever_makes_them_are_singled_out(pool, tmp_path):
    codes = np.array(
        [wild.row("build-stop" if i == 7 else "build-killed" if i == 9 else "ok", 1, i) for i in range(16)]
    )
    real = pool.realise(wild.task(tmp_path / "log"), codes)
    assert [i for i, why in enumerate(real.why) if why is not None] == [7]
    assert "did not answer" in real.why[7]


def test_calls_have_a_deadline_and_are_given_to_another_worker(pool, tmp_path):
    with pytest.raises(WorkerError, match=r"'stop' failed: the worker did not answer for \d\d? s, it was stopped"):
        pool.call("stop", None, timeout_s=600.0)  # a stopped one is seen before its time is up
    assert pool.call("killed_once", None, str(tmp_path / "flag")) == 42
    pool.call("size", None, b"")
    for pid in pids(pool):
        os.kill(pid, signal.SIGSTOP)
    assert pool.call("size", None, b"x" * (8 << 20), exclusive=True) == 8 << 20  # more than a pipe holds


@pytest.mark.parametrize("kind", ["build-killed", "run-killed"])
def test_a_row_whose_worker_is_killed_from_outside_has_one_more_try(pool, tmp_path, kind):
    found = by_id(pool, wild.task(tmp_path / "log"), [*oks(4), wild.row(kind, 1, 500)])
    assert all(m.error is None for m in found.values()), found[500]
    assert (tmp_path / "log.500.done").exists()


def test_a_row_that_is_killed_every_time_fails(pool, tmp_path):
    found = by_id(pool, wild.task(tmp_path / "log"), [*oks(4), wild.row("oom", 1, 500)])
    assert found[500].error == "build" and "killed by SIGKILL" in found[500].why
    assert all(m.error is None for i, m in found.items() if i != 500)


def test_a_grandchild_in_a_session_of_its_own_ends_with_its_worker(pool, tmp_path):
    found = by_id(pool, wild.task(tmp_path / "log"), [wild.row("daemon", 1, 500)])
    assert found[500].error == "build" and "SIGABRT" in found[500].why
    assert ended(daemons(tmp_path / "log"))
    assert free(tmp_path / "lock"), "it had the lock's file open"


ABANDONED = """
import sys
sys.path.insert(0, {here!r})
import numpy as np, tt_measure_wild as wild
from tt_measure import WorkerPool
from tt_spec import Bar
from tt_spec.pieces.once_evaluator import OnceEvaluator
pool = WorkerPool("tt_measure_wild:Backend", workers=1, threads=1, evaluator=OnceEvaluator(), lock={lock!r})
list(pool.measure(wild.task({log!r}), np.array([wild.row("daemon-hang", 1, 0)]), Bar()))
"""


def test_what_a_killed_tt_left_is_ended_by_the_next_one_and_a_living_ones_is_not(tmp_path):
    logs = [tmp_path / name for name in ("killed", "lives")]
    locks = [tmp_path / "lock", tmp_path / "another"]
    codes = [ABANDONED.format(here=str(HERE), lock=str(k), log=str(log)) for k, log in zip(locks, logs, strict=True)]
    killed, lives = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    try:
        until = time.monotonic() + 60
        while not all(map(daemons, logs)) and time.monotonic() < until:
            time.sleep(0.05)
        killed.kill()
        killed.wait()
        with make(tmp_path) as pool:
            assert by_id(pool, wild.task(tmp_path / "log"), oks(1))[0].error is None
        assert ended(daemons(logs[0]))
        assert not ended(daemons(logs[1]), seconds=0.1)
    finally:
        lives.kill()
        lives.wait()
        family.end_orphans()
    assert ended(daemons(logs[1]))


def daemons(log):
    """The daemons of which a log tells."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(e["began"]) for e in map(json.loads, lines) if e["event"] == "daemon"]


def test_a_call_may_use_more_memory_than_a_candidate(tmp_path):
    with make(tmp_path, memory_bytes=300e6) as pool:
        assert pool.call("hold", None, 400, exclusive=True) == 400 << 20
    with make(tmp_path, workers=1, memory_bytes=300e6) as pool, pytest.raises(WorkerError, match=r"0\.30 GB allowed"):
        pool.call("hold", None, 400, exclusive=True)


def test_waiting_for_the_lock_is_no_silence_and_says_who_holds_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tt_measure.team.WAIT_S", 0.5)
    code = (
        f"from tt_measure import TimingLock\nwith TimingLock({str(tmp_path / 'lock')!r}).exclusive(): print(); input()"
    )
    with make(tmp_path) as pool:
        pool.threads()
        other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert other.stdin is not None and other.stdout is not None
        other.stdout.readline()
        before = pids(pool)
        stream = pool.measure(wild.task(tmp_path / "log"), np.array(oks(2)), Bar())
        began = time.monotonic()

        def let_go():
            if time.monotonic() - began > 5 and other.poll() is None:  # longer than the grace
                other.communicate(b"\n")

        monkeypatch.setattr(pool._team, "_started", let_go)
        with pytest.warns(UserWarning, match=f"waits for the timing lock .*lock: process {other.pid} of .* since "):
            assert [m.error for m in stream] == [None, None]
        assert pids(pool) == before


def test_a_fork_that_lives_on_does_not_keep_the_lock(tmp_path):
    lock = TimingLock(tmp_path / "lock")
    with lock.exclusive():
        if (child := os.fork()) == 0:
            time.sleep(1000)
    try:
        assert free(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_lock_follows_no_link_and_is_only_its_users(tmp_path, monkeypatch):
    target = tmp_path / "precious"
    target.write_text("keep")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(WorkerError, match="link cannot be used"):
        WorkerPool(lock=tmp_path / "link").prestart()
    assert target.read_text() == "keep"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WorkerError, match="not a regular file"):
        TimingLock(tmp_path / "pipe").check()
    monkeypatch.setattr("tt_measure.lock.SHARED", tmp_path)
    mine = Path(TimingLock().place)
    mine.touch(0o666)
    mine.chmod(0o666)
    TimingLock().check()
    assert mine.stat().st_mode & 0o777 == 0o600
    other = os.getuid() + 1
    monkeypatch.setattr("os.getuid", lambda: other)
    mine.rename(TimingLock().place)
    with pytest.raises(WorkerError, match=r"belongs to user \d+"):
        TimingLock().check()


def test_nothing_in_the_current_folder_runs_in_a_worker(tmp_path):
    """With a hostile `numpy.py` there, and one that a backend imports later."""
    for name in ("numpy", "psutil", "fractions"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\n")
    program = """
import sys
del sys.path[0]  # this process is the user's own; what it imports is not at stake
import numpy, psutil
from tt_measure import WorkerPool
sys.path.insert(0, "")
with WorkerPool("tt_measure_wild:Backend", workers=1, threads=1, lock={lock!r}, path=[{here!r}]) as pool:
    print(pool.call("imported", None, "fractions"))
"""
    code = program.format(lock=str(tmp_path / "lock"), here=str(HERE))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() and str(tmp_path) not in done.stdout and not (tmp_path / "ran").exists()
