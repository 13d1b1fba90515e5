"""Programs that a worker holds on to."""

from tt_measure.kept import Kept, Program


def kept(kept, task="a"):
    return set(kept.names(task))


def test_the_fastest_stay_and_so_do_the_last_without_a_timing_that_counts():
    k = Kept(most=2, doubtful=1)
    for name, seconds in enumerate([5.0, 3.0, 4.0]):
        k.offer("a", Program(name, f"p{name}", seconds, True), 10.0)
    assert kept(k) == {1, 2} and k.candidate("a", 0) is None and k.candidate("a", 2) == "p2"
    k.offer("a", Program(3, "p3", 9.0, False), 3.0 * 9)
    k.offer("a", Program(4, "p4", 4.4, False), 3.0)
    assert kept(k) == {1, 2, 4}


def test_one_far_behind_the_incumbent_is_not_kept():
    k = Kept(within=1.5)
    k.offer("a", Program(0, "p", 1.6, True), 1.0)
    k.offer("a", Program(1, "q", 1.4, True), 1.0)
    assert kept(k) == {1}


def test_tasks_that_nobody_offers_to_keep_their_leader_and_the_oldest_lose_it():
    k = Kept(tasks=2, leaders=3)
    for name, task in enumerate("bbaacc"):
        k.offer(task, Program(name, task, [1.2, 1.0][name % 2], True), 1.0)
    assert kept(k, "a") == {2, 3} and kept(k, "c") == {4, 5} and kept(k, "b") == {1}
    k.offer("d", Program(6, "d", 1.0, True), 1.0)
    assert kept(k, "a") == {3} and kept(k, "d") == {6} and not kept(k, "b")


def test_what_falls_out_is_freed_when_told_and_not_before():
    import weakref

    class Big:
        pass

    k, big = Kept(most=1), Big()
    gone = weakref.ref(big)
    k.offer("a", Program(0, big, 2.0, True), 5.0)
    del big
    k.offer("a", Program(1, Big(), 1.0, True), 5.0)
    assert kept(k) == {1} and gone() is not None
    k.drop()
    assert gone() is None


def test_a_task_that_shrinks_to_its_leader_frees_the_others():
    k = Kept(tasks=1)
    programs = [Program(i, f"p{i}", seconds, True) for i, seconds in enumerate([1.2, 1.0, 1.1])]
    for p in programs:
        k.offer("a", p, 1.0)
    k.offer("b", Program(9, "other", 1.0, True), 1.0)
    assert kept(k) == {1}
    assert sorted(p.name for p in k._dropped) == [0, 2] and k.candidate("a", 1) == "p1"


def test_the_anchor_is_the_fastest_that_was_timed_in_the_same_state():
    k = Kept()
    k.offer("a", Program(0, "p", 1.0, True, reference_s=2e-5), 9.0)
    k.offer("a", Program(1, "q", 1.2, True, reference_s=1e-5), 9.0)
    k.offer("a", Program(2, "r", 1.1, True, reference_s=1e-5), 9.0)
    k.offer("a", Program(3, "s", 0.9, False, reference_s=1e-5), 9.0)
    anchor = k.anchor("a", 1e-5)
    assert anchor is not None and anchor.name == 2
    assert k.anchor("a", 3e-5) is None and k.anchor("b", 1e-5) is None
