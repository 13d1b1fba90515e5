"""Connections on which no request comes are closed: uvicorn waits for the end of a request's head without limit."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

__all__ = ["Heads"]


class Heads(AutoHTTPProtocol):
    """uvicorn's protocol with a limit of time for each head, from its first byte, or from the connection's beginning.

    Between two requests uvicorn's own limit of idle connections holds, in a body and an answer the guard's.
    """

    HEAD_S = 10.0

    cycle: Any
    transport: Any
    _ends: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Somebody comes."""
        super().connection_made(transport)
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
