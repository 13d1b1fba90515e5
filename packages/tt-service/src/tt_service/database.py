"""The service's own tables: one SQLite file beside the history."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tt_spec.errors import StoreError

__all__ = ["connect", "path_of", "told"]


def path_of(history: str | os.PathLike[str]) -> Path:
    """The service's file beside a history: "shared.db.service"."""
    return Path(f"{os.fspath(history)}.service")


def connect(path: str | os.PathLike[str], wait_s: float = 5.0) -> sqlite3.Connection:
    """The file in a write-ahead log, made if missing and readable by its owner alone. The connection may pass between
    threads that take turns."""
    with told(path):
        if os.fspath(path) != ":memory:" and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
    return db


@contextmanager
def told(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn SQLite's errors into one line that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as e:
        raise StoreError(
            f"{os.fspath(path)}: {' '.join(str(e).split())}; the service cannot keep what it is told"
        ) from e
