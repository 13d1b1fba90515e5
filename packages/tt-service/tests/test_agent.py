"""An agent beside a server that is started again and again."""

from __future__ import annotations

import json

import httpx
from tt_service import wire
from tt_service.agent import Agent
from tt_service.http import Http
from tt_service.outbox import Outbox
from tt_service_house import Bench


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
