"""tt-service's commands."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl

__all__: list[str] = []


@hookimpl
def tt_commands() -> list[Entry]:
    return []
