"""Every route of the service, as the application itself lists them: with no key, wrong ones and hostile bodies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, seed, settings
from starlette.routing import Route
from starlette.testclient import TestClient
from tt_service import wire
from tt_service.app import Needs, build
from tt_service.database import path_of
from tt_service.desk import Desk
from tt_service.guard import Guard
from tt_service.keys import SCOPES, Keys
from tt_service.thinkers import Places
from tt_spec import StoreError, VirtualClock
from tt_spec.pieces.synthetic import synthetic_task

FREE = {"/readyz", "/v1", "/openapi.json"}
"""Paths for any valid key. All others have a scope, `/healthz` needs no key."""

AGENT = {"name": "bench-1", "device": "toy", "targets": ["*"], "evaluators": ["fixed"]}


@dataclass
class Place:
    """A method of a path, and the scopes of which it wants one."""

    method: str
    path: str
    scopes: tuple[str, ...]
    body: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def places(app: FastAPI) -> Iterator[Place]:
    """Every method of every route."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is no plain route: say here who may use it"
        asked: list[Any] = [d.call for d in route.dependant.dependencies] if isinstance(route, APIRoute) else []
        scopes = [call.scopes for call in asked if isinstance(call, Needs)]
        assert len(scopes) <= 1, f"{route.path} asks twice"
        body = isinstance(route, APIRoute) and (
            route.body_field is not None or "requestBody" in (route.openapi_extra or {})
        )
        for method in sorted(route.methods or ()):
            yield Place(method, route.path, scopes[0] if scopes else (), body)


class House:
    """A server without processes of jobs, behind its guard; ada has a job there."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.folder = VirtualClock(1e9), folder
        self.desk = Desk(folder / "shared.db", Places(0))
        self.keys = Keys(path_of(folder / "shared.db"), self.clock)
        self.app = build(self.desk)
        guard = Guard(self.app, self.keys, clock=self.clock)
        guard.throttle.most = 10**9
        self.client = TestClient(guard, raise_server_exceptions=False)
        self.job = wire.JobIn(name="m", tasks=[wire.TaskWire.of(synthetic_task())], device="toy", trials=8)
        self.places = list(places(self.app))
        self.mine = self.keys.add("ada", ["jobs", "agent", "read"])
        self.job_id = self.desk.add(self.job, "ada").record.id
        self.tell(self.mine, "POST", "/v1/agents", AGENT)

    def tell(self, key: str | None, method: str, path: str, body: Any = None) -> Any:
        """A request; a body that is no bytes becomes JSON."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.request(method, path, headers=headers, content=content, follow_redirects=False)

    def at(self, place: Place, **names: str) -> str:
        """The place's path, its names filled in."""
        known = {"job": self.job_id, "task": synthetic_task().key, "name": "bench-1", **names}
        return re.sub(r"{(\w+)}", lambda m: known[m[1]], place.path)

    @property
    def bodies(self) -> dict[str, Any]:
        """A sound body for each path that takes one."""
        return {
            "/v1/jobs": self.job.model_dump(),
            "/v1/jobs/{job}/judge": {"id": "q", "task": synthetic_task().key, "kind": "race", "rows": [], "wait_s": 0},
            "/v1/agents": AGENT,
            "/v1/agents/{name}/ask": {"rows": 4, "wait_s": 0},
            "/v1/agents/{name}/tell": {"batch": "b", "trials": [{"at": 0, "trial": {"config": [0], "error": "run"}}]},
            "/v1/agents/{name}/heartbeat": {"batches": ["b"]},
            "/v1/agents/{name}/release": {"batch": "b"},
        }


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    made = House(tmp_path_factory.mktemp("service"))
    yield made
    made.client.close()
    made.desk.close()
    made.keys.close()


def line(answer: Any) -> str:
    """The one line of a refusal."""
    assert set(answer.json()) == {"error"}, answer.text
    text = answer.json()["error"]
    assert text and len(text.splitlines()) == 1 and len(text) <= 1000
    return text


