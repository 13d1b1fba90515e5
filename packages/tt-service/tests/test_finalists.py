"""Finalists of a job are raced and checked by agents, for a client that cannot: real HTTP, a formula for times."""

from __future__ import annotations

import numpy as np
import pytest
from tt_service import finalists as module
from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.finalists import Finalists
from tt_service.http import Gone
from tt_service_house import Bench, Judge, house, job_of
from tt_spec.errors import ProgramError
from tt_spec.pieces.synthetic import synthetic_task

TASK = synthetic_task()
ROWS = np.array([[0, 0, 0, 1], [0, 0, 0, 2]])


class Strict(Judge):
    """Says of one row that it computes something else, and dies of another."""

    def check(self, task, row):
        if tuple(row) == (0, 0, 0, 3):
            raise ProgramError("it crashed", "run")
        return "it differs" if tuple(row) == (0, 0, 0, 2) else None


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with house(tmp_path_factory.mktemp("finals")) as found:
        yield found


def job(here, **more):
    return here.http.post("/v1/jobs", job_of(trials=8, **more), wire.JobOut, wait_s=60)


def test_an_agent_races_and_checks_while_the_job_is_paused_and_when_it_is_over(here):
    made = job(here)
    here.http.post(f"/v1/jobs/{made.id}/pause", None, wire.JobOut)
    here.agent("strict", Bench(made=Strict()))
    finals = Finalists(here.http, made.id, {"toy": "1"})
    raced = finals.race(TASK, ROWS, rounds=3, untuned=True)
    assert [len(times) for times in raced] == [3, 3, 1] and raced[:2] == Judge().race(TASK, ROWS, rounds=3)
    assert finals.check(TASK, ROWS[0]) is None and finals.check(TASK, ROWS[1]) == "it differs"
    with pytest.raises(ProgramError, match="it crashed") as e:
        finals.check(TASK, np.array([0, 0, 0, 3]))
    assert e.value.error == "run"
    told = here.http.get(f"/v1/jobs/{made.id}", wire.JobOut)
    assert (told.state, told.trials) == ("paused", 0), "its rows stay where they are"
    here.http.post(f"/v1/jobs/{made.id}/resume", None, wire.JobOut)
    assert here.ended(made)[-1].text == "done: 8 trials are spent"
    assert finals.race(TASK, ROWS, untuned=False) == Judge().race(TASK, ROWS)
    assert not here.server.desk.broker.owners, "nothing is left at the broker"


def test_the_same_question_twice_is_one_and_has_one_answer(here):
    asked = wire.JudgeIn(id="q", task=TASK.key, kind="race", rows=ROWS.tolist(), wait_s=0)
    made = job(here, device="nowhere")
    first = here.http.post(f"/v1/jobs/{made.id}/judge", asked, wire.JudgeOut)
    assert not first.done and "its device is toy" in first.waiting
    here.http.post(f"/v1/jobs/{made.id}/judge", asked, wire.JudgeOut)
    assert [c.kind for c in here.server.desk.broker.calls.values()].count("race") == 1
    here.agent("late", Bench(device="nowhere"))
    answers = [
        here.http.post(f"/v1/jobs/{made.id}/judge", asked.model_copy(update={"wait_s": w}), wire.JudgeOut, wait_s=w)
        for w in (30, 0)
    ]
    assert answers[0].done and answers[0] == answers[1] and answers[0].agent == "me/late"


def test_what_is_none_of_the_jobs_is_refused(here):
    made = job(here)
    sound = {"id": "r", "task": TASK.key, "kind": "check", "rows": ROWS[:1].tolist()}
    for wrong, said in (
        ({"task": "other"}, "no task 'other'"),
        ({"rows": [[0, 0]]}, "not of the space"),
        ({"rows": [[0, 0, 0, 10**6]]}, "not of the space"),
        ({"rows": ROWS.tolist()}, "a check is of one row"),
    ):
        with pytest.raises(Gone, match=said) as e:
            here.http.post(f"/v1/jobs/{made.id}/judge", wire.JudgeIn.model_validate({**sound, **wrong}), wire.JudgeOut)
        assert e.value.status == 422


def test_programs_of_another_compiler_and_finalists_that_nobody_judges_do_not_ship(here, monkeypatch):
    with pytest.raises(ServiceError, match=r"made by toy 1, the file would be made by toy 2 here"):
        Finalists(here.http, job(here).id, {"toy": "2"}).check(TASK, ROWS[0])
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    ticks = iter(range(0, 10**6, 10))
    lonely, said = job(here, device="nobody's"), []
    with pytest.raises(ServiceError, match=r"nobody is left to race and verify .* its device is toy"):
        Finalists(here.http, lonely.id, {}, say=said.append, clock=lambda: next(ticks)).check(TASK, ROWS[0])
    assert len(said) == 1 and said[0].startswith("the finalists wait: no agent of")
