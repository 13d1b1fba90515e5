"""A store in one SQLite file."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
import uuid
import warnings
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from tt_spec.clock import Clock, WallClock
from tt_spec.errors import StoreError
from tt_spec.serial import from_json, to_json
from tt_spec.space import Space
from tt_spec.types import Foreign, Measurement, Task

from tt_history.migrate import migrate
from tt_history.mounts import network
from tt_history.nearest import Neighbour, neighbours
from tt_history.schema import INDEXES, RECORDS, RUNS, SCHEMA, VIEWS
from tt_history.transfer import thin
from tt_history.version1 import Version1
from tt_history.version2 import UNREADABLE, Version2, left_out

__all__ = ["SqliteStore", "StoreError"]

APPLICATION_ID = 0x74745F68
"""`tt_h` in ASCII; marks a file as ours."""

SCHEMA_VERSION = 2

_PAGE = 500
"""Rows that `query` holds at once."""

_CACHE_KB = 16_000
"""Of the file that are held in memory at most; SQLite's 2 MB are less than one task's part of the indexes."""

_NEAR = 16
"""Tasks that are looked at for rows to lend."""

_WRITE_EVERY = 4096
"""Rows of a batch that are made at once."""


class SqliteStore:
    """Every measurement in one SQLite file that several processes may write at once.

    Each `append` is one committed transaction in a write-ahead log, so that the death of this process loses no row;
    a power cut may lose the last ones (`synchronous=NORMAL`), never the file. Opened, and made if missing, on first
    use; one store may serve many threads, but not a process forked after that.

    Source: sqlite.org/wal.html (SQLite 3.7, 2010).

    Args:
        path: A file on a local disk, or SQLite's URI, e.g. "file:tt.db?mode=ro" to read only.
        wait_s: The wait for another process's writes before a warning, seconds; maintenance of a large file takes a
            minute. After five times as long, writing fails.
        clock: Times the runs; None is the machine's.
    """

    WAITS = 5

    def __init__(
        self, path: str | os.PathLike[str] = "tt.db", wait_s: float = 120.0, clock: Clock | None = None
    ) -> None:
        self.path = path
        self.wait_s = wait_s
        self.clock = clock
        self._wall: Clock | None = None
        self._told = False
        self._db: sqlite3.Connection | None = None
        self._layout: Version1 | Version2 | None = None
        self._pid = 0
        self._seen = 0
        self._lock = threading.RLock()

    # -- the role -----------------------------------------------------------------------------------------------

    def append(self, batch: Sequence[Measurement]) -> None:
        """Keep all of `batch` or, on an error, none. A `why` that is not UTF-8 is kept with escapes."""
        batch = list(batch)
        if batch:
            with self.transaction() as (db, layout):
                for start in range(0, len(batch), _WRITE_EVERY):
                    layout.append(db, batch[start : start + _WRITE_EVERY])

    def query(
        self, task_key: str | None = None, space_key: str | None = None, device: str | None = None
    ) -> Iterator[Measurement]:
        """The records that were there at the call, in order of arrival; None means any. Rows are read as asked for: one
        that maintenance removes meanwhile is left out."""
        with self.reading() as (db, layout):
            ids = layout.ids(db, task_key=task_key, space_key=space_key, device=device)
        return self._stream(ids)

    def counted(self) -> tuple[int, Iterator[Measurement]]:
        """How many records there are, and `query` of all of them."""
        with self.reading() as (db, layout):
            ids = layout.ids(db)
        return len(ids), self._stream(ids)

    def best(self, task_key: str, device: str | None = None) -> Measurement | None:
        """The valid measurement of lowest median, the earliest of equals; None if there is none. Of a row that was
        measured more than once the latest verdict counts."""
        with self.reading() as (db, layout):
            return layout.best(db, task_key, device)

    def begin_run(self, info: dict[str, Any]) -> str:
        """Record a run's options, seed, recipe, versions, device and start; returns its id."""
        run_id, text = uuid.uuid4().hex, to_json(info)
        with self.transaction() as (db, _):
            db.execute("INSERT INTO runs (id, started, info) VALUES (?, ?, ?)", (run_id, self._now(), text))
        return run_id

    def end_run(self, run_id: str, reason: str) -> None:
        """Record when and why a run ended."""
        reason = reason.encode("utf-8", "backslashreplace").decode()
        with self.transaction() as (db, _):
            found = db.execute(
                "UPDATE runs SET ended = ?, reason = ? WHERE id = ?", (self._now(), reason, run_id)
            ).rowcount
        if not found:
            raise StoreError(f"{self.name}: there is no run {run_id!r} to end; give the id that begin_run returned")

    # -- what else it knows -------------------------------------------------------------------------------------

    def remember(self, tasks: Sequence[Task]) -> None:
        """Keep the tasks with workload, payload and spaces; the last name of a key counts. Rows of a space that is kept
        need no knobs of their own, so tell tasks before their measurements."""
        with self.transaction() as (db, layout):
            db.execute("UPDATE runs SET reason = reason WHERE 0")  # no tasks ask too whether the file can be written
            layout.remember(db, tasks)

    def task(self, key: str) -> Task | None:
        """A task as it was remembered, with every space that it ever had, the latest known first; None if unknown.
        Version 1 kept neither workload nor payload nor spaces."""
        with self.reading() as (db, layout):
            return layout.task(db, key)

    def space(self, key: str) -> Space | None:
        """The space of that key, None if it was never remembered."""
        with self.reading() as (db, layout):
            return layout.space(db, key) if isinstance(layout, Version2) else None

    def tasks(self) -> list[dict[str, Any]]:
        """One per remembered task: `key`, `name`, `op`, `target`, `shapes`, `flops`, `weight` and `workload`, which is
        empty where it is unknown."""
        with self.reading() as (db, layout):
            return layout.tasks(db)

    def nearest(self, task: Task, n: int = 10) -> list[Neighbour]:
        """The `n` nearest other tasks of its kind that have rows, with their distances; the same workload on another
        target is at distance 0."""
        with self.reading() as (db, layout):
            rows, known = layout.trials(db), layout.tasks(db)
        return neighbours(task, [{**t, "rows": rows.get(t["key"], 0)} for t in known], n)

    def lend(self, task: Task, device: str, rows: int) -> list[Foreign]:
        """At most so many rows that may guide the task's search, in groups of one task, space and device. Nearest
        first: this workload's on other devices, targets and spaces, then others of its kind; of the task's
        own space on this device only what was imported. Of a large group the newest rows are read, and the best and a
        sample of the others lent."""
        near = self.nearest(task, _NEAR)
        same = [x.key for x in near if x.workload and x.workload == task.workload]
        others = [x.key for x in near if x.key not in same]
        found: list[Foreign] = []
        with self.reading() as (db, layout):
            if isinstance(layout, Version1):  # which knows no spaces
                return []
            for key in (task.key, *same, *others):
                source = "near" if key in others else "device"
                known = layout.task(db, key) or (task if key == task.key else None)
                if known is None:  # merged from elsewhere without its task
                    continue
                own = (task.space.key, device) if key == task.key else None
                for space, _, latest in layout.latest(db, key, 4 * rows, own):
                    if not latest or rows < 1:
                        continue
                    codes, seconds = np.array(list(latest), dtype=np.int64), np.array(list(latest.values()))
                    keep = thin(seconds, min(rows, max(64, rows // 2)))
                    found.append(Foreign(replace(known, spaces=(space,)), codes[keep], seconds[keep], source))
                    rows -= len(keep)
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Runs by start, newest last: `id`, `started`, `ended` and `reason` (None until it ended), `info`."""
        with self.reading() as (db, _):
            rows = db.execute("SELECT id, started, ended, reason, info FROM runs ORDER BY rowid").fetchall()
        left_out(self.name, sum(_info(r[4]) is None for r in rows))
        return [
            {
                "id": str(i),
                "started": _seconds(started) or 0.0,
                "ended": _seconds(ended),
                "reason": None if reason is None else str(reason),
                "info": _info(info) or {},
            }
            for i, started, ended, reason, info in rows
        ]

    def summary(self) -> list[dict[str, Any]]:
        """One per task and device, by first arrival: `task_key`, `device`, `name` and `op` (None unless remembered),
        `trials` (invalid rows cost none), `failed` among them, `invalid`, `best_s` (None without a valid one),
        `last` (seconds since the epoch) and the latest row's `space_key`."""
        with self.reading() as (db, layout):
            return layout.summary(db)

    def bests(self) -> dict[tuple[str, str], float]:
        """Seconds (median) of the fastest program that a run measured of a task, by the run's id and the task's key;
        rows that were timed again do not count. Reads every valid row, 0.7 s of CPU for a million."""
        with self.reading() as (db, layout):
            return {} if isinstance(layout, Version1) else layout.bests(db)

    def close(self) -> None:
        """Close the file; may be called twice, and the next use opens it again."""
        with self._lock:
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
                self._db = self._layout = None

    def _stream(self, ids: array[int]) -> Iterator[Measurement]:
        # Page by page, never one open SELECT: that would pin the log, and a later write on it would fail as stale.
        damaged = 0
        for start in range(0, len(ids), _PAGE):
            part = ids[start : start + _PAGE]
            with self.reading() as (db, layout):
                try:
                    page = layout.read(db, part)
                except (*UNREADABLE, StoreError):  # one damaged row costs that row, not the history
                    page = []
                    for i in part:
                        try:
                            page += layout.read(db, [i])
                        except (*UNREADABLE, StoreError):
                            damaged += 1
            yield from page
        left_out(self.name, damaged)

    def _now(self) -> float:
        if self._wall is None:  # one for the store's life: a step of the machine's clock in mid-run is no hour of work
            self._wall = self.clock or WallClock()
        return self._wall.now()

    @property
    def name(self) -> str:
        """The file, for messages."""
        text = os.fspath(self.path)
        return text if text.startswith("file:") or text == ":memory:" else os.path.abspath(os.path.expanduser(text))

    # -- the file -----------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[tuple[sqlite3.Connection, Version1 | Version2]]:
        """One view of the file, and how to read it: another process may bring it to version 2 at any time."""
        with self._connected() as db:
            db.execute("BEGIN")
            try:
                with whole(self.name):
                    yield db, self._current(db)
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")

    @contextmanager
    def transaction(self, keep: bool = True) -> Iterator[tuple[sqlite3.Connection, Version2]]:
        """A transaction that writes; the first on a file of version 1 brings it to version 2 and says so.

        Args:
            keep: Whether what was written stays; else it is tried and taken back.
        """
        with self._connected() as db:
            self._begin(db)
            try:
                old = self._current(db)
                layout = migrate(db, old) if isinstance(old, Version1) else old
                (version,) = db.execute("PRAGMA data_version").fetchone()
                if version != self._seen:
                    layout.forget()
                    self._seen = version
                yield db, layout
                db.execute("COMMIT" if keep else "ROLLBACK")
            except BaseException:  # Ctrl-C too: a transaction left open would lock out every other process
                self._layout = None  # ids that it holds may never have been
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            self._layout = layout if keep else None
        if keep and isinstance(old, Version1):
            saved = "'tt history vacuum' gives back the space that this saves"
            warnings.warn(f"{self.name}: brought from schema version 1 to {layout.number}; {saved}", stacklevel=4)

    def _begin(self, db: sqlite3.Connection) -> None:
        """Begin to write. Who waits for another process's lock says so after `wait_s`, and gives up after `WAITS` of
        them."""
        turn = 0
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as e:
                turn += 1
                if "locked" not in str(e):
                    raise
                if turn == self.WAITS:
                    raise self._held(self.WAITS * self.wait_s) from e
                if turn == 1:
                    most = f"for at most {self.WAITS * self.wait_s:g} s"
                    held = f"another process has held its lock for {self.wait_s:g} s"
                    warnings.warn(f"{self.name}: {held}; waiting for it, {most}", stacklevel=5)

    @contextmanager
    def alone(self) -> Iterator[sqlite3.Connection]:
        """The connection outside any transaction, for what SQLite does by itself."""
        with self._connected() as db:
            yield db

    def _current(self, db: sqlite3.Connection) -> Version1 | Version2:
        """The layout of the file now; call it inside a transaction."""
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if self._layout is None or self._layout.number != version:
            self._layout = Version1(self.name) if version == 1 else Version2(self.name)
        return self._layout

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection()
            except UnicodeDecodeError as e:  # sqlite3 quotes a damaged table's name in its message
                raise self.explained(sqlite3.DatabaseError(f"malformed text, {e}")) from e
            except sqlite3.DatabaseError as e:
                raise self.explained(e) from e

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = self._open()
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise StoreError(
                f"{self.name}: opened by process {self._pid}, then used in its fork {os.getpid()};"
                " SQLite forbids that: make a new SqliteStore in each process"
            )
        return self._db

    def _open(self) -> sqlite3.Connection:
        name = self.name
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
            if (kind := network(name)) is not None and not self._told:
                self._told = True
                told = "processes of several machines must not use it at once, and a crash may damage it"
                warnings.warn(
                    f"{name} lies on a network file system ({kind}): {told}; prefer a local disk", stacklevel=2
                )
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute(f"PRAGMA cache_size={-_CACHE_KB}")
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
                f"{self.name}: this SQLite file belongs to another application"
                f" (application_id {application:#x}, tt's is {APPLICATION_ID:#x}); choose another path"
            )
        if version not in (1, SCHEMA_VERSION):
            raise StoreError(
                f"{self.name}: its schema is version {version}, this tt-history reads version {SCHEMA_VERSION};"
                " pip install --upgrade tt-history"
            )
        return False

    def _create(self, db: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self.wait_s
        while True:  # several processes may create the file at once, and SQLite does not wait on this change of mode
            try:
                (mode,) = db.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode == "delete":  # SQLite says no more than that it did not change it
                    raise StoreError(
                        f"{self.name}: its file system does not let SQLite share a write-ahead log, as many on a"
                        " network do not; put the history on a local disk"
                    )
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        db.execute("BEGIN IMMEDIATE")
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if not version:
                for statement in (*SCHEMA, RUNS, RECORDS.format("records"), *INDEXES, *VIEWS):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _held(self, seconds: float) -> StoreError:
        return StoreError(
            f"{self.name}: another process has held its lock for more than {seconds:g} s;"
            " end that process's transaction, or wait and try again"
        )

    def explained(self, e: sqlite3.DatabaseError) -> Exception:
        """SQLite's error as one line that says what to do."""
        # By message: Python 3.10's sqlite3 has no error codes, and SQLite keeps these texts stable.
        text, name = str(e), self.name
        if isinstance(e, sqlite3.ProgrammingError):
            return e
        if "locked" in text:
            return self._held(self.wait_s)
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


@contextmanager
def whole(name: str) -> Iterator[None]:
    """Turn whatever cannot be done with what the rows of a file hold into an error about that file: SQLite keeps
    anything in any column."""
    try:
        yield
    except UNREADABLE as e:
        text = " ".join(str(e).split())[:200]
        raise StoreError(f"{name}: a row is damaged ({type(e).__name__}: {text}); was the file edited by hand?") from e


def _info(text: Any) -> dict[str, Any] | None:
    """What a run says of itself, None where that cannot be read."""
    try:
        found = from_json(text)
    except UNREADABLE:
        return None
    return found if isinstance(found, dict) else None


def _seconds(stored: object) -> float | None:
    """A time as it was stored, None for anything else: the column may hold whatever a file brings."""
    return float(stored) if isinstance(stored, int | float) and math.isfinite(stored) else None


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
