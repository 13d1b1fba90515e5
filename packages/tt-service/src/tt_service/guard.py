"""What stands before every route: the key first, then the size, time and form of the body. Plain ASGI, so that no route
can be without it.

Nobody gets in without a key but to `/healthz`. A body is read only for a valid key, counted as it streams, within
limits of bytes and time, and must be JSON within `tt_service.bounds`; the route gets it whole. A key that is revoked or
expires while its request waits ends that request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tt_spec.clock import Clock, WallClock
from tt_spec.errors import StoreError, UserError

from tt_service.bounds import BoundsError, checked
from tt_service.keys import Who
from tt_service.reading import APART

__all__ = ["OPEN", "Checks", "Guard", "Limits", "Refused", "Throttle", "who_of"]

OPEN = frozenset({"/healthz"})
"""Paths for whoever comes: they get no body."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LARGE = 2**18
"""Bytes of a body beyond which it is checked outside of the loop."""

_log = logging.getLogger("tt_service")


class Checks(Protocol):
    """The keys, as the guard needs them: see `tt_service.keys.Keys.check`."""

    def check(self, text: str) -> Who | None: ...


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Args:
        body: Bytes of a body.
        jobs: Bytes of a body of `POST /v1/jobs`.
        held: Bytes of all bodies that are held at once.
        body_s: Seconds in which a body must have arrived.
        watch_s: Seconds between two looks at the key of a request that is being answered.
    """

    body: int = 8 * 2**20
    jobs: int = 64 * 2**20
    held: int = 160 * 2**20
    body_s: float = 30.0
    watch_s: float = 0.5

    def of(self, scope: Scope) -> int:
        """Bytes of this request's body."""
        return self.jobs if _is_job(scope) else self.body


class Refused(UserError):
    """A request that goes no further.

    Args:
        status: Of HTTP.
        error: One line for the caller.
        headers: Further ones, e.g. Retry-After.
    """

    def __init__(self, status: int, error: str, **headers: str) -> None:
        super().__init__(error)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Throttle:
    """Whoever fails to show a key is answered later and later: after the tenth failure of a minute 0.1 s later, then
    twice as long each time, at most 5 s. A valid key never waits, so that neighbours behind one address have no harm.

    Args:
        most: Failures of one address in `window_s` that are answered at once; a network of IPv6 (/64) is one address.
        waiting: Answers to one address that may be held back at once.
        addresses: The most that are remembered.
    """

    def __init__(
        self, clock: Clock, most: int = 10, window_s: float = 60.0, waiting: int = 16, addresses: int = 4096
    ) -> None:
        self.clock, self.most, self.window_s, self.waiting, self.addresses = clock, most, window_s, waiting, addresses
        self._failed: OrderedDict[str, list[float]] = OrderedDict()
        self._held: dict[str, int] = {}

    def failed(self, address: str) -> float:
        """Count a failure; seconds for which the answer is to be held back."""
        now = self.clock.now()
        times = [t for t in self._failed.pop(address, []) if now - t < self.window_s]
        times = [*times[-4 * self.most :], now]
        self._failed[address] = times
        while len(self._failed) > self.addresses:
            self._failed.popitem(last=False)
        beyond = len(times) - self.most
        return 0.0 if beyond <= 0 else min(5.0, 0.1 * 2.0 ** min(beyond - 1, 10))

    async def hold(self, address: str) -> None:
        """Count a failure and wait as long as its answer must. Raises `Refused` (429) where too many wait already."""
        seconds = self.failed(address)
        if not seconds:
            return
        if self._held.get(address, 0) >= self.waiting:
            raise Refused(429, "too many failures from this address", Retry_After="60", Connection="close")
        self._held[address] = self._held.get(address, 0) + 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]


