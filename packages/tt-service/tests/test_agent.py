"""An agent that the server forgets, and one that cannot do what it is given."""

from __future__ import annotations

import json
import time

import httpx
import pytest
from tt_service import wire
from tt_service.agent import Agent
from tt_service.http import Http
from tt_service.outbox import Outbox
from tt_service_house import Bench, house, job_of
from tt_spec.errors import PieceError


def test_a_server_that_is_started_again_between_two_answers_ends_no_agent(tmp_path):
    asked, met = [], []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/agents":
            met.append(json.loads(request.content)["name"])
            return httpx.Response(200, json=wire.AgentOut(id="me/a", lease_s=30.0, heartbeat_s=10.0).model_dump())
        asked.append(request.url.path)
        return httpx.Response(409 if len(asked) <= 3 else 204, json={"error": "introduce yourself first"})

    http = Http("http://127.0.0.1:9", None, sleep=lambda s: None, transport=httpx.MockTransport(answer))
    outbox = Outbox(tmp_path / "a.db", http.url)
    agent = Agent(http, outbox, Bench(), name="a", halt=lambda: "enough" if len(asked) > 4 else None)
    assert agent.run() == "enough" and met == ["a"] * 4
    outbox.close()


class Unable:
    def __getattr__(self, name):
        raise ValueError("another version of the space")


def test_an_agent_of_one_job_that_cannot_do_it_says_so_and_one_of_any_leaves_it_to_others(tmp_path):
    """The first has nobody to wait for: `tt tune --server` would wait for ever."""
    with house(tmp_path) as here:
        job = here.http.post("/v1/jobs", job_of(), wire.JobOut, wait_s=60)
        own = Agent(here.http, Outbox(tmp_path / "own.db", here.url), Bench(made=Unable()), name="own", jobs=[job.id])
        with pytest.raises(PieceError, match=rf"^cannot work for job {job.id[:8]}: .*another version of the space"):
            own.run()
        said = []
        here.agent("unable", Bench(made=Unable()), say=said.append)
        while not said:
            time.sleep(0.01)
        here.agent("able")
        assert here.ended(job)[-1].text == "done: 24 trials are spent"
    assert len(said) == 1 and said[0].startswith("gave back work of ")
