"""A batch of rows on its way through a team, every word of whose workers a test says; no backend, no timing."""

import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tt_measure.ahead import Ahead
from tt_measure.fixed import Fixed
from tt_measure.passage import GAUGE_S, TRIES, Passage, _entropy
from tt_measure.process import WorkerError
from tt_measure.rules import Builds, Rules, Verdict, run_limit_s
from tt_spec.errors import PieceFailure
from tt_spec.testing.examples import wide_task
from tt_spec.types import Bar, Timing
from tt_spec.windows import Reference, Seen

sys.path.insert(0, str(Path(__file__).parent))
from tt_measure_scripted import NEVER, Crew

TASK = wide_task()
ROWS = np.arange(32, dtype=np.int64).reshape(8, 4)


def good(seconds=1e-3, wrong=None, seen=None):
    return "done", Verdict(Timing((seconds,), 3, "as ever"), 0.25, wrong, seen, ())


def passage(one, rows=ROWS, chunk=2, bar=None, reference=None):
    """The rows' passage through a crew."""
    if reference is None:
        reference = Reference()
        reference.look(())  # nothing tells the machine's state
    rules = Rules(9.0, 19.0, 29.0, True, chunk, Fixed(), 7, reference, Builds())
    return Passage(one.team, TASK, rows, bar or Bar(), rules, Ahead(one.team, 9.0, 4))


@pytest.fixture
def crew(monkeypatch):
    made = []

    def make(plays, size=1):
        made.append(Crew(monkeypatch, plays, size))
        return made[-1]

    yield make
    for one in made:
        one.end()


def plainly(kind, *said):
    return ("build", ("done", {"apply": 1.0, "build": 2.0})) if kind == "build" else ("run", good())


def test_a_chunk_is_built_then_timed_and_costs_are_added(crew):
    one = crew(plainly)
    found = list(passage(one, ROWS[:3]).results())
    assert one.kinds() == "bbttbt"
    assert [t.config for t in found] == [tuple(map(int, row)) for row in ROWS[:3]]
    assert {(t.seconds, t.runs, t.why, t.error) for t in found} == {((1e-3,), 3, "as ever", None)}
    assert all(t.cost == {"apply": 1.0, "build": 2.0, "run": 0.25} for t in found)
    builds = [said for kind, *said in one.jobs if kind == "build"]
    assert [s[2] for s in builds] == [9.0] * 3 and [s[1].tolist() for s in builds] == ROWS[:3].tolist()
    assert not any(p.tokens for p in one.team.processes)


def test_a_timing_is_told_the_best_so_far_and_a_seed_of_the_row_alone(crew):
    times = iter([3e-3, 1e-3, 2e-3, 4e-3])

    def plays(kind, *said):
        return plainly(kind) if kind == "build" else ("run", good(next(times)))

    one = crew(plays)
    list(passage(one, ROWS[:4], bar=Bar(incumbent_s=5e-3)).results())
    timed = [said for kind, *said in one.jobs if kind == "time"]
    assert [bar.incumbent_s for _, _, bar, *_ in timed] == [5e-3, 3e-3, 1e-3, 1e-3]
    assert [seed for *_, seed, _ in timed] == [_entropy(7, TASK, row) for row in ROWS[:4]]
    seeds = {tuple(_entropy(7, TASK, row)) for row in ROWS[:3]}
    assert len(seeds) == 3 and all(seed[0] == 7 and len(seed) == 9 for seed in seeds)


def test_a_wrong_result_is_no_time_and_no_incumbent(crew):
    def plays(kind, *said):
        return plainly(kind) if kind == "build" else ("check", good(1e-9, wrong="it differs"))

    one = crew(plays)
    found = list(passage(one, ROWS[:2]).results())
    assert [(t.seconds, t.error, t.why) for t in found] == [((), "wrong-result", "it differs")] * 2
    assert [bar.incumbent_s for kind, *said in one.jobs if kind == "time" for bar in said[2:3]] == [np.inf] * 2


@pytest.mark.parametrize(
    ("at", "stage", "answer", "error", "why"),
    [
        ("build", "build", ("raised", "no such knob"), "build", "no such knob"),
        ("time", "run", ("raised", "it fell"), "run", "it fell"),
        ("time", "check", ("raised", "it fell"), "run", "while checking: it fell"),
    ],
)
def test_a_row_that_fails_says_where(crew, at, stage, answer, error, why):
    one = crew(lambda kind, *said: (stage, answer) if kind == at else plainly(kind))
    (found,) = passage(one, ROWS[:1]).results()
    assert (found.error, found.why) == (error, why)
    assert sorted(found.cost) == ["apply", "build", "run"] and (found.cost["run"] > 0) == (at == "time")


