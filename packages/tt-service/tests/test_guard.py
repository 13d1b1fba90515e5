"""The guard before every route: keys, bodies, failures. Called as a server calls it, without a socket."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from tt_service.guard import Guard, Limits, Refused, Throttle, who_of
from tt_service.keys import Keys
from tt_spec import StoreError, VirtualClock

JSON = {"content-type": "application/json"}


@dataclass
class App:
    """An application that notes what reaches it, waits for `until`, and answers with its body's length."""

    until: asyncio.Event | None = None
    error: Exception | None = None
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)
    cancelled: bool = False

    async def __call__(self, scope, receive, send) -> None:
        body = (await receive())["body"]
        name = who_of(scope).name if "state" in scope else ""
        self.seen.append((scope["path"], name, body))
        if self.error is not None:
            raise self.error
        try:
            if self.until is not None:
                await self.until.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(body)).encode()})


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    read: int

    @property
    def error(self) -> str:
        text = json.loads(self.body)["error"]
        assert "\n" not in text and len(text) < 200
        return text


@dataclass
class Desk:
    """A guard with its application and keys."""

    guard: Guard
    app: App
    keys: Keys
    clock: VirtualClock

    async def request(self, path: str = "/v1/x", key: str | None = None, parts: list[Any] = [], **more: Any) -> Answer:  # noqa: B006
        """A request whose body comes in these parts; a part that is no bytes is seconds to wait, None is an end."""
        method, client = more.get("method", "POST"), more.get("client", "10.0.0.1")
        headers = dict(more.get("headers", {}))
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        if parts and "content-length" not in headers:
            headers = {"transfer-encoding": "chunked", **JSON, **headers}
        scope = {"type": "http", "method": method, "path": path, "client": (client, 1), "query_string": b""}
        scope["headers"] = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        left, sent, read = list(parts), [], 0

        async def receive() -> dict[str, Any]:
            nonlocal read
            while left and isinstance(left[0], float):
                await asyncio.sleep(left.pop(0))
            if left and left[0] is None:
                return {"type": "http.disconnect"}
            if left:
                part = left.pop(0)
                read += len(part)
                return {"type": "http.request", "body": part, "more_body": bool(left)}
            await asyncio.Event().wait()
            raise AssertionError("nothing comes after the body")

        async def send(message):
            sent.append(message)

        await self.guard(scope, receive, send)
        assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
        found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
        return Answer(sent[0]["status"], found, sent[1]["body"], read)


