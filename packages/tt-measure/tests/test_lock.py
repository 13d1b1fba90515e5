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