def test_a_task_that_cannot_be_opened_and_an_evaluator_that_fails_end_the_batch(crew):
    for stage in ("open", ""):
        one = crew(lambda *_, stage=stage: (stage, ("unopened", "no such workload")))
        with pytest.raises(WorkerError, match=r"cannot open task .*: no such workload"):
            list(passage(one).results())
    two = crew(lambda kind, *_: plainly(kind) if kind == "build" else ("run", ("undecided", "it divides by 0")))
    with pytest.raises(PieceFailure, match="it divides by 0"):
        list(passage(two).results())


def test_a_row_whose_worker_is_killed_is_tried_once_more_alone_and_then_fails(crew):
    bad = ROWS[0].tolist()

    def plays(kind, *said):
        if kind == "build" and said[1].tolist() == bad:
            return "build", signal.SIGKILL
        return plainly(kind)

    one = crew(plays)
    found = {t.config: t for t in passage(one, ROWS[:3]).results()}
    assert found[tuple(bad)].error == "build" and "killed by SIGKILL" in found[tuple(bad)].why
    assert found[tuple(bad)].why.startswith("while building: ")
    assert [t.error for config, t in found.items() if config != tuple(bad)] == [None, None]
    assert sum(kind == "build" and said[1].tolist() == bad for kind, *said in one.jobs) == 2


@pytest.mark.parametrize(("stage", "tries"), [("build", 1), ("", TRIES)])
def test_a_row_is_to_blame_for_a_crash_once_its_worker_has_begun_it(crew, stage, tries):
    one = crew(lambda *_: (stage, signal.SIGSEGV))
    (found,) = passage(one, ROWS[:1]).results()
    assert found.error == "build" and "SIGSEGV" in found.why
    assert one.kinds() == "b" * tries


def test_a_row_is_given_up_whose_worker_is_lost_too_often_before_it_is_timed(crew):
    one = crew(lambda kind, *_: plainly(kind) if kind == "build" else ("", signal.SIGKILL))
    (found,) = passage(one, ROWS[:1]).results()
    assert found.error == "build" and f"lost {TRIES} times" in found.why and "; at last: the worker was" in found.why
    assert one.kinds() == "bt" * TRIES


def test_the_machine_is_looked_at_once_before_the_first_timing(crew):
    looked = Reference()

    def plays(kind, *said):
        return ("gauge", ("done", [1e-4] * 20)) if kind == "gauge" else plainly(kind)

    one = crew(plays)
    list(passage(one, ROWS[:4], reference=looked).results())
    assert one.kinds() == "bbgttbbtt"
    assert [said[1] for kind, *said in one.jobs if kind == "gauge"] == [GAUGE_S] == [0.2]
    assert looked.seconds == pytest.approx(1e-4)
    blind = Reference()
    two = crew(lambda kind, *said: ("gauge", ("raised", "no probe")) if kind == "gauge" else plainly(kind))
    list(passage(two, ROWS[:4], reference=blind).results())
    assert blind.blind and two.kinds() == "bbgttbbtt", "not tried again"


def test_the_reference_hears_what_a_timing_saw(crew):
    looked, seen = Reference(), Seen((1e-4, 1e-4), True, 0.5)
    looked.look([1e-4] * 20)
    told = []
    looked.tell = lambda key, what: told.append((key, what))
    one = crew(lambda kind, *_: plainly(kind) if kind == "build" else ("run", good(seen=seen)))
    list(passage(one, ROWS[:2], reference=looked).results())
    assert told == [(TASK.key, seen)] * 2


def test_rows_of_several_slots_that_come_later_are_built_while_there_is_room(crew):
    one = crew(plainly, size=2)
    through = passage(one, ROWS[:1], chunk=2)
    for i, key in enumerate(("second", "third", "fourth", "fifth"), 1):
        through.ahead.expect(replace(TASK, key=key), ROWS[i : i + 1])
    results = through.results()
    next(results)
    built = {tuple(said[1].tolist()) for kind, *said in one.jobs if kind == "build"}
    assert built == {tuple(row) for row in ROWS[:4].tolist()}, "four in all: two for each worker"
    assert list(results) == []


