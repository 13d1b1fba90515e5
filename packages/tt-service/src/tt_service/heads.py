"""Connections are counted, and those on which no request comes are closed: uvicorn bounds neither, and answers too many
without Retry-After."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["Heads"]

CROWDED = b'{"error": "too many connections now"}'


class Heads(AutoHTTPProtocol):
    """uvicorn's protocol with a limit of time for each head, from its first byte, or from the connection's beginning.

    Between two requests uvicorn's own limit of idle connections holds, in a body and an answer the guard's. Of more
    than `SERVED` connections, those of long polls among them, the latest get 503 with Retry-After to their first
    request; of more than `SERVED + TURNED_AWAY` they are closed unheard. Both together stay below the 1,024 open files
    that a process has as a rule.
    """

    HEAD_S = 10.0
    SERVED, TURNED_AWAY = 512, 256

    app: Any
    connections: set[Any]
    cycle: Any
    transport: Any
    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Somebody comes."""
        super().connection_made(transport)
        if len(self.connections) > self.SERVED + self.TURNED_AWAY:
            transport.abort()
            return
        if len(self.connections) > self.SERVED:
            self.app = crowded
        self._wait()

    def data_received(self, data: bytes) -> None:
        """A part of a head, or more."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._arrived()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone."""
        self._arrived()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._ends is None:
            self._ends = asyncio.get_running_loop().call_later(self.HEAD_S, self.transport.close)

    def _arrived(self) -> None:
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None


async def crowded(scope: Any, receive: Any, send: Any) -> None:
    """The application of a connection that is one too many."""
    about = {"content-type": "application/json", "content-length": str(len(CROWDED)), "retry-after": "5"}
    headers = [(name.encode(), value.encode()) for name, value in {**about, "connection": "close"}.items()]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": CROWDED})
