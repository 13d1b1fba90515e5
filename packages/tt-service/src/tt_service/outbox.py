"""An agent's own log: every result is on its disk before it is sent, and stays until the server has counted it.

Source: Chen et al. (2024), adaptive workflow, section IV: the agent saves results in a local log and on the server.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from tt_service import wire
from tt_service.database import connect, told

__all__ = ["Outbox"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS results (server TEXT, batch TEXT, at INTEGER, made REAL NOT NULL, job TEXT NOT NULL,"
    " task TEXT NOT NULL, trial TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (server, batch, at))"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS unsent ON results (server, sent) WHERE NOT sent",
    "CREATE TABLE IF NOT EXISTS names (server TEXT PRIMARY KEY, name TEXT NOT NULL)",
)


class Outbox:
    """Results of one server in a file that several may share.

    Args:
        path: The file; made if missing.
        server: The server's URL.
    """

    def __init__(self, path: str | os.PathLike[str], server: str) -> None:
        self.path, self.server = path, server
        self._db, self._lock = connect(path), threading.Lock()
        with told(path):
            for statement in SCHEMA:
                self._db.execute(statement)

    def name(self, proposed: str) -> str:
        """The agent's name at this server: the same for as long as the file lives."""
        with self._lock, told(self.path):
            self._db.execute("INSERT OR IGNORE INTO names (server, name) VALUES (?, ?)", (self.server, proposed))
            (name,) = self._db.execute("SELECT name FROM names WHERE server = ?", (self.server,)).fetchone()
        return name

    def keep(self, work: wire.Asked, at: int, trial: wire.TrialWire) -> None:
        """Put a result on disk; one that is there already stays."""
        with self._lock, told(self.path):
            self._db.execute(
                "INSERT OR IGNORE INTO results (server, batch, at, made, job, task, trial)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.server, work.batch, at, time.time(), work.job, work.task, trial.model_dump_json()),
            )

    def unsent(self, most: int = 256) -> list[wire.Tell]:
        """Results that nobody counted yet, by batch, oldest first."""
        with self._lock, told(self.path):
            rows = self._db.execute(
                "SELECT batch, at, trial FROM results WHERE server = ? AND NOT sent ORDER BY made, batch, at LIMIT ?",
                (self.server, most),
            ).fetchall()
        found: dict[str, list[dict[str, Any]]] = {}
        for batch, at, trial in rows:
            found.setdefault(batch, []).append({"at": at, "trial": json.loads(trial)})
        return [wire.Tell.model_validate({"batch": batch, "trials": trials}) for batch, trials in found.items()]

    def sent(self, batch: str, places: Sequence[int]) -> None:
        """The server has counted these."""
        with self._lock, told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "UPDATE results SET sent = 1 WHERE server = ? AND batch = ? AND at = ?",
                [(self.server, batch, at) for at in places],
            )
            self._db.execute("COMMIT")

    def done(self, batch: str) -> set[int]:
        """Places of a batch that have a result here."""
        with self._lock, told(self.path):
            rows = self._db.execute("SELECT at FROM results WHERE server = ? AND batch = ?", (self.server, batch))
            return {at for (at,) in rows}

    def close(self) -> None:
        """Close the file."""
        self._db.close()
