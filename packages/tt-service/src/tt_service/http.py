"""The client's side of HTTP: one server, one key, one line for what goes wrong, and patience where that helps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from tt_service import wire
from tt_service.errors import ServiceError
from tt_service.listening import server_url

__all__ = ["Gone", "Http"]

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0


class Gone(ServiceError):
    """The server says no, and asking again would not help.

    Args:
        status: HTTP's.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Http:
    """A server.

    Args:
        url: "http://127.0.0.1:8420".
        key: Goes into a header and nowhere else.
        sleep: Waits, seconds.
        stop: Asked before each wait whether to give up, which raises `ServiceError`.
        transport: Of httpx; None is the network. For tests.
        insecure: Whether the key may cross a network in plain text.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        sleep: Callable[[float], None] = time.sleep,
        stop: Callable[[], bool] = lambda: False,
        transport: httpx.BaseTransport | None = None,
        insecure: bool = False,
    ) -> None:
        self.url, self.sleep, self.stop = server_url(url, insecure), sleep, stop
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(30.0, connect=10.0)
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, transport=transport)

    def hello(self) -> wire.Hello:
        """Versions first: raises `ServiceError` that says what to upgrade, or why there is no talking at all."""
        strange = f"{self.url} is no tt server: its /v1 does not say a protocol"
        try:
            found = self._once("GET", "/v1", None, None, 10.0).json()
            protocol, oldest = int(found["protocol"]), int(found["oldest"])
        except Gone as e:
            raise ServiceError(strange) if e.status == 404 else e from e
        except (ValueError, KeyError, TypeError) as e:
            raise ServiceError(strange) from e
        if protocol < wire.OLDEST:
            raise ServiceError(
                f"the server {self.url} speaks protocol {protocol}, this tt-service {wire.OLDEST} to {wire.PROTOCOL}:"
                " upgrade tt-service on the server"
            )
        if oldest > wire.PROTOCOL:
            raise ServiceError(
                f"the server {self.url} speaks protocol {oldest} and later, this tt-service {wire.PROTOCOL}:"
                " pip install --upgrade tt-service"
            )
        known = {name: found[name] for name in wire.Hello.model_fields if name in found}
        return wire.Hello.model_validate(known)

    def get(self, path: str, out: type[M], patient: bool = True, wait_s: float = 0.0, **query: Any) -> M:
        """A page as a model."""
        return self._read(out, self._send("GET", path, None, query, patient, wait_s).content)

    def get_list(self, path: str, out: type[M], **query: Any) -> list[M]:
        """A page that is a list of models."""
        content = self._send("GET", path, None, query, False, 0.0).content
        adapter: TypeAdapter[list[M]] = TypeAdapter(list[out])  # pyright: ignore[reportInvalidTypeForm]
        return self._understood(adapter.validate_json, content)

    def post(self, path: str, body: BaseModel | None, out: type[M], patient: bool = True, wait_s: float = 0.0) -> M:
        """Send a model, receive one."""
        return self._read(out, self._send("POST", path, body, None, patient, wait_s).content)

    def ask(self, path: str, body: BaseModel, wait_s: float) -> wire.Asked | None:
        """Work, None where there is none now."""
        answer = self._send("POST", path, body, None, True, wait_s)
        return None if answer.status_code == 204 else self._read(wire.Asked, answer.content)

    def send(self, path: str, body: BaseModel, patient: bool = True) -> None:
        """Send a model; the answer says nothing."""
        self._send("POST", path, body, None, patient, 0.0)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _read(self, out: type[M], content: bytes) -> M:
        return self._understood(out.model_validate_json, content)

    def _understood(self, read: Callable[[bytes], T], content: bytes) -> T:
        """An answer. Raises `ServiceError` for one of another version, or of no tt server."""
        try:
            return read(content)
        except ValidationError as e:
            first = e.errors()[0]
            what = f"{'.'.join(map(str, first['loc'])) or 'its answer'}: {first['msg']}"
            raise ServiceError(
                f"{self.url} answers what this tt-service does not understand ({what}):"
                " install the same version on both"
            ) from e

    def _send(
        self, method: str, path: str, body: BaseModel | None, query: dict[str, Any] | None, patient: bool, wait_s: float
    ) -> httpx.Response:
        """Until there is an answer, if patient: a server that restarts or is busy is waited for, with jitter."""
        pause_s = FIRST_WAIT_S
        while True:
            try:
                return self._once(method, path, body, query, wait_s + 30.0)
            except Gone:
                raise
            except _Busy as e:
                if not patient:
                    raise ServiceError(str(e)) from e
                if self.stop():
                    raise ServiceError(f"gave up waiting: {e}") from e
                least_s = max(pause_s, e.after_s)
                self.sleep(random.uniform(0.5, 1.0) * least_s if e.after_s <= 0 else random.uniform(1.0, 1.5) * least_s)
                pause_s = min(2 * pause_s, LONGEST_WAIT_S)

    def _once(
        self, method: str, path: str, body: BaseModel | None, query: dict[str, Any] | None, limit_s: float
    ) -> httpx.Response:
        content = None if body is None else body.model_dump_json(exclude_none=True).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        timeout = httpx.Timeout(limit_s, connect=10.0)
        try:
            answer = self._client.request(method, path, content=content, headers=headers, params=query, timeout=timeout)
        except httpx.HTTPError as e:
            raise _Busy(f"no server answers at {self.url} ({_why(e)})", 0.0) from e
        if answer.status_code < 300:
            return answer
        text = _line(answer)
        if answer.status_code in (429, 500, 502, 503, 504):
            raise _Busy(f"the server {self.url} is busy: {text}", _after(answer))
        if answer.status_code == 401:
            text = "it does not accept this key: set TT_KEY, or see tt key list on the server"
        raise Gone(f"{self.url}: {text}", answer.status_code)


class _Busy(ServiceError):
    """No answer, or one that says to come again.

    Args:
        after_s: How long to wait at least.
    """

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


_ADVICE = {
    "CERTIFICATE_VERIFY_FAILED": "nobody that is trusted here signed its certificate, or it is of another name:"
    " SSL_CERT_FILE=ca.pem names who did",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: is it http:// there?",
    "Server disconnected": "it hung up: is it https:// there?",
}
"""What to do about errors of the network, by a part of their text."""


def _why(e: httpx.HTTPError) -> str:
    text = " ".join(str(e).split())[:200]
    for sign, advice in _ADVICE.items():
        if sign in text:
            return advice
    return f"{type(e).__name__}: {text}" if text else type(e).__name__


def _line(answer: httpx.Response) -> str:
    try:
        return " ".join(str(answer.json()["error"]).split())[:1000]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


def _after(answer: httpx.Response) -> float:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), 600.0) if text.isdigit() else 0.0
