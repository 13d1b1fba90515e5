"""A store in one SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tt_spec.clock import Clock, WallClock
from tt_spec.errors import StoreError
from tt_spec.serial import from_json, to_json
from tt_spec.types import Measurement, Task

__all__ = ["SqliteStore", "StoreError"]

APPLICATION_ID = 0x74745F68
"""`tt_h` in ASCII; marks a file as ours."""

SCHEMA_VERSION = 1

_PAGE = 500
"""Rows that `query` holds at once."""

_SCHEMA = """
CREATE TABLE measurements (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    task_key TEXT NOT NULL,
    space_key TEXT NOT NULL,
    config TEXT NOT NULL,
    knobs TEXT NOT NULL,
    seconds TEXT NOT NULL,
    median_s REAL,
    runs INTEGER NOT NULL,
    error TEXT,
    why TEXT NOT NULL,
    cost TEXT NOT NULL,
    origin TEXT NOT NULL,
    device TEXT NOT NULL,
    versions TEXT NOT NULL,
    at REAL NOT NULL,
    run_id TEXT NOT NULL
);
CREATE INDEX measurements_by_task ON measurements (task_key, space_key, device);
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,
    ended REAL,
    reason TEXT,
    info TEXT NOT NULL
);
CREATE TABLE tasks (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    op TEXT NOT NULL,
    target TEXT NOT NULL,
    shapes TEXT NOT NULL,
    flops REAL NOT NULL,
    weight REAL NOT NULL
);
"""

_FIELDS = (
    "task_key",
    "space_key",
    "config",
    "knobs",
    "seconds",
    "median_s",
    "runs",
    "error",
    "why",
    "cost",
    "origin",
    "device",
    "versions",
    "at",
    "run_id",
)
_COLUMNS = ", ".join(_FIELDS)
_INSERT = f"INSERT INTO measurements ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
_SELECT = f"SELECT id, {_COLUMNS} FROM measurements"

_LATEST = "SELECT max(id) FROM measurements{} GROUP BY task_key, space_key, device, config"
"""Ids of each row's latest measurement, which is the verdict that counts."""

_SUMMARY = f"""
SELECT g.task_key, g.device, t.name, t.op, g.trials, g.failed, g.invalid, g.best_s, g.last, m.space_key
FROM (
    SELECT task_key, device, sum(error IS NOT 'invalid') AS trials,
           sum(error IS NOT NULL AND error IS NOT 'invalid') AS failed, sum(error IS 'invalid') AS invalid,
           min(median_s) FILTER (WHERE id IN ({_LATEST.format("")})) AS best_s,
           max(at) AS last, min(id) AS first_id, max(id) AS last_id
    FROM measurements GROUP BY task_key, device
) AS g
JOIN measurements AS m ON m.id = g.last_id
LEFT JOIN tasks AS t ON t.key = g.task_key
ORDER BY g.first_id
"""


