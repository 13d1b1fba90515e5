"""The guard under uvicorn: what is refused is answered while the body is still to come, and the connection ends."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest
import uvicorn
from tt_service.guard import Guard, Limits
from tt_service.heads import Heads
from tt_service.keys import Keys
from tt_service.listening import Listening


async def app(scope, receive, send):
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"%02d" % len(body)})


class Served(uvicorn.Server):
    """In a thread; `port` once it takes requests."""

    def install_signal_handlers(self) -> None:
        """None: this is not the main thread."""

    @property
    def port(self) -> int:
        while not self.started:
            time.sleep(0.01)
        return self.servers[0].sockets[0].getsockname()[1]


@contextmanager
def served(folder):
    """A port, and a key."""
    keys = Keys(folder / "s.service")
    key = keys.add("ada", ["jobs"])
    guard = Guard(app, keys, Limits(body=100_000, body_s=0.3))
    options = {**Listening(port=0).options(), "log_config": None}
    server = Served(uvicorn.Config(guard, lifespan="off", log_level="error", **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.port, key
    server.should_exit = True
    thread.join()
    keys.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def talk(port: int, head: str, *parts: bytes) -> tuple[str, str]:
    """Status line and whole answer to a request whose head and parts are sent; reads until the server closes: a
    reset where it left some of them unread."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s, suppress(ConnectionError):
        s.sendall(head.replace("\n", "\r\n").encode())
        for part in parts:
            with suppress(ConnectionError):
                s.sendall(part)
        while part := s.recv(65536):
            found += part
            if b"HTTP/1.1 200" in found and found.endswith((b"00", b"02", b"03")):
                break
    text = found.decode()
    return text.split("\r\n")[0], text


def head(key: str | None, *headers: str, path: str = "/v1/x") -> str:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\n".join([*lines, *([] if key is None else [f"Authorization: Bearer {key}"]), "", ""])


def test_a_sound_request_is_answered(place):
    port, key = place
    assert talk(port, head(key, "Content-Length: 2"), b"{}")[1].endswith("02")
    assert talk(port, head(key, "Transfer-Encoding: chunked"), b"1\r\n[\r\n", b"2\r\n1]\r\n0\r\n\r\n")[1].endswith("03")


@pytest.mark.parametrize("begun", ["", "POST /v1/x HTTP/1.1\nHost: x\nX-Slow: "])
def test_a_head_that_never_ends_ends_there_however_it_trickles(place, monkeypatch, begun):
    port, key = place
    monkeypatch.setattr(Heads, "HEAD_S", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        s.settimeout(0.05)
        s.sendall(begun.replace("\n", "\r\n").encode())
        until, closed = time.monotonic() + 20, False
        while not closed and time.monotonic() < until:
            with suppress(TimeoutError):
                try:
                    closed = s.recv(100) == b""
                except ConnectionResetError:  # it closed before it had read all that was sent
                    closed = True
            if begun and not closed:
                with suppress(ConnectionError):
                    s.sendall(b"a")
    assert closed
    assert talk(port, head(key, "Content-Length: 2"), b"{}")[1].endswith("02"), "others are answered"


def test_a_connection_may_rest_between_two_requests_for_longer_than_a_head_may_take(place, monkeypatch):
    port, key = place
    monkeypatch.setattr(Heads, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        for _ in range(2):
            s.sendall(head(key, "Content-Length: 2").replace("\n", "\r\n").encode() + b"{}")
            found = b""
            while not found.endswith(b"02"):
                part = s.recv(1000)
                assert part, "closed while it rested"
                found += part
            time.sleep(0.5)


def test_without_a_key_nothing_of_the_body_is_waited_for(place):
    port, _ = place
    for more in ("Content-Length: 60000000", "Transfer-Encoding: chunked"):
        status, text = talk(port, head(None, more), b"")
        assert "401" in status and "connection: close" in text.lower() and "server:" not in text.lower()


@pytest.mark.parametrize(
    ("headers", "parts", "status"),
    [
        (["Content-Length: 100001"], [b"{"], "413"),
        (["Transfer-Encoding: chunked"], [b"10000\r\n" + b" " * 65536 + b"\r\n"] * 2, "413"),
        (["Content-Length: 10"], [b"{"], "408"),
        (["Transfer-Encoding: chunked"], [b"1\r\n{\r\n"], "408"),
        (["Content-Length: 10", "Content-Encoding: gzip"], [b"\x1f\x8b"], "415"),
        (["Content-Length: 10", "Content-Length: 2"], [b"{}"], "400"),
        (["Content-Length: -1"], [b"{}"], "400"),
        (["Transfer-Encoding: chunked"], [b"ffffffffffffffffff\r\n"], "4"),
    ],
)
def test_what_is_too_much_too_slow_or_wrong_ends_there(place, headers, parts, status):
    port, key = place
    found, _ = talk(port, head(key, *headers), *parts)
    assert found.split(" ")[1].startswith(status), found


def test_health_keeps_its_answer(place):
    port, _ = place
    assert talk(port, "GET /healthz HTTP/1.1\nHost: x\n\n")[1].endswith("00")


def held(port: int, n: int) -> list[socket.socket]:
    """So many connections on which each a first request was answered, and which are kept."""
    found = []
    for _ in range(n):
        found.append(socket.create_connection(("127.0.0.1", port), timeout=20))
        found[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert found[-1].recv(65536).startswith(b"HTTP/1.1 200")
    return found


def test_one_connection_too_many_is_told_when_to_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(Heads, "SERVED", 8)
    monkeypatch.setattr(Heads, "TURNED_AWAY", 2)
    with served(tmp_path) as (port, key), ExitStack() as those:
        for s in held(port, 8):
            those.enter_context(s)
        status, text = talk(port, head(key))
        assert status == "HTTP/1.1 503 Service Unavailable", text
        assert "retry-after: 5" in text.lower() and '{"error": "too many connections now"}' in text
        for _ in range(2):
            those.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        assert talk(port, head(key)) == ("", ""), "beyond those that are turned away a connection is closed unheard"
        those.pop_all().close()
        while talk(port, head(key))[0] != "HTTP/1.1 200 OK":  # as soon as the server has seen them go
            pass
