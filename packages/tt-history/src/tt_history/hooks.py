"""tt-history's pieces."""

from __future__ import annotations

from tt_spec.hooks import Entry, hookimpl


@hookimpl
def tt_stores() -> list[Entry]:
    return [Entry("sqlite", "tt_history.sqlite:SqliteStore", "one SQLite file, shared by processes", "sqlite.org/wal")]