def test_every_route_says_who_may_use_it(house):
    undeclared = {p.path for p in house.places if not p.scopes}
    assert undeclared == FREE | {"/healthz"}
    assert {s for p in house.places for s in p.scopes} <= set(SCOPES)
    assert {p.path for p in house.places if p.body} == set(house.bodies), "a sound body for each, for the tests below"


def test_without_a_valid_key_every_route_gives_one_answer(house):
    late, gone = house.keys.add("eve", list(SCOPES), 1.0), house.keys.add("mallory", list(SCOPES))
    house.keys.revoke("mallory")
    house.clock.advance(2.0)
    wrong = house.mine[:-1] + ("A" if house.mine[-1] != "A" else "B")
    answers = set()
    unknown = [Place("GET", "/no/such/page", (), False), Place("PATCH", "/v1/jobs", (), False)]
    for place in [p for p in house.places if p.path != "/healthz"] + unknown:
        for key in (None, "", "x", wrong, late, gone):
            answer = house.tell(key, place.method, house.at(place), house.bodies.get(place.path))
            body = b'{"error": "a valid key is needed"}' if place.method == "HEAD" else answer.content
            answers.add((answer.status_code, body, answer.headers["www-authenticate"]))
    assert answers == {(401, b'{"error": "a valid key is needed"}', "Bearer")}
    assert house.tell(None, "GET", "/healthz").status_code == 200


def test_a_key_without_the_scope_is_refused_and_with_it_let_in(house):
    for place in house.places:
        if not place.scopes:
            continue
        others = [s for s in SCOPES if s not in (*place.scopes, "admin")]
        body = {} if place.path == "/v1/jobs" else house.bodies.get(place.path)  # a sound job would be waited for
        under = house.tell(house.keys.add("ada", others), place.method, house.at(place), body)
        assert under.status_code == 403 and all(s in line(under) for s in place.scopes), str(place)
        if not place.path.endswith(("/events", "/cancel")):  # which wait, and which ends ada's job
            for scope in (*place.scopes, "admin"):
                answer = house.tell(house.keys.add("ada", [scope]), place.method, house.at(place), body)
                assert answer.status_code not in (401, 403) and answer.status_code < 500, f"{place}: {answer.text}"


def test_a_job_of_another_user_is_like_one_that_does_not_exist(house):
    bob = house.keys.add("bob", ["jobs", "agent", "read"])
    no_such = "0" * 32
    for place in house.places:
        if "{job}" not in place.path or place.path.endswith("/tasks/{task}"):  # an agent measures for others
            continue
        body = house.bodies.get(place.path)
        theirs = house.tell(bob, place.method, house.at(place), body)
        none = house.tell(bob, place.method, house.at(place, job=no_such), body)
        assert theirs.status_code == none.status_code == 404, str(place)
        assert line(theirs).replace(house.job_id, no_such) == line(none)
    assert house.tell(bob, "GET", "/v1/jobs").json() == []
    assert house.desk.jobs[house.job_id].record.state not in ("paused", "cancelled")


def test_a_private_jobs_task_is_for_agents_of_its_user_alone(house):
    secret = house.desk.add(house.job.model_copy(update={"private": True}), "ada").record.id
    bob = house.keys.add("bob", ["agent"])
    task = synthetic_task().key
    theirs = house.tell(bob, "GET", f"/v1/jobs/{secret}/tasks/{task}")
    none = house.tell(bob, "GET", f"/v1/jobs/{'0' * 32}/tasks/{task}")
    assert theirs.status_code == 404 and theirs.content == none.content
    (rows,) = [p for p in house.folder.iterdir() if ".private-" in p.name and not p.name.endswith(("-wal", "-shm"))]
    assert rows.stat().st_mode & 0o077 == 0
    house.desk.cancel(house.desk.job(secret, None))


