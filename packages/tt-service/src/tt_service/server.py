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
from tt_service.desk import Desk
from tt_service.runner import Bounds

__all__ = ["PORT", "Options", "Server", "make"]

PORT = 8420
END_S = 3
"""How long open requests may take once the server is to end."""


@dataclass(frozen=True)
class Options:
    """How a server is run.

    Args:
        history: The shared history.
        host, port: Where it listens; port 0 takes a free one.
        cert, key: Files for TLS.
        thinkers: Jobs that may think at once.
        bounds: Of a job's process.
        lease_s: How long a lease lasts without a heartbeat.
    """

    history: Path
    host: str = "127.0.0.1"
    port: int = PORT
    cert: Path | None = None
    key: Path | None = None
    thinkers: int = 8
    bounds: Bounds = field(default_factory=Bounds)
    lease_s: float = 30.0


class Server(uvicorn.Server):
    """Ends its long polls as soon as it is to end."""

    def __init__(self, config: uvicorn.Config, desk: Desk, ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self.desk, self.ready = desk, ready

    async def startup(self, sockets: Any = None) -> None:
        """As uvicorn's; then tells the port."""
        await super().startup(sockets)
        if self.started:
            self.ready(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: nobody is to wait any more."""
        threading.Thread(target=self.desk.close, daemon=True).start()
        super().handle_exit(sig, frame)


def make(options: Options, guarded: Callable[[Any], Any], ready: Callable[[int], None] = lambda port: None) -> Server:
    """A server, its history open; `run` serves until a signal ends it.

    Args:
        guarded: Wraps the application in what checks keys and bodies.
        ready: Told the port when requests are taken.
    """
    desk = Desk(options.history, options.bounds, options.thinkers, lease_s=options.lease_s)
    config = uvicorn.Config(
        guarded(build(desk)),
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=END_S,
        timeout_keep_alive=75,
        ssl_certfile=None if options.cert is None else str(options.cert),
        ssl_keyfile=None if options.key is None else str(options.key),
        lifespan="on",
    )
    return Server(config, desk, ready)
