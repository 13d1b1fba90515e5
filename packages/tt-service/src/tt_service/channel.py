"""Messages between the server and the process that thinks for a job: lines of JSON over a pair of sockets."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tt_spec.serial import from_json, to_json

__all__ = ["Channel", "Closed"]

MOST_BYTES = 256 * 2**20
"""Of one message."""


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end; vocabulary objects pass as they are (`tt_spec.serial`). Sending never waits for the other side.

    Args:
        end: A connected socket.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._file = end.makefile("rb")
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._gone = threading.Event()
        threading.Thread(target=self._write, daemon=True, name="channel").start()

    def send(self, what: str, **fields: Any) -> None:
        """Send a message; what cannot arrive any more is lost, as the receiver is."""
        self._out.put(to_json({"what": what, **fields}).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next message. Raises `Closed` at the end, `ValueError` for what is none."""
        try:
            line = self._file.readline(MOST_BYTES)
        except (OSError, ValueError) as e:
            raise Closed from e
        if not line.endswith(b"\n"):
            raise Closed if len(line) < MOST_BYTES else ValueError("a message is too long")
        found = from_json(line)
        if not isinstance(found, dict) or not isinstance(found.get("what"), str):
            raise ValueError("a message is an object that says what it is")
        return found

    def flush(self, then: Callable[[], None] = lambda: None) -> None:
        """Wait until all is sent."""
        self._out.put(None)
        self._gone.wait(10)
        then()

    def close(self) -> None:
        """End it; the other side's `receive` raises."""
        self._out.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self) -> None:
        try:
            while (message := self._out.get()) is not None:
                self._socket.sendall(message)
        except OSError:
            pass
        self._gone.set()
