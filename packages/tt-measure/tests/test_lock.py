import threading
import time

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
    thread.join(5)
    assert order == ["shared", "alone"]
    with lock.exclusive():
        thread = threading.Thread(target=time_it)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(5)
    assert order[2:] == ["first", "alone"]


def test_default_path_is_per_user():
    with TimingLock().shared():
        pass
