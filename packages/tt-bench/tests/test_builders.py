"""When a replayed pool's workers would have built what."""

from tt_bench.builders import Builders
from tt_spec import VirtualClock


def key(i):
    return "task", bytes([i])


def test_what_is_expected_is_built_while_the_clock_passes():
    clock = VirtualClock(10.0)
    workers = Builders(clock, 2)
    for i in range(3):
        workers.expect(key(i), 2.0)
    clock.advance(3.0)
    assert [workers.build(key(i), 2.0) for i in range(3)] == [12.0, 12.0, 14.0]
    assert workers.build(key(3), 2.0) == 15.0, "the worker that is free at once"


def test_what_is_asked_now_goes_before_what_is_expected():
    clock = VirtualClock()
    workers = Builders(clock, 1)
    for i in range(3):
        workers.expect(key(i), 2.0)
    clock.advance(1.0)  # the first is begun
    assert workers.build(key(2), 2.0) == 4.0
    assert workers.build(key(0), 2.0) == 2.0 and workers.build(key(1), 2.0) == 6.0


def test_timing_waits_for_what_is_begun_and_nobody_builds_meanwhile():
    clock = VirtualClock()
    workers = Builders(clock, 2)
    at = workers.build(key(0), 3.0)
    for i in (1, 2, 3):
        workers.expect(key(i), 2.0)
    assert workers.quiet(at) == 4.0, "the other worker has built one, and begun another"
    clock.advance(4.0 + 5.0)
    workers.timed()
    assert workers.build(key(1), 2.0) == 2.0 and workers.build(key(2), 2.0) == 4.0
    assert workers.build(key(3), 2.0) == 11.0, "only after the timing"


def test_thinking_that_needs_the_workers_keeps_them_from_building():
    clock = VirtualClock()
    workers = Builders(clock, 1)
    workers.expect(key(0), 4.0)
    workers.expect(key(1), 1.0)
    clock.advance(1.0)
    workers.interrupt(0.5)
    clock.advance(0.5)
    assert workers.build(key(0), 4.0) == 4.5 and workers.build(key(1), 1.0) == 5.5


def test_expecting_twice_is_expecting_once():
    clock = VirtualClock()
    workers = Builders(clock, 1)
    workers.expect(key(0), 1.0)
    clock.advance(0.5)
    workers.expect(key(0), 1.0)
    clock.advance(1.0)
    assert workers.build(key(0), 1.0) == 1.0 and workers.build(key(1), 1.0) == 2.5