HOSTILE = {
    "nothing": b"",
    "half": b'{"name": ',
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "not finite": b'{"rows": NaN}',
    "huge number": b'{"rows": 1e999}',
    "digits": b'{"rows": ' + b"9" * 100_000 + b"}",
    "not UTF-8": b'{"name": "\xff"}',
    "half a character": b'{"name": "\\ud800", "batch": "\\ud800"}',
    "many values": b'{"tasks": [' + b"[]," * 3_000_000 + b"[]]}",
    "many choices": b'{"tasks": [{"spaces": [{"knobs": [{"choices": [' + b"1," * 200_000 + b"1]}]}]}]}",
    "unknown fields": b'{"__class__": "os.system", "$py": "os"}',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_bodies_are_one_line(house, kind):
    for place in house.places:
        if place.body:
            answer = house.tell(house.mine, place.method, house.at(place), HOSTILE[kind])
            assert 400 <= answer.status_code < 500, f"{place}: {answer.status_code} {answer.text[:200]}"
            line(answer)


WRONG: list[tuple[str, tuple[Any, ...], Any]] = [
    ("/v1/agents", ("name",), "../../etc/passwd"),
    ("/v1/agents", ("name",), "a/b"),
    ("/v1/agents", ("name",), ""),
    ("/v1/agents", ("name",), "a" * 101),
    ("/v1/agents", ("jobs",), ["x"] * 101),
    ("/v1/agents", ("protocol",), 10**7),
    ("/v1/agents/{name}/ask", ("rows",), 10**9),
    ("/v1/agents/{name}/ask", ("rows",), True),
    ("/v1/agents/{name}/ask", ("wait_s",), -1),
    ("/v1/agents/{name}/tell", ("batch",), "b" * 1000),
    ("/v1/agents/{name}/tell", ("trials", 0, "at"), -1),
    ("/v1/agents/{name}/tell", ("trials", 0, "trial", "config"), []),
    ("/v1/agents/{name}/tell", ("trials", 0, "trial", "config"), [2**40]),
    ("/v1/agents/{name}/tell", ("trials", 0, "trial", "seconds"), [1.0]),  # and an error
    ("/v1/agents/{name}/tell", ("trials", 0, "trial", "error"), "no-such-error"),
    ("/v1/agents/{name}/heartbeat", ("batches",), ["b"] * 65),
    ("/v1/jobs", ("name",), ""),
    ("/v1/jobs", ("trials",), 10**9),
    ("/v1/jobs", ("trials",), None),
    ("/v1/jobs", ("seed",), -1),
    ("/v1/jobs", ("tasks",), []),
    ("/v1/jobs", ("tasks", 0, "flops"), -1.0),
    ("/v1/jobs", ("tasks", 0, "payload"), "no base64!"),
    ("/v1/jobs", ("tasks", 0, "spaces", 0, "key"), "0"),
    ("/v1/jobs", ("tasks", 0, "spaces", 0, "knobs", 0, "choices"), []),
    ("/v1/jobs", ("tasks", 0, "spaces", 0, "knobs", 0, "active_if"), [99, [0]]),
    ("/v1/jobs", ("tasks", 0, "spaces", 0, "knobs"), []),
    ("/v1/jobs", ("tasks", 0, "spaces", 0, "knobs", 0), {"name": "k0", "kind": "tile", "choices": [False]}),
    ("/v1/jobs", ("store",), "/etc/passwd"),
]


@pytest.mark.parametrize(("path", "field", "value"), WRONG)
def test_a_wrong_field_is_one_line(house, path, field, value):
    body = json.loads(json.dumps(house.bodies[path]))
    inner = body
    for name in field[:-1]:
        inner = inner[name]
    inner[field[-1]] = value
    before = len(house.desk.jobs)
    answer = house.tell(house.mine, "POST", path.replace("{name}", "bench-1"), body)
    assert 400 <= answer.status_code < 500, f"{answer.status_code} {answer.text[:300]}"
    line(answer)
    assert len(house.desk.jobs) == before


@pytest.mark.parametrize(
    "name", ["..%2F..%2Fetc%2Fpasswd", "%00", "x" * 5000, "%ff", "a%0Ab", "%2e%2e", "'%20OR%201=1"]
)
def test_a_path_as_a_name_leads_nowhere(house, name):
    for place in house.places:
        if "{" in place.path:
            path = re.sub(r"{\w+}", name, place.path)
            answer = house.tell(house.mine, place.method, path, house.bodies.get(place.path))
            found = answer.status_code == 200 and answer.json()
            assert found == [] or 400 <= answer.status_code < 500, f"{place}: {answer.status_code} {answer.text[:300]}"


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (StoreError("/srv/shared.db: disk is full"), 503, "the server's store cannot be used now"),
        (KeyError("/srv/secret"), 500, "a defect of the server; its log says more"),
        (ValueError("/srv/secret"), 500, "a defect of the server; its log says more"),
    ],
)
def test_what_fails_inside_is_told_to_the_log_alone(house, monkeypatch, caplog, error, status, says):
    def fails(*_):
        raise error

    monkeypatch.setattr(house.desk, "listed", fails)
    answer = house.tell(house.mine, "GET", "/v1/jobs")
    assert (answer.status_code, line(answer)) == (status, says)
    assert "/srv/s" in caplog.text


