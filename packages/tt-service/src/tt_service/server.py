"""The server's process: the application under uvicorn, with signals that end it in time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from tt_service.app import build
from tt_service.database import path_of
from tt_service.desk import Desk
from tt_service.guard import Guard
from tt_service.keys import Keys
from tt_service.listening import Listening
from tt_service.runner import Bounds
from tt_service.thinkers import Places

__all__ = ["Options", "Server", "make"]

END_S = 3
"""How long open requests may take once the server is to end."""


@dataclass(frozen=True)
class Options:
    """How a server is run.

    Args:
        history: The shared history; the service's own tables and its keys lie beside it.
        listening: Where; port 0 takes a free one.
        thinkers: Jobs that may think at once.
        bounds: Of a job's process.
        lease_s: How long a lease lasts without a heartbeat.
    """

    history: Path
    listening: Listening = field(default_factory=Listening)
    thinkers: int = 8
    bounds: Bounds = field(default_factory=Bounds)
    lease_s: float = 30.0


class Server(uvicorn.Server):
    """Ends its long polls as soon as it is to end."""

    def __init__(self, config: uvicorn.Config, desk: Desk, keys: Keys, ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self.desk, self.keys, self.ready = desk, keys, ready

    async def startup(self, sockets: Any = None) -> None:
        """As uvicorn's; then tells the port."""
        await super().startup(sockets)
        if self.started:
            self.ready(self.servers[0].sockets[0].getsockname()[1])

    async def shutdown(self, sockets: Any = None) -> None:
        """As uvicorn's; then nobody asks for keys any more."""
        await super().shutdown(sockets)
        self.keys.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: nobody is to wait any more."""
        threading.Thread(target=self.desk.close, daemon=True).start()
        super().handle_exit(sig, frame)


def make(options: Options, ready: Callable[[int], None] = lambda port: None) -> Server:
    """A server, its history open; `run` serves until a signal ends it.

    Args:
        ready: Told the port when requests are taken.
    """
    listening = options.listening.checked()
    desk = Desk(options.history, Places(options.thinkers, options.bounds), lease_s=options.lease_s)
    keys = Keys(path_of(options.history))
    config = uvicorn.Config(
        Guard(build(desk), keys),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=END_S,
        timeout_keep_alive=75,
        lifespan="on",
        **listening.options(),
    )
    return Server(config, desk, keys, ready)