@pytest.fixture
def desk(tmp_path):
    made = []

    def make(app: App | None = None, **limits: Any) -> Desk:
        app, clock = app or App(), VirtualClock(1e9)
        keys = Keys(tmp_path / "s.service", clock)
        made.append(Desk(Guard(app, keys, Limits(**limits), clock), app, keys, clock))
        return made[-1]

    yield make
    for d in made:
        assert d.guard.held == 0, "what was read is let go"
        d.keys.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Waits of the throttle are counted, not waited for."""
    slept = []
    real = asyncio.sleep

    async def sleep(seconds):
        slept.append(seconds)
        await real(0 if seconds > 0.05 else seconds)

    monkeypatch.setattr("tt_service.guard.asyncio.sleep", sleep)
    return slept


def run(coroutine):
    return asyncio.run(coroutine)


def test_health_is_for_everybody_and_gets_no_body(desk):
    d = desk()
    assert run(d.request("/healthz", method="GET")).status == 200
    answer = run(d.request("/healthz", parts=[b"x" * 100]))
    assert (answer.status, answer.read, d.app.seen) == (200, 0, [("/healthz", "", b"")] * 2)


@pytest.mark.parametrize(
    "path", ["/healthz/", "/readyz", "/", "/docs", "/openapi.json", "//healthz", "/v1/jobs", "/healthz/../v1/jobs"]
)
def test_everything_else_wants_a_key(desk, path):
    d = desk()
    assert run(d.request(path, method="GET")).status == 401 and d.app.seen == []


def test_all_that_is_no_key_gets_one_answer_before_the_body_is_read(desk):
    d = desk()
    good, late, gone = d.keys.add("ada", ["jobs"]), d.keys.add("ada", ["jobs"], 5.0), d.keys.add("bob", ["jobs"])
    d.keys.revoke("bob")
    d.clock.advance(6)
    headers = [
        {},
        {"authorization": good},
        {"authorization": f"Basic {good}"},
        {"authorization": f"Bearer {good[:-1]}"},
        {"authorization": f"Bearer {late}"},
        {"authorization": f"Bearer {gone}"},
        {"authorization": "Bearer " + "x" * 10_000},
        {"authorization": "Bearer \xff\x00"},
        {"x-key": good},
    ]
    answers = [run(d.request(parts=[b"{}"], headers=h)) for h in headers]
    assert {(a.status, a.body, a.read, *a.headers.items()) for a in answers} == {
        (401, answers[0].body, 0, *answers[0].headers.items())
    }
    assert answers[0].error == "a valid key is needed" and answers[0].headers["www-authenticate"] == "Bearer"
    assert d.app.seen == [] and run(d.request(key=good, parts=[b"{}"])).status == 200


def test_two_keys_are_none(desk):
    d = desk()
    text = f"Bearer {d.keys.add('ada', ['jobs'])}".encode()
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/x",
        "client": None,
        "headers": [(b"authorization", text)] * 2,
    }
    sent = []

    async def send(message):
        sent.append(message)

    run(d.guard(scope, None, send))  # pyright: ignore[reportArgumentType]
    assert sent[0]["status"] == 401


def test_the_application_hears_who_it_is_and_gets_the_whole_body(desk):
    d = desk()
    key = d.keys.add("ada", ["jobs"])
    answer = run(d.request(key=key, parts=[b'{"a"', b":", b"1}"]))
    assert (answer.status, answer.body, d.app.seen) == (200, b"7", [("/v1/x", "ada", b'{"a":1}')])
    assert run(d.request(key=key, method="GET")).body == b"0"


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/x", "/v1/jobs", "/v1/jobs/"])
def test_bodies_are_counted_as_they_stream(desk, path):
    d = desk(body=1000, jobs=5000)
    key, most = d.keys.add("ada", ["jobs"]), 1000 if path == "/v1/x" else 5000
    fits = b'"' + b"x" * (most - 2) + b'"'
    assert run(d.request(path, key, parts=[fits[:500], fits[500:]])).status == 200
    answer = run(d.request(path, key, parts=[b"x" * 500] * 100))
    assert answer.status == 413 and answer.error == f"the body has more than {most:,} bytes"
    assert answer.read == most + 500, "no more is asked for"
    announced = run(d.request(path, key, parts=[fits], headers={"content-length": str(most + 1), **JSON}))
    assert (announced.status, announced.read, len(d.app.seen)) == (413, 0, 1)


def test_a_body_that_is_announced_shorter_than_it_is_is_counted_too(desk):
    d = desk(body=1000)
    key = d.keys.add("ada", ["jobs"])
    assert run(d.request(key=key, parts=[b"x" * 600] * 2, headers={"content-length": "2", **JSON})).status == 413
    for wrong in ("x", "1e3", ""):
        assert run(d.request(key=key, parts=[b"{}"], headers={"content-length": wrong, **JSON})).status == 400


def test_all_bodies_together_are_bounded(desk):
    d = desk(App(), held=100, watch_s=0.01)
    key = d.keys.add("ada", ["jobs"])
    body = b'"' + b"x" * 58 + b'"'

    async def two():
        d.app.until = asyncio.Event()
        first = asyncio.ensure_future(d.request(key=key, parts=[body]))
        while not d.app.seen:
            await asyncio.sleep(0)
        second = await d.request(key=key, parts=[body])
        d.app.until.set()
        return await first, second, await d.request(key=key, parts=[body])

    first, second, third = run(two())
    assert (first.status, second.status, third.status) == (200, 503, 200) and second.headers["retry-after"] == "5"


def test_a_body_that_does_not_arrive_is_not_waited_for(desk):
    d = desk(body_s=0.02)
    key = d.keys.add("ada", ["jobs"])
    answer = run(d.request(key=key, parts=[b"{", *[0.01] * 10, b"}"]))
    assert answer.status == 408 and answer.error == "the body did not arrive in 0.02 s"
    assert run(d.request(key=key, parts=[b"{", None])).error == "the body broke off"
    assert d.app.seen == []


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (gzip.compress(b"[" + b" " * 10**7 + b"]"), {"content-encoding": "gzip"}, 415, "without content-encoding"),
        (b"{}", {"content-encoding": "identity, br"}, 415, "without content-encoding"),
        (b"{}", {"content-type": "text/plain"}, 415, "application/json"),
        (b"a=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        (b"{", {}, 400, "not JSON"),
        (b'{"a": NaN}', {}, 400, "holds NaN"),
        (b"[" * 50_000, {}, 400, "nested deeper"),
        (b'{"knobs": [{"choices": [' + b"1," * 200_000 + b"1]}]}", {}, 400, "'choices' has 200,001 entries"),
    ],
)
def test_hostile_bodies_reach_nobody(desk, body, headers, status, says):
    d = desk()
    answer = run(d.request(key=d.keys.add("ada", ["jobs"]), parts=[body], headers=headers))
    assert answer.status == status and says in answer.error and d.app.seen == []


# -- keys that end, failures -------------------------------------------------------------------------------------------


def test_a_key_that_is_revoked_ends_what_waits_under_it(desk):
    d = desk(watch_s=0.01)
    key = d.keys.add("ada", ["agent"])

    async def waiting():
        d.app.until = asyncio.Event()
        request = asyncio.ensure_future(d.request(key=key))
        while not d.app.seen:
            await asyncio.sleep(0.01)
        d.keys.revoke("ada")
        return await asyncio.wait_for(request, 10)

    assert run(waiting()).status == 401 and d.app.cancelled


def test_an_answer_that_has_begun_is_cut_off_and_not_answered_twice(desk):
    async def begins(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("in the middle")

    d = desk()
    key = d.keys.add("ada", ["jobs"])
    d.guard.app = begins
    scope = {"type": "http", "method": "GET", "path": "/v1/x", "client": None}
    scope["headers"] = [(b"authorization", f"Bearer {key}".encode())]
    sent = []

    async def send(message):
        sent.append(message["type"])

    run(d.guard(scope, None, send))  # pyright: ignore[reportArgumentType]
    assert sent == ["http.response.start"]


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (StoreError("/srv/shared.db: disk is full"), 503, "the server's store cannot be used now"),
        (KeyError("secret"), 500, "a defect of the server; its log says more"),
    ],
)
def test_what_fails_inside_is_one_line_that_tells_nothing(desk, caplog, error, status, says):
    d = desk(App(error=error))
    logging.getLogger("tt_service").propagate = True
    answer = run(d.request(key=d.keys.add("ada", ["jobs"])))
    assert (answer.status, answer.error) == (status, says)
    assert str(error) in caplog.text


def test_keys_that_cannot_be_looked_up_are_no_defect(desk):
    d = desk()
    key = d.keys.add("ada", ["jobs"])
    d.keys.close()
    for path in d.guard.keys.path.parent.iterdir():  # pyright: ignore[reportAttributeAccessIssue]
        path.write_bytes(b"no database" * 1000)
    answer = run(d.request(key=key))
    assert answer.status == 503 and answer.headers["retry-after"] == "5" and d.app.seen == []


def test_ten_failures_a_minute_are_answered_at_once_and_later_ones_later(desk, hasty):
    d = desk()
    good = d.keys.add("ada", ["jobs"])

    async def many(n, client="10.0.0.1"):
        return {(await d.request(key="tt-no", client=client)).status for _ in range(n)}

    assert run(many(10)) == {401} and hasty == []
    assert run(many(8)) == {401} and hasty == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert run(d.request(key=good)).status == 200 and len(hasty) == 8, "a valid key never waits"
    assert run(many(1, "10.0.0.2")) == {401} and len(hasty) == 8, "nor does another address"
    d.clock.advance(61)
    assert run(many(10)) == {401} and len(hasty) == 8


def test_those_who_are_held_back_are_few(desk):
    d = desk()

    async def crowd():
        return [a.status for a in await asyncio.gather(*(d.request(key="tt-no") for _ in range(40)))]

    statuses = run(crowd())
    assert statuses.count(429) >= 10 and set(statuses) == {401, 429}


def test_what_the_throttle_remembers_is_bounded():
    throttle = Throttle(VirtualClock(), addresses=100)
    for i in range(1000):
        throttle.failed(str(i))
    for _ in range(1000):
        throttle.failed("x")
    assert len(throttle._failed) == 100 and len(throttle._failed["x"]) <= 50


def test_a_network_of_version_6_is_one_address(desk, hasty):
    d = desk()

    async def many():
        for i in range(12):
            await d.request(key="tt-no", client=f"2001:db8::{i:x}")

    run(many())
    assert len(hasty) == 2


def test_a_web_socket_is_closed_and_lifespan_passes(desk):
    d, sent = desk(), []

    async def send(message):
        sent.append(message)

    run(d.guard({"type": "websocket", "path": "/"}, None, send))  # pyright: ignore[reportArgumentType]
    assert sent == [{"type": "websocket.close", "code": 1008}] and d.app.seen == []

    async def lifespan(scope, receive, send):
        await send(scope["type"])

    d.guard.app = lifespan
    run(d.guard({"type": "lifespan"}, None, send))  # pyright: ignore[reportArgumentType]
    assert sent[-1] == "lifespan"


def test_a_refusal_is_one_of_the_family():
    assert Refused(413, "x", Retry_After="1").headers == {"Retry-After": "1"}
