"""The history of tt: every measurement, kept in one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_history.sqlite import SqliteStore, StoreError
    from tt_history.suggestion.suggest import suggest

__all__ = ["SqliteStore", "StoreError", "suggest"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tt_history' has no attribute {name!r} (known: {', '.join(__all__)})")
    if name == "suggest":
        from tt_history.suggestion.suggest import suggest

        return suggest
    from tt_history import sqlite

    return getattr(sqlite, name)
