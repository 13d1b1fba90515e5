import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import sys
import threading
import time

import pytest
from tt_measure import TimingLock


def test_shared_with_others_who_share_and_exclusive_alone(tmp_path):
    lock, order = TimingLock(tmp_path / "lock"), []

    def time_it():
        with lock.exclusive():
            order.append("alone")

    with lock.shared(), lock.shared():
        thread = threading.Thread(target=time_it)
        thread.start()
        time.sleep(0.1)
        order.append("shared")
    thread.join(60)
    assert order == ["shared", "alone"]
    with lock.exclusive():
        thread = threading.Thread(target=time_it)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(60)
    assert order[2:] == ["first", "alone"]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory: the lock is in TMPDIR here")
def test_processes_with_another_tmpdir_wait_too(tmp_path):
    code = "from tt_measure import TimingLock\nwith TimingLock().shared(): print('held', flush=True)"
    with TimingLock().exclusive():
        other = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(2)
    assert other.communicate(timeout=60)[0] == "held\n"


def test_without_shared_memory_the_lock_is_a_temporary_file(monkeypatch, tmp_path):
    monkeypatch.setattr("tt_measure.lock.SHARED", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with TimingLock().shared():
        assert [p.name for p in tmp_path.iterdir()] == [f"tt-timing-{os.getuid()}.lock"]
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may write anywhere
    assert TimingLock().place == str(tmp_path / f"tt-timing-{os.getuid()}.lock"), "nor where it may only be read"


def test_nobody_waits_for_a_lock_that_is_free(tmp_path):
    def patience(holder):
        raise AssertionError("waits")

    lock = TimingLock(tmp_path / "lock", patience)
    with lock.exclusive():
        pass
    with lock.shared(), lock.shared():
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_whoever_gives_up_waiting_leaves_the_gate_although_a_fork_lives_on(tmp_path, monkeypatch):
    """A fork shares the open file, so closing it opens no gate."""
    opened, copies = TimingLock._open, []

    def copied(self):
        copies.append(os.dup(fd := opened(self)))
        return fd

    def patience(holder):
        raise TimeoutError("enough")

    with TimingLock(tmp_path / "lock").exclusive():
        monkeypatch.setattr(TimingLock, "_open", copied)
        with pytest.raises(TimeoutError), TimingLock(tmp_path / "lock", patience).shared():
            raise AssertionError("the lock was had")
        monkeypatch.undo()
    with TimingLock(tmp_path / "lock", patience).exclusive():
        os.close(copies.pop())


def test_whoever_wants_to_time_is_let_through_by_those_who_build_in_turns(tmp_path):
    """Two who share the lock by turns, so that one of them always has it, keep nobody out who wants it alone."""
    path, over, alone = tmp_path / "lock", threading.Event(), threading.Event()
    came = [threading.Semaphore(0), threading.Semaphore(0)]

    def build(who: int) -> None:
        for turn in itertools.count():
            with TimingLock(path).shared():
                if who or turn:
                    came[1 - who].release()
                came[who].acquire(timeout=1.0)  # this one leaves when the other has come
            if over.is_set():
                return

    def time_it() -> None:
        with TimingLock(path).exclusive():
            alone.set()

    threads = [threading.Thread(target=build, args=(who,)) for who in (0, 1)]
    threads[0].start()
    time.sleep(0.2)
    threads[1].start()
    threads.append(threading.Thread(target=time_it))
    time.sleep(0.2)
    threads[2].start()
    passed = alone.wait(10)
    over.set()
    for t in threads:
        t.join(60)
    assert passed


def test_without_locks_of_open_files_there_is_no_gate_and_the_lock_holds(tmp_path, monkeypatch):
    """Another system, or a file system that refuses them."""
    entered = []

    def refused(*_):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(fcntl, "fcntl", refused)
    with TimingLock(tmp_path / "a").exclusive():
        entered.append("refused")
    monkeypatch.delattr(fcntl, "F_OFD_SETLK")
    monkeypatch.delattr(fcntl, "F_OFD_SETLKW")
    with TimingLock(tmp_path / "a").shared():
        entered.append("none")
    assert entered == ["refused", "none"]


def test_a_gate_that_fails_otherwise_is_told_and_leaves_nothing_open(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "fcntl", broken)
    with pytest.raises(OSError, match="Input/output error"), TimingLock(tmp_path / "a").exclusive():
        raise AssertionError("the lock was had")
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.undo()
    with TimingLock(tmp_path / "a").exclusive():
        pass


def test_who_holds_the_lock_is_not_said_where_the_file_does_not_tell(tmp_path):
    said = []

    @contextlib.contextmanager
    def patience(holder):
        said.append(holder())
        (tmp_path / "lock").write_text("1 is not two numbers")
        said.append(holder())
        done.set()
        yield

    done = threading.Event()
    lock = TimingLock(tmp_path / "lock", patience)
    with TimingLock(tmp_path / "lock").exclusive():
        waits = threading.Thread(target=lambda: lock.shared().__enter__())
        waits.start()
        assert done.wait(60)
    waits.join(60)
    assert said[0].startswith(f"a worker waits for the timing lock {tmp_path / 'lock'}: process {os.getpid()} of '")
    assert said[1] == f"a worker waits for the timing lock {tmp_path / 'lock'}"
