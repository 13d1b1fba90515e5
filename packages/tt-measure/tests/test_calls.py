"""Calls of a backend's methods through a pool, every word of whose workers a test says."""

import inspect
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from tt_measure import WorkerError, WorkerPool
from tt_measure.pool import TRIES
from tt_spec.testing.examples import wide_task
from tt_spec.types import Bar

sys.path.insert(0, str(Path(__file__).parent))
from tt_measure_scripted import Crew

TASK = wide_task()


@pytest.fixture
def calls(monkeypatch):
    """A pool whose workers answer calls as told, and what they were asked."""
    made = []

    def make(answer, workers=1, **options):
        crew = Crew(monkeypatch, lambda kind, *said: answer(*said), workers)
        pool = WorkerPool(workers=workers, lock=False, **options)
        pool._team = crew.team
        made.append(crew)
        return pool, crew

    yield make
    for crew in made:
        crew.end()


def test_a_call_is_made_once_and_those_that_time_are_alone(calls):
    pool, crew = calls(lambda *_: ("call", ("done", [[1.0]])))
    row = np.zeros((1, 4), dtype=np.int64)
    pool.call("threads", None)
    pool.race(TASK, row)
    pool.check(TASK, row[0])
    pool.doubts(TASK, row[0])
    pool.race_models(["a.so"], {})
    pool.profile_models(["a.so"], {})
    pool.run_model("a.so", {})
    pool.nudge_model("a.so", {}, 0.5, [3])
    asked = [(said[2], said[4]) for said in crew.jobs if said[0] == "call"]
    assert asked == [
        ("threads", False),
        ("race", True),
        ("check", True),
        ("doubts", False),
        ("race_models", True),
        ("profile_models", True),
        ("run_model", True),
        ("nudge_model", True),
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_library_runs_beside_its_caller_in_as_many_workers_as_there_are(calls, workers):
    pool, crew = calls(lambda _, method, *rest: ("call", ("done", [method])), workers=workers)
    wait = pool.start_model("a.so", {}, 0.5, [3])
    assert wait() == (["run_model"], ["nudge_model"])
    asked = {said[2]: said[4] for said in crew.jobs if said[0] == "call"}
    assert asked == {"run_model": False, "nudge_model": workers == 1}, "not alone: the caller compiles meanwhile"
    assert crew.kinds() == "cc", "each once"


def test_a_library_whose_run_fails_beside_its_caller_is_run_again_alone(calls):
    answers = {False: ("raised", "it fell"), True: ("done", ["outputs"])}
    pool, crew = calls(lambda _, method, args, alone, *rest: ("call", answers[alone]), workers=2)
    assert pool.start_model("a.so", {}, 0.5, [3])() == (["outputs"], ["outputs"])
    assert crew.kinds() == "cccc"


def test_a_call_that_fails_is_not_made_again(calls):
    pool, crew = calls(lambda *_: ("call", ("raised", "it fell")))
    with pytest.raises(WorkerError, match="backend method 'threads' failed: it fell"):
        pool.call("threads", None)
    assert crew.kinds() == "c"


def test_a_call_whose_workers_are_killed_is_made_three_times(calls):
    pool, crew = calls(lambda *_: ("call", signal.SIGKILL))
    with pytest.raises(WorkerError, match="SIGKILL"):
        pool.call("threads", None)
    assert crew.kinds() == "c" * TRIES == "ccc"


def test_an_evaluation_has_ten_seconds_more_than_the_bars_cap_unless_told(calls):
    for options, limit_s in (({}, 13.0), ({"run_timeout_s": 5.0}, 5.0)):
        pool, crew = calls(lambda *_: ("build", ("raised", "it fell")), **options)
        pool._reference.look(())
        answers = iter([("build", ("done", {})), ("run", ("raised", "it fell"))])
        crew.plays = lambda *_, answers=answers: next(answers)
        list(pool.measure(TASK, np.zeros((1, 4), dtype=np.int64), Bar(cap_s=3.0)))
        (terms,) = (said[-1] for said in crew.jobs if said[0] == "time")
        assert terms.run_s == limit_s


def test_a_worker_has_its_share_of_the_memory_unless_told(monkeypatch):
    monkeypatch.setattr("tt_measure.pool._memory", lambda: 10e9)
    assert WorkerPool(workers=3, lock=False)._ready().memory_bytes == pytest.approx(2e9)
    assert WorkerPool(workers=3, lock=False, memory_bytes=7e9)._ready().memory_bytes == 7e9


def test_defaults_are_those_that_are_documented():
    arguments = re.split(r"\n {8}(?=\w+: )", WorkerPool.__doc__ or "")
    said = {a.split(":")[0]: m[1] for a in arguments if (m := re.search(r"\(default: (\d+)\)", a))}
    given = inspect.signature(WorkerPool).parameters
    assert {name: given[name].default for name in said} == {name: float(value) for name, value in said.items()}
    assert {"build_timeout_s", "check_timeout_s", "open_timeout_s", "chunk", "grace_s"} <= said.keys()
