"""What a restarted server needs: jobs, events, pending rows, open leases, and results until the history has them."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tt_service.broker import Batch, Change, Config, Row, Taken
from tt_service.database import connect, told

__all__ = ["Event", "JobRecord", "Journal"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, owner TEXT NOT NULL, spec TEXT NOT NULL,"
    " state TEXT NOT NULL, reason TEXT NOT NULL, run_id TEXT NOT NULL, created REAL NOT NULL, ended REAL,"
    " trials INTEGER NOT NULL DEFAULT 0, spent_s REAL NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS events (job TEXT, number INTEGER, body TEXT NOT NULL, PRIMARY KEY (job, number))"
    " WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS rows (job TEXT, task TEXT, config TEXT, origin TEXT NOT NULL, deaths INTEGER NOT NULL,"
    " batch TEXT, PRIMARY KEY (job, task, config)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS batches (id TEXT PRIMARY KEY, agent TEXT NOT NULL, job TEXT NOT NULL,"
    " task TEXT NOT NULL, kind TEXT NOT NULL, rows TEXT NOT NULL, returns INTEGER NOT NULL, open INTEGER NOT NULL)"
    " WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS open_batches ON batches (open) WHERE open",
    "CREATE TABLE IF NOT EXISTS results (batch TEXT, at INTEGER, job TEXT NOT NULL, body TEXT, kept INTEGER NOT NULL,"
    " PRIMARY KEY (batch, at)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS unkept ON results (kept) WHERE NOT kept",
    "CREATE TABLE IF NOT EXISTS counts (job TEXT PRIMARY KEY, trials INTEGER NOT NULL) WITHOUT ROWID",
)

BATCH = "id, agent, job, task, kind, rows, returns"


@dataclass
class JobRecord:
    """A job as it is kept.

    Args:
        spec: What the client asked for, as JSON.
        run_id: Of the history.
        trials: Rows measured so far.
        spent_s: Seconds that it has run in earlier processes.
        evaluator: What its rows are timed with, as JSON; "" before that is known.
    """

    id: str
    owner: str
    spec: str
    state: str = "running"
    reason: str = ""
    run_id: str = ""
    created: float = 0.0
    ended: float | None = None
    trials: int = 0
    spent_s: float = 0.0
    evaluator: str = ""


@dataclass(frozen=True)
class Event:
    """An event of a job, and the trials that the job has had with it; None where it brings none."""

    job: str
    number: int
    body: str
    trials: int | None = None


class Journal:
    """The tables of the broker and the jobs.

    Args:
        path: The service's file; ":memory:" for tests.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.db = connect(path)
        with told(path):
            for statement in SCHEMA:
                self.db.execute(statement)
            if not any(name == "evaluator" for _, name, *_ in self.db.execute("PRAGMA table_info(jobs)")):
                self.db.execute("ALTER TABLE jobs ADD COLUMN evaluator TEXT NOT NULL DEFAULT ''")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        with told(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield self.db
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise

    def write(
        self, changes: Iterable[Change], results: Iterable[tuple[Taken, str]] = (), events: Iterable[Event] = ()
    ) -> None:
        """Keep what the broker noted, results with their text, and events: all of it, or nothing."""
        changes, results, events = list(changes), list(results), list(events)
        if not changes and not results and not events:
            return
        with self.writing() as db:
            for change in changes:
                _CHANGES[change[0]](db, *change[1:])
            db.executemany(
                "INSERT INTO results (batch, at, job, body, kept) VALUES (?, ?, ?, ?, 0)",
                [(t.batch.id, t.at, t.batch.job, text) for t, text in results],
            )
            db.executemany(
                "INSERT INTO events (job, number, body) VALUES (?, ?, ?)", [(e.job, e.number, e.body) for e in events]
            )
            db.executemany(
                "INSERT OR REPLACE INTO counts (job, trials) VALUES (?, ?)",
                [(e.job, e.trials) for e in events if e.trials is not None],
            )

    def kept(self, results: Iterable[tuple[str, int]]) -> None:
        """The history has these results: their text is needed no more."""
        with self.writing() as db:
            db.executemany("UPDATE results SET kept = 1, body = NULL WHERE batch = ? AND at = ?", list(results))

    def unkept(self) -> list[tuple[str, int, str]]:
        """Results of which nobody knows that the history has them: batch, place and text."""
        with told(self.path):
            return self.db.execute("SELECT batch, at, body FROM results WHERE NOT kept").fetchall()

    def past(self, batch: str) -> Batch | None:
        """A batch by its id, with the places that were told."""
        with told(self.path):
            row = self.db.execute(
                "SELECT id, agent, job, task, kind, rows, returns FROM batches WHERE id = ?", (batch,)
            )
            found = row.fetchone()
            return None if found is None else self._batch(found)

    def pending(self) -> tuple[list[Row], list[Batch]]:
        """Rows that wait or are out, and batches that are open."""
        with told(self.path):
            rows = self.db.execute("SELECT job, task, config, origin, deaths, batch FROM rows").fetchall()
            open_ = self.db.execute(f"SELECT {BATCH} FROM batches WHERE open").fetchall()
            return (
                [Row(job, task, _config(config), *rest) for job, task, config, *rest in rows],
                [self._batch(b) for b in open_],
            )

    def _batch(self, found: tuple[Any, ...]) -> Batch:
        name, agent, job, task, kind, rows, returns = found
        told_ = self.db.execute("SELECT at FROM results WHERE batch = ?", (name,)).fetchall()
        batch = Batch(name, agent, job, task, kind, tuple(tuple(r) for r in json.loads(rows)))
        batch.told, batch.returns = {at for (at,) in told_}, returns
        return batch

    # -- jobs ---------------------------------------------------------------------------------------------------

    def save(self, job: JobRecord) -> None:
        """Keep a job as it is now."""
        with self.writing() as db:
            names = list(vars(job))
            marks = ", ".join("?" for _ in names)
            rest = ", ".join(f"{n} = excluded.{n}" for n in names if n not in ("id", "spec"))
            db.execute(
                f"INSERT INTO jobs ({', '.join(names)}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {rest}",
                list(vars(job).values()),
            )

    def jobs(self) -> list[JobRecord]:
        """All jobs, oldest first."""
        with told(self.path):
            trials = "max(jobs.trials, coalesce(counts.trials, 0))"  # apart from the request, which is large
            names = f"id, owner, spec, state, reason, run_id, created, ended, {trials}, spent_s, evaluator"
            query = f"SELECT {names} FROM jobs LEFT JOIN counts ON counts.job = jobs.id ORDER BY created, id"
            return [JobRecord(*row) for row in self.db.execute(query)]

    def events(self, job: str, after: int, most: int = 64) -> list[str]:
        """Events of a job after a number, oldest first."""
        with told(self.path):
            found = self.db.execute(
                "SELECT body FROM events WHERE job = ? AND number > ? ORDER BY number LIMIT ?", (job, after, most)
            )
            return [body for (body,) in found]

    def last_event(self, job: str) -> int:
        """The number of a job's last event, 0 before the first."""
        with told(self.path):
            (number,) = self.db.execute("SELECT max(number) FROM events WHERE job = ?", (job,)).fetchone()
            return number or 0

    def close(self) -> None:
        """Close the file."""
        self.db.close()


def _text(config: Config) -> str:
    return ",".join(map(str, config))


def _config(text: str) -> Config:
    return tuple(int(c) for c in text.split(","))


def _row(db: sqlite3.Connection, row: Row) -> None:
    db.execute(
        "INSERT OR REPLACE INTO rows (job, task, config, origin, deaths, batch) VALUES (?, ?, ?, ?, ?, ?)",
        (row.job, row.task, _text(row.config), row.origin, row.deaths, row.batch),
    )


def _gone(db: sqlite3.Connection, job: str, task: str, config: Config) -> None:
    db.execute("DELETE FROM rows WHERE job = ? AND task = ? AND config = ?", (job, task, _text(config)))


def _batch(db: sqlite3.Connection, batch: Batch) -> None:
    if batch.kind != "measure":  # whoever asked is gone after a restart
        return
    db.execute(
        "INSERT OR REPLACE INTO batches (id, agent, job, task, kind, rows, returns, open)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
        (batch.id, batch.agent, batch.job, batch.task, batch.kind, json.dumps(batch.rows), batch.returns),
    )


def _closed(db: sqlite3.Connection, batch: str) -> None:
    db.execute("UPDATE batches SET open = 0 WHERE id = ?", (batch,))


def _job_gone(db: sqlite3.Connection, job: str) -> None:
    db.execute("DELETE FROM rows WHERE job = ?", (job,))
    db.execute("UPDATE batches SET open = 0 WHERE job = ? AND open", (job,))


_CHANGES = {"row": _row, "gone": _gone, "batch": _batch, "closed": _closed, "job gone": _job_gone}