class SqliteStore:
    """Every measurement in one SQLite file that several processes may write at once.

    Each `append` is one committed transaction in a write-ahead log, so that the death of this process loses no row;
    a power cut may lose the last ones (`synchronous=NORMAL`), never the file. Opened, and made if missing, on first
    use; one store may serve many threads, but not a process forked after that.

    Source: sqlite.org/wal.html (SQLite 3.7, 2010).

    Args:
        path: A file on a local disk, or SQLite's URI, e.g. "file:tt.db?mode=ro" to read only.
        wait_s: The longest wait for other processes' writes, seconds.
        clock: Times the runs; None is the machine's.
    """

    def __init__(
        self, path: str | os.PathLike[str] = "tt.db", wait_s: float = 30.0, clock: Clock | None = None
    ) -> None:
        self.path = path
        self.wait_s = wait_s
        self.clock = clock
        self._db: sqlite3.Connection | None = None
        self._pid = 0
        self._lock = threading.RLock()

    def append(self, batch: Sequence[Measurement]) -> None:
        """Keep all of `batch` or, on an error, none. A `why` that is not UTF-8 is kept with escapes."""
        rows = [_row(m) for m in batch]
        if rows:
            with self._transaction() as db:
                db.executemany(_INSERT, rows)

    def query(
        self, task_key: str | None = None, space_key: str | None = None, device: str | None = None
    ) -> Iterator[Measurement]:
        """What was there at the call, in order of arrival; None means any. Rows are read as they are asked for."""
        where, values = _where(task_key=task_key, space_key=space_key, device=device)
        with self._reading() as db:
            ids = [i for (i,) in db.execute(f"SELECT id FROM measurements{where} ORDER BY id", values)]
        return self._stream(ids)

    def best(self, task_key: str, device: str | None = None) -> Measurement | None:
        """The valid measurement of lowest median, the earliest of equals; None if there is none. Of a row that was
        measured more than once the latest verdict counts."""
        where, values = _where(task_key=task_key, device=device)
        with self._reading() as db:
            row = db.execute(
                f"{_SELECT} WHERE id IN ({_LATEST.format(where)}) AND median_s IS NOT NULL"
                " ORDER BY median_s, id LIMIT 1",
                values,
            ).fetchone()
        return None if row is None else self._measurement(row)

    def begin_run(self, info: dict[str, Any]) -> str:
        """Record a run's options, seed, recipe, versions, device and start; returns its id."""
        run_id, text = uuid.uuid4().hex, to_json(info)
        with self._transaction() as db:
            db.execute("INSERT INTO runs (id, started, info) VALUES (?, ?, ?)", (run_id, self._now(), text))
        return run_id

    def end_run(self, run_id: str, reason: str) -> None:
        """Record when and why a run ended."""
        with self._transaction() as db:
            found = db.execute(
                "UPDATE runs SET ended = ?, reason = ? WHERE id = ?", (self._now(), _utf8(reason), run_id)
            ).rowcount
        if not found:
            raise StoreError(f"{self._name}: there is no run {run_id!r} to end; give the id that begin_run returned")

    def remember(self, tasks: Sequence[Task]) -> None:
        """Keep what people call the tasks, for `summary`; the last name of a key counts."""
        rows = [(t.key, t.name, t.op, t.target, t.shapes, float(t.flops), float(t.weight)) for t in tasks]
        with self._transaction() as db:
            db.executemany(
                "INSERT OR REPLACE INTO tasks (key, name, op, target, shapes, flops, weight)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def runs(self) -> list[dict[str, Any]]:
        """Runs by start, newest last: `id`, `started`, `ended` and `reason` (None until it ended), `info`."""
        rows = self._dicts("SELECT id, started, ended, reason, info FROM runs ORDER BY rowid")
        return [{**r, "info": self._parse(f"run {r['id']}", r["info"])} for r in rows]

    def summary(self) -> list[dict[str, Any]]:
        """One per task and device, by first arrival: `task_key`, `device`, `name` and `op` (None unless remembered),
        `trials` (invalid rows cost none), `failed` among them, `invalid`, `best_s` (None without a valid one),
        `last` (seconds since the epoch) and the latest row's `space_key`."""
        return self._dicts(_SUMMARY)

    def close(self) -> None:
        """Close the file; may be called twice, and the next use opens it again."""
        with self._lock:
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
                self._db = None

    def _dicts(self, sql: str) -> list[dict[str, Any]]:
        with self._reading() as db:
            cursor = db.execute(sql)
            names = [c[0] for c in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def _stream(self, ids: list[int]) -> Iterator[Measurement]:
        # Page by page, never one open SELECT: that would pin the log, and a later write on it would fail as stale.
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            with self._reading() as db:
                places = ", ".join("?" * len(page))
                rows = db.execute(f"{_SELECT} WHERE id IN ({places}) ORDER BY id", page).fetchall()
            yield from map(self._measurement, rows)

    def _measurement(self, row: tuple[Any, ...]) -> Measurement:
        i, task, space, config, knobs, seconds, _, runs, error, why, cost, origin, device, versions, at, run_id = row
        what = f"measurement {i}"
        try:
            return Measurement(
                task,
                space,
                tuple(json.loads(config)),
                self._parse(what, knobs),
                tuple(json.loads(seconds)),
                runs,
                error,
                why,
                self._parse(what, cost),
                origin,
                device,
                self._parse(what, versions),
                at,
                run_id,
            )
        except (ValueError, TypeError) as e:
            raise StoreError(f"{self._name}: {what} cannot be read ({e}); was the file edited by hand?") from e

    def _parse(self, what: str, text: str) -> Any:
        try:
            return from_json(text)
        except ValueError as e:
            raise StoreError(f"{self._name}: {what} cannot be read ({e}); was the file edited by hand?") from e

    def _now(self) -> float:
        return (self.clock or WallClock()).now()

    @property
    def _name(self) -> str:
        text = os.fspath(self.path)
        return text if text.startswith("file:") or text == ":memory:" else os.path.abspath(os.path.expanduser(text))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection()
            except UnicodeDecodeError as e:  # sqlite3 quotes a damaged table's name in its message
                raise self._explained(sqlite3.DatabaseError(f"malformed text, {e}")) from e
            except sqlite3.DatabaseError as e:
                raise self._explained(e) from e

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:  # Ctrl-C too: a transaction left open would lock out every other process
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._open()
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise StoreError(
                f"{self._name}: opened by process {self._pid}, then used in its fork {os.getpid()};"
                " SQLite forbids that: make a new SqliteStore in each process"
            )
        return self._db

    def _open(self) -> sqlite3.Connection:
        name = self._name
        size, log = _size(name), _size(f"{name}-wal")
        if size == 1:  # which SQLite would take for an empty file
            raise sqlite3.DatabaseError("file is not a database")
        if size == 0 and log > 0:  # SQLite would delete the log
            raise sqlite3.DatabaseError("malformed: the file is empty, its log is not")
        db = sqlite3.connect(
            name, timeout=self.wait_s, isolation_level=None, check_same_thread=False, uri=name.startswith("file:")
        )
        try:
            if self._is_fresh(db):
                self._create(db)
            elif log == 0 and size % db.execute("PRAGMA page_size").fetchone()[0]:  # SQLite would read zeros there
                raise sqlite3.DatabaseError("malformed: the file ends in the middle of a page")
            db.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            db.close()
            raise
        return db

    def _is_fresh(self, db: sqlite3.Connection) -> bool:
        db.execute("BEGIN")  # one view of the three, while another process may be creating them
        try:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (things,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")
        if (application, version, things) == (0, 0, 0):
            return True
        if application != APPLICATION_ID:
            raise StoreError(
                f"{self._name}: this SQLite file belongs to another application"
                f" (application_id {application:#x}, tt's is {APPLICATION_ID:#x}); choose another path"
            )
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{self._name}: its schema is version {version}, this tt-history reads version {SCHEMA_VERSION};"
                " pip install --upgrade tt-history"
            )
        return False

    def _create(self, db: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.wait_s
        while True:  # several processes may create the file at once, and SQLite does not wait on this change of mode
            try:
                db.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        db.execute("BEGIN IMMEDIATE")
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if not version:
                for statement in filter(str.strip, _SCHEMA.split(";")):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _explained(self, e: sqlite3.DatabaseError) -> Exception:
        # By message: Python 3.10's sqlite3 has no error codes, and SQLite keeps these texts stable.
        text, name = str(e), self._name
        if isinstance(e, sqlite3.ProgrammingError):
            return e
        if "locked" in text:
            return StoreError(
                f"{name}: another process has held its lock for more than {self.wait_s:g} s;"
                " end that process's transaction, or wait and try again"
            )
        if "not a database" in text:
            return StoreError(f"{name}: not a SQLite database, and left as it is; choose another path")
        if "malformed" in text:
            return StoreError(
                f"{name}: the database is damaged ({text}); move it away, and save what can be read with"
                " the sqlite3 program's .recover"
            )
        if "readonly" in text:
            return StoreError(f"{name}: read-only; make the file and its folder writable, or choose another path")
        if "full" in text:
            return StoreError(f"{name}: the disk is full; free some space (every row before this one is kept)")
        if "unable to open" in text:
            return StoreError(f"{name}: {_why_not_opened(name)}")
        if "disk I/O" in text:
            return StoreError(f"{name}: the disk refused to read or write ({text}); check its health, quota and mount")
        return StoreError(f"{name}: SQLite says: {text}")


def _size(name: str) -> int:
    """Bytes of a file, 0 if there is none. Never by opening it: closing it again would drop SQLite's own locks."""
    return os.path.getsize(name) if os.path.isfile(name) else 0


def _why_not_opened(name: str) -> str:
    folder = os.path.dirname(name)
    if name.startswith("file:"):
        return "there is no such file, or it may not be opened; check the path and its permissions"
    if os.path.isdir(name):
        return f"this is a folder; give a file in it, e.g. {os.path.join(name, 'tt.db')}"
    if not os.path.isdir(folder):
        return f"the folder {folder} does not exist; make it, or choose another path"
    return "cannot be opened or made; make the file and its folder writable, or choose another path"


def _where(**wanted: str | None) -> tuple[str, list[str]]:
    given = {k: v for k, v in wanted.items() if v is not None}
    return (" WHERE " + " AND ".join(f"{k} = ?" for k in given) if given else ""), list(given.values())


def _row(m: Measurement) -> tuple[Any, ...]:
    return (
        m.task_key,
        m.space_key,
        json.dumps([int(c) for c in m.config]),
        to_json(m.knobs),
        json.dumps([float(s) for s in m.seconds]),
        m.latency_s if m.error is None else None,
        int(m.runs),
        m.error,
        _utf8(m.why),
        to_json(m.cost),
        m.origin,
        m.device,
        to_json(m.versions),
        float(m.at),
        m.run_id,
    )


def _utf8(text: str) -> str:
    # a compiler's output may have been decoded with surrogate escapes, which SQLite cannot hold
    return text.encode("utf-8", "backslashreplace").decode()
