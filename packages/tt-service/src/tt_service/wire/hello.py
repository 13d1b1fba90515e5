"""Versions and capabilities, and the recipes of a server."""

from __future__ import annotations

from typing import Any

from tt_service.wire.values import Wire

__all__ = ["OLDEST", "PROTOCOL", "Hello", "RecipeOut"]

PROTOCOL, OLDEST = 1, 1
"""The version that this program speaks, and the oldest that it still understands."""


class Hello(Wire):
    """The server, first of all: which protocols it speaks, and what it can do."""

    protocol: int
    oldest: int
    version: str
    capabilities: list[str]
    lease_s: float
    heartbeat_s: float
    body_bytes: int
    job_bytes: int


class RecipeOut(Wire):
    """A recipe of the server; `pieces` has a name and its options by role, `unusable` says why it cannot be used."""

    name: str
    summary: str
    pieces: dict[str, Any]
    unusable: str | None = None