@dataclass
class Guard:
    """An ASGI application behind a key; see the module.

    Args:
        app: Finds the `Who` of its request by `who_of`.
    """

    app: App
    keys: Checks
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=WallClock)

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.clock)
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket, which nothing here is
            await send({"type": "websocket.close", "code": 1008})
            return
        answer, held = _Answer(send), _Held(self)
        try:
            if scope["path"] in OPEN:
                await self.app(scope, _replayed(b"", receive), answer)
                return
            text = _bearer(scope)
            scope.setdefault("state", {})["who"] = await self._who(text, scope)
            body = await self._body(scope, receive, held)
            await self._served(text, scope, _replayed(body, receive), answer)
        except Refused as e:
            await answer.refuse(e)
        except StoreError as e:
            _log.error("%s", e)
            await answer.refuse(Refused(503, "the server's store cannot be used now", Retry_After="5"))
        except Exception:
            _log.exception("a request failed: %s %r", scope["method"], scope["path"])
            await answer.refuse(Refused(500, "a defect of the server; its log says more"))
        finally:
            held.free()

    async def _who(self, text: str | None, scope: Scope) -> Who:
        who = None if text is None else self.keys.check(text)
        if who is None:
            await self.throttle.hold(_address(scope))
            raise _unknown()
        return who

    async def _body(self, scope: Scope, receive: Receive, held: _Held) -> bytes:
        """The whole body, checked."""
        if _length(scope, self.limits.of(scope)) == 0:
            return b""
        try:
            body = await asyncio.wait_for(self._read(scope, receive, held), self.limits.body_s)
        except asyncio.TimeoutError:
            late = f"the body did not arrive in {self.limits.body_s:g} s"
            raise Refused(408, late, Connection="close") from None
        try:
            if len(body) > APART and _is_job(scope):
                pass  # whoever reads it checks it first
            elif len(body) > _LARGE:
                await asyncio.to_thread(checked, body)
            elif body:
                checked(body)
        except BoundsError as e:
            raise Refused(400, str(e)) from None
        return body

    async def _read(self, scope: Scope, receive: Receive, held: _Held) -> bytes:
        """The body as it streams, each part counted before the next is asked for."""
        most, parts = self.limits.of(scope), []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the body broke off", Connection="close")
            parts.append(message.get("body", b""))
            held.add(len(parts[-1]))
            if held.bytes > most:
                raise _too_large(most)
            if self.held > self.limits.held:
                raise Refused(503, "too many large bodies at once", Retry_After="5", Connection="close")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _served(self, text: str | None, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """Let the application answer, as long as the key is valid."""
        task = asyncio.ensure_future(self.app(scope, receive, answer))
        try:
            while not (await asyncio.wait({task}, timeout=self.limits.watch_s))[0]:
                if text is None or self.keys.check(text) is None:
                    raise _unknown()
            await task
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


def who_of(scope: Scope) -> Who:
    """Whoever stands behind a request that the guard let in."""
    return scope["state"]["who"]


def _unknown() -> Refused:
    """The one answer to no key, a wrong, an expired and a revoked one."""
    return Refused(401, "a valid key is needed", WWW_Authenticate="Bearer", Connection="close")


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body has more than {most:,} bytes", Connection="close")


class _Held:
    """Bytes of one request's body, as part of all that the guard holds."""

    def __init__(self, guard: Guard) -> None:
        self.guard, self.bytes = guard, 0

    def add(self, n: int) -> None:
        self.bytes += n
        self.guard.held += n

    def free(self) -> None:
        self.add(-self.bytes)


class _Answer:
    """`send`, which knows whether an answer has begun; the first one counts."""

    def __init__(self, send: Send) -> None:
        self.send, self.begun, self.over = send, False, False

    async def __call__(self, message: Message) -> None:
        if not self.over:
            self.begun = self.begun or message["type"] == "http.response.start"
            await self.send(message)

    async def refuse(self, e: Refused) -> None:
        """Say no, unless an answer has begun: that one is cut off."""
        self.over = True
        if self.begun:
            return
        self.begun = True
        body = json.dumps({"error": str(e)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **e.headers}
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": e.status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})


def _is_job(scope: Scope) -> bool:
    return scope["method"] == "POST" and str(scope["path"]).rstrip("/") == "/v1/jobs"


def _headers(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


def _bearer(scope: Scope) -> str | None:
    """The key of a request: of its one Authorization header and nowhere else."""
    found = _headers(scope, b"authorization")
    if len(found) != 1 or len(found[0]) > 200:
        return None
    kind, _, text = found[0].decode("latin-1").partition(" ")
    return text.strip() if kind.lower() == "bearer" else None


def _address(scope: Scope) -> str:
    client = scope.get("client")
    if not client:
        return ""
    try:
        ip = ipaddress.ip_address(client[0])
    except ValueError:
        return str(client[0])
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)


def _length(scope: Scope, most: int) -> int | None:
    """The announced bytes of the body, None if that is not said. Raises `Refused` for what is not read at all."""
    coding = _headers(scope, b"content-encoding")
    chunked = bool(_headers(scope, b"transfer-encoding"))
    said = _headers(scope, b"content-length")
    if not said and not chunked:
        return 0
    try:
        length = int(said[0]) if said else None
    except ValueError:
        raise Refused(400, "content-length is no number", Connection="close") from None
    if length is not None and length > most:
        raise _too_large(most)
    if any(c.strip().lower() not in (b"", b"identity") for c in coding):
        raise Refused(
            415, "send the body as it is, without content-encoding", Accept_Encoding="identity", Connection="close"
        )
    kinds = [k.partition(b";")[0].strip().lower() for k in _headers(scope, b"content-type")]
    if length != 0 and kinds != [b"application/json"]:
        raise Refused(
            415, "a body must be of content-type application/json", Accept="application/json", Connection="close"
        )
    return length


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` of an application that gets the whole body at once, and hears of the caller's going."""
    given = False

    async def again() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": body, "more_body": False}
        while (message := await receive())["type"] != "http.disconnect":
            pass  # what follows a body that was not read
        return message

    return again