def test_rows_of_the_next_slot_are_built_only_as_long_as_this_ones_are(crew):
    one = crew(plainly, size=2)
    through = passage(one, ROWS[:1], chunk=2)
    through.ahead.expect(replace(TASK, key="next"), ROWS[1:])
    one.team.revive()
    while one.team.busy():
        one.team.pump()
    through._dispatch()
    assert len(through.ahead._built) == 1, "the other worker has nothing else to do"
    while one.team.busy():
        one.team.pump()
    assert list(through._collect()) == [] and not through.building
    through._dispatch()
    assert len(through.ahead._built) == 1, "the rest waits for the time in which the parent thinks"


def test_what_is_abandoned_is_dropped_by_its_worker(crew):
    one = crew(plainly)
    results = passage(one, ROWS[:4], chunk=4).results()
    next(results)
    (p,) = one.team.processes
    held = set(p.tokens)
    assert len(held) == 3
    results.close()
    assert not p.tokens
    until = time.monotonic() + 60
    while set(one.dropped) != held and time.monotonic() < until:
        time.sleep(0.01)
    assert set(one.dropped) == held
    assert one.kinds() == "bbbbt"


def test_while_another_is_long_at_work_a_worker_holds_up_to_four_chunks(crew, monkeypatch):
    one = crew(lambda *_: ("build", NEVER), size=2)
    through = passage(one, chunk=1)
    one.team.revive()
    while one.team.busy():
        one.team.pump()
    p, q = one.team.processes

    def wants(n):
        through.held = {p: list(through.todo)[:n]} if n else {}
        return through._wants(p)

    assert [wants(n) for n in range(4)] == [True, True, False, False], "one for each of two workers"
    one.team.submit(q, "build", one.team.handle(q, TASK), ROWS[0], 60.0)
    assert not wants(2), "it has only begun"
    monkeypatch.setattr(Passage, "STRAGGLER_S", -1.0)
    assert [wants(n) for n in range(6)] == [True] * 4 + [False] * 2


def test_a_row_that_lost_its_worker_is_built_where_nothing_else_is_held(crew):
    one = crew(plainly)
    through = passage(one)
    one.team.revive()
    (p,) = one.team.processes
    first, second, held = list(through.todo)[:3]
    first.tries = 1
    assert through._next(p) is first
    through.held = {p: [held]}
    assert through._next(p) is second
    held.tries = 1
    assert through._next(p) is None


def test_a_build_may_take_many_times_what_builds_take_here():
    builds = Builds()
    for _ in range(15):
        builds.tell(1.0)
    assert builds.limit_s(30.0) == 30.0, "few say nothing yet"
    builds.tell(100.0)
    assert builds.limit_s(30.0) == 25.0 and builds.limit_s(20.0) == 20.0, "25 medians, and never more than asked for"
    quick = Builds([0.01] * 16)
    assert quick.limit_s(30.0) == 2.5, "but a machine may be busy for a while"


def test_a_run_may_take_many_times_what_the_best_program_takes():
    assert run_limit_s(20.0, Bar()) == 20.0, "nothing is known yet"
    assert run_limit_s(20.0, Bar(incumbent_s=0.01)) == 10.0 and run_limit_s(20.0, Bar(incumbent_s=1.0)) == 20.0
    assert run_limit_s(20.0, Bar(incumbent_s=1e-4)) == 5.0, "a busy machine may stop for a while"
    assert run_limit_s(2.0, Bar(incumbent_s=1e-4)) == 2.0, "never more than asked for"


def test_builds_that_went_well_are_counted(crew):
    one = crew(plainly)
    rows = passage(one, ROWS[:3])
    list(rows.results())
    assert rows.rules.builds.seconds == [3.0] * 3


def test_a_row_that_took_too_long_ahead_is_not_built_again(crew):
    one = crew(lambda *_: ("build", signal.SIGALRM))
    ahead = Ahead(one.team, 9.0, 4)
    ahead.expect(TASK, ROWS[:1])
    one.team.revive()
    while one.team.busy():
        one.team.pump()
    ahead.work()
    while (built := next(iter(ahead._built.values()))).job.ending is None:
        one.team.pump()
    assert built.job.ending.reason == "time"
    assert ahead.take(TASK, ROWS[0]) is built, "its batch takes it as it is, and tells that it took too long"