def test_the_document_says_nothing_of_keys(house):
    text = json.dumps(house.tell(house.mine, "GET", "/openapi.json").json())
    assert house.mine not in text and house.desk.histories.path not in text


# -- what schemathesis makes of the document ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def operations(house):
    """Every operation of the OpenAPI document, by its name."""
    import schemathesis  # here, for it takes seconds and every worker reads this file
    from schemathesis.core.result import Ok

    found = {}
    for result in schemathesis.openapi.from_dict(house.app.openapi()).get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()
        found[f"{operation.method.upper()} {operation.path}"] = operation
    return found


def hasty(name: str, values: Any) -> Any:
    """The same, but nobody waits long for work or news."""
    if not isinstance(values, dict) or not name.endswith(("/ask", "/events")):
        return values
    wait_s = values.get("wait_s", 0)
    return {**values, "wait_s": min(wait_s, 0.01) if isinstance(wait_s, int | float) else wait_s}


def survives(house: House, keys: list[str | None], name: str, case: Any) -> None:
    """The case's request, of ada's job and agent, with each key is answered, and not by a 5xx."""
    body = hasty(name, case.body) if case.media_type else None
    query = {k: str(v) for k, v in hasty(name, case.query or {}).items()}
    path = house.at(Place(case.method, case.path, (), False)) + (
        f"?{urlencode(query, errors='surrogatepass')}" if query else ""
    )
    for key in keys:
        answer = house.tell(key, case.method, path, body)
        assert answer.status_code < 500, f"{name} {query} {str(body)[:500]}: {answer.text}"
        assert key is not None or answer.status_code == 401 or name == "GET /healthz"


def fuzz(house: House, keys: list[str | None], name: str, operation: Any) -> None:
    """Try some requests that fit the document and some that do not."""
    from schemathesis import GenerationMode

    sound, wrong = (
        operation.as_strategy(generation_mode=m) for m in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    )

    @seed(1)
    @settings(max_examples=6, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sound | wrong)
    def tried(case):
        survives(house, keys, name, case)

    tried()


def test_no_request_of_the_documents_making_breaks_the_server(house, operations, monkeypatch):
    monkeypatch.setattr("tt_service.app.READY_S", 0.01)
    keys = [None, *(house.keys.add("ada", [scope]) for scope in SCOPES)]
    assert len(operations) >= 15
    for name, operation in operations.items():
        fuzz(house, keys, name, operation)
