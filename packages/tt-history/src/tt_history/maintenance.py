"""Upkeep of a history: fewer records, one file of several, less space.

Every function is one transaction, so that it happens whole or not at all, and doing it twice is doing it once; others
may read meanwhile, and those that write wait. What `tt record` has recorded is left alone.
"""

from __future__ import annotations

import heapq
import itertools
import os
import sqlite3
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tt_spec.clock import Clock, WallClock
from tt_spec.errors import StoreError
from tt_spec.serial import from_json
from tt_spec.types import IMPORT

from tt_history.raw import Raw
from tt_history.schema import INDEXES, OURS, RECORDS, VIEWS
from tt_history.sqlite import SqliteStore
from tt_history.version1 import Version1
from tt_history.version2 import Version2

__all__ = ["Unwanted", "compact", "merge", "prune", "stats", "vacuum"]

_PART = 2000
"""Records that are written at once."""

_OF_ORIGIN = "context IN (SELECT id FROM contexts WHERE substr(origin, 1, instr(origin || ' ', ' ') - 1) = ?)"
"""SQL: whose origin has this first word."""


@dataclass(frozen=True)
class Unwanted:
    """The records that `prune` takes: those that fit all that is given.

    Args:
        older_than_s: Age in seconds that a record exceeds.
        device: As a shell pattern.
        task: Name or key of a task, as a shell pattern.
        origin: First word of the origin, e.g. "import": who proposed a record, or that it came from a file.
        agent: Who measured a record for a tuning service: "key/agent" or the agent's name alone, as a shell pattern.
            What others measured of the same row stays, before it and after.
        failed: Only failures, invalid rows among them. A row's earlier records go along with a later one, so that no
            refuted best comes back.
        keep_best: So many of the fastest rows of each task and device stay in any case, with all their records.
    """

    older_than_s: float | None = None
    device: str | None = None
    task: str | None = None
    origin: str | None = None
    failed: bool = False
    keep_best: int | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.older_than_s is not None and not self.older_than_s >= 0:
            raise ValueError(f"an age must not be negative, got {self.older_than_s:g} s")
        if self.keep_best is not None and self.keep_best < 0:
            raise ValueError(f"the number of rows that stay must not be negative, got {self.keep_best}")
        given = {self.older_than_s, self.device, self.task, self.origin, self.agent, self.keep_best}
        if not self.failed and given == {None}:
            raise ValueError(
                "say what goes: an age, a device, a task, an origin, an agent, failures, or how many of the best stay"
            )


def stats(store: SqliteStore, clock: Clock | None = None) -> dict[str, Any]:
    """The content of a history: `rows` (records), `doubles` (records of a row with a later one), `failures` by kind,
    `devices` with their records, `tasks`, `runs`, `oldest_s` and `newest_s` (ages in seconds, None of none), `ages`
    (records younger than a day, a week, ...), `schema` and `bytes`: `file`, `log`, `free`, and `record`, per record."""
    now = (clock or WallClock()).now()
    with store.reading() as (db, layout):
        old = isinstance(layout, Version1)
        table, row = ("measurements", "task_key, space_key, device, config") if old else ("records", "place, config")
        (rows,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        (distinct,) = db.execute(f"SELECT count(*) FROM (SELECT DISTINCT {row} FROM {table})").fetchone()
        failures = dict(db.execute(f"SELECT error, count(*) FROM {table} WHERE error IS NOT NULL GROUP BY error"))
        counted = (
            "SELECT device, count(*) FROM measurements GROUP BY device"
            if old
            else "SELECT p.device, count(*) FROM records r JOIN places p ON p.id = r.place GROUP BY p.device"
        )
        devices = dict(db.execute(counted))
        (tasks,) = db.execute(
            f"SELECT count(DISTINCT task_key) FROM {'measurements' if old else 'places WHERE last_id IS NOT NULL'}"
        ).fetchone()
        (runs,) = db.execute("SELECT count(*) FROM runs").fetchone()
        first, last = db.execute(f"SELECT min(at), max(at) FROM {table}").fetchone()
        limits = {"1 d": 1, "7 d": 7, "30 d": 30, "90 d": 90, "365 d": 365}
        younger = db.execute(
            f"SELECT {', '.join(f'coalesce(sum(at > {now - 86400 * d!r}), 0)' for d in limits.values())} FROM {table}"
        ).fetchone()
        held = _bytes(store, db)
    return {
        "file": store.name,
        "schema": layout.number,
        "rows": rows,
        "doubles": rows - distinct,
        "failures": failures,
        "devices": devices,
        "tasks": tasks,
        "runs": runs,
        "oldest_s": None if first is None else now - first,
        "newest_s": None if last is None else now - last,
        "ages": dict(zip(limits, younger, strict=True)),
        "bytes": {**held, "record": (held["file"] - held["free"]) / rows if rows else None},
    }


def compact(store: SqliteStore, by: str, dry_run: bool = False) -> dict[str, Any]:
    """Leave one record of each row on a device; returns `rows`, `removed` and `averaged`.

    Source: Chen et al. (2024), Optimizing Neural Network Compilation via Adaptive Workflow with AutoTVM, section III.B.

    Args:
        by: "date": the newest stays, so that `best` and restoring answer as before. "mean": the newest gets the mean of
            all valid latencies as its only timing, and all their runs; where it is a failure it stays as it is.
    """
    if by not in ("date", "mean"):
        raise ValueError(f"by must be date or mean, got {by!r}")
    with store.transaction(keep=not dry_run) as (db, layout):
        rows, averaged = _count(db), 0
        with _scratch(db, "doomed (id INTEGER PRIMARY KEY)", "means (id INTEGER PRIMARY KEY, s REAL, runs INTEGER, n)"):
            left_alone = _recorded(db)
            db.execute(
                "INSERT INTO temp.doomed SELECT id FROM (SELECT id, place, lead(id) OVER (PARTITION BY place, config"
                f" ORDER BY id) AS later FROM records) WHERE later IS NOT NULL AND place NOT IN ({left_alone})"
            )
            if by == "mean":
                averaged = _average(db, layout, left_alone)
            removed = _remove(db, layout)
    return {"rows": rows, "removed": removed, "averaged": averaged}


def prune(store: SqliteStore, unwanted: Unwanted, dry_run: bool = False, clock: Clock | None = None) -> dict[str, Any]:
    """Remove what is unwanted; returns `rows` and `removed`."""
    now = (clock or WallClock()).now()
    with store.transaction(keep=not dry_run) as (db, layout):
        rows = _count(db)
        with _scratch(
            db,
            "doomed (id INTEGER PRIMARY KEY)",
            "best (place INTEGER, config TEXT, PRIMARY KEY (place, config)) WITHOUT ROWID",
            "theirs (id INTEGER PRIMARY KEY)",
        ):
            if unwanted.agent is not None:
                db.executemany("INSERT INTO temp.theirs VALUES (?)", _measured_by(db, unwanted.agent))
            if unwanted.keep_best:
                db.execute(
                    "INSERT INTO temp.best SELECT place, config FROM (SELECT r.place, r.config, row_number() OVER"
                    " (PARTITION BY p.task_key, p.device ORDER BY r.median_s, r.id) AS rank"
                    " FROM (SELECT id, place, config, median_s, lead(id) OVER (PARTITION BY place, config ORDER BY id)"
                    " AS later FROM records) AS r"
                    " JOIN places AS p ON p.id = r.place WHERE r.later IS NULL AND r.median_s IS NOT NULL)"
                    " WHERE rank <= ?",
                    (unwanted.keep_best,),
                )
            where, values = [f"place NOT IN ({_recorded(db)})"], []
            same, of = _same_source(unwanted)
            if unwanted.older_than_s is not None:
                where.append("at < ?")
                values.append(now - unwanted.older_than_s)
            if unwanted.failed:
                where.append("error IS NOT NULL")
            if unwanted.device is not None:
                where.append("place IN (SELECT id FROM places WHERE device GLOB ?)")
                values.append(unwanted.device)
            if unwanted.task is not None:
                where.append(
                    "place IN (SELECT p.id FROM places AS p LEFT JOIN known_tasks AS t ON t.key = p.task_key"
                    " WHERE p.task_key GLOB ? OR t.name GLOB ?)"
                )
                values += [unwanted.task, unwanted.task]
            where, values = where + same, values + of
            if unwanted.keep_best:
                where.append("(place, config) NOT IN temp.best")
            db.execute(f"INSERT INTO temp.doomed SELECT id FROM records WHERE {' AND '.join(where)}", values)
            kin = "".join(f" AND r.{condition}" for condition in same)
            db.execute(  # an earlier record of the same row would be the verdict that counts
                "INSERT OR IGNORE INTO temp.doomed SELECT r.id FROM (SELECT place, config, max(id) AS last FROM records"
                " WHERE id IN temp.doomed GROUP BY place, config) AS d"
                f" JOIN records AS r ON r.place = d.place AND r.config = d.config AND r.id < d.last{kin}",
                of,
            )
            removed = _remove(db, layout)
        if unwanted.origin == IMPORT:
            _forget_runs(db)
    return {"rows": rows, "removed": removed}


def _same_source(unwanted: Unwanted) -> tuple[list[str], list[str]]:
    """Conditions on whom a record comes from, and their values: others' records of its row do not go along with it."""
    same, of = [], []
    if unwanted.origin is not None:
        same.append(_OF_ORIGIN)
        of.append(unwanted.origin)
    if unwanted.agent is not None:
        same.append("context IN temp.theirs")
    return same, of


def _measured_by(db: sqlite3.Connection, pattern: str) -> list[tuple[int]]:
    """Contexts of an agent's records."""
    found = []
    for i, text in db.execute("SELECT id, versions FROM contexts"):
        versions = from_json(text)
        agent = versions.get("agent") if isinstance(versions, dict) else None
        if isinstance(agent, str) and any(fnmatchcase(a, pattern) for a in (agent, agent.partition("/")[2])):
            found.append((i,))
    return found


def merge(sources: Sequence[SqliteStore], into: SqliteStore, dry_run: bool = False) -> dict[str, Any]:
    """Bring all records, runs, tasks and tables of others into one history, by date; returns `rows`, `added` and
    `doubles`, the records that were there more than once and count once, and `others`, those left out because their
    operator has by chance the key of another one that an earlier file or `into` knows.

    Args:
        sources: Of either schema version; they are only read.
        into: A new history, or one that has records already; a source that is the same file adds nothing.
    """
    with ExitStack() as stack:
        if dry_run and not os.path.exists(into.name):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tt-history-"))
            into = SqliteStore(Path(folder) / "merged.db")
            stack.callback(into.close)
        others = [s for s in sources if not _same_file(s.name, into.name)]
        opened = [stack.enter_context(s.reading()) for s in others]
        db, layout = stack.enter_context(into.transaction(keep=not dry_run))
        before = _count(db)
        apart: list[set[str]] = []
        for source, (other, view) in zip(others, opened, strict=True):
            with _blamed(source):
                apart.append(_merge_about(db, layout, other, view))
                _merge_tables(db, other, source.name, into.name)
        _merge_runs(db, [other for other, _ in opened])
        left: Counter[str] = Counter()
        streams = [
            _without(keys, left, _told(source, view.raws(other)))
            for source, (other, view), keys in zip(others, opened, apart, strict=True)
        ]
        total = _merge_records(db, layout, streams)
        rows = _count(db)
    return {"rows": rows, "added": rows - before, "doubles": total - rows, "others": sum(left.values())}


def vacuum(store: SqliteStore, dry_run: bool = False) -> dict[str, Any]:
    """Check the file, take in its log, drop what nothing refers to, and give free space back; returns `integrity`
    ("ok"), `bytes_before`, and `bytes` as `stats` has them. A dry run only checks. Raises `StoreError` on damage."""
    with store.reading() as (db, _):
        found = [text for (text,) in db.execute("PRAGMA integrity_check(3)")]
        held = _bytes(store, db)
    if found != ["ok"]:
        raise StoreError(
            f"{store.name}: the database is damaged ({found[0]}); move it away, and save what can be read with"
            " the sqlite3 program's .recover"
        )
    before = held["file"] + held["log"]
    if not dry_run:
        with store.transaction() as (db, layout):
            db.execute("DELETE FROM places WHERE last_id IS NULL")
            db.execute("DELETE FROM contexts WHERE id NOT IN (SELECT context FROM records)")
            db.execute("DELETE FROM remarks WHERE id NOT IN (SELECT remark FROM records WHERE remark IS NOT NULL)")
            layout.forget()
        with store.alone() as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        with store.reading() as (db, _):
            held = _bytes(store, db)
    return {"integrity": "ok", "bytes_before": before, "bytes": held}


# -- removing -----------------------------------------------------------------------------------------------------


def _count(db: sqlite3.Connection) -> int:
    return db.execute("SELECT count(*) FROM records").fetchone()[0]


@contextmanager
def _scratch(db: sqlite3.Connection, *tables: str) -> Iterator[None]:
    """Temporary tables for the length of the block; they lie outside the file."""
    for table in tables:
        db.execute(f"DROP TABLE IF EXISTS temp.{table.split()[0]}")
        db.execute(f"CREATE TEMP TABLE {table}")
    yield
    for table in tables:
        db.execute(f"DROP TABLE temp.{table.split()[0]}")


def _recorded(db: sqlite3.Connection) -> str:
    """Ids of the places that hold a recording, as SQL's list: what `tt record` says of it lies in its runs."""
    found = set()
    for (text,) in db.execute("SELECT info FROM runs WHERE info LIKE '%\"recording\":%'").fetchall():
        try:
            info = from_json(text)
            key = (info["task"].key, info["space_key"], info["device"])
        except (ValueError, KeyError, AttributeError, TypeError):  # says something else of it
            continue
        found |= {
            i for (i,) in db.execute("SELECT id FROM places WHERE task_key = ? AND space_key = ? AND device = ?", key)
        }
    return ", ".join(map(str, sorted(found)))


def _forget_runs(db: sqlite3.Connection) -> None:
    """Drop imported runs that no record refers to any more."""
    found = db.execute(
        f"SELECT id, info FROM runs WHERE info LIKE '%\"{IMPORT}\":%' AND id NOT IN"
        " (SELECT run_id FROM contexts WHERE id IN (SELECT context FROM records))"
    ).fetchall()
    for run_id, text in found:
        try:
            mark = from_json(text).get(IMPORT)
        except (ValueError, AttributeError):  # no object of ours
            continue
        if isinstance(mark, dict) and set(mark) == {"file", "date"}:
            db.execute("DELETE FROM runs WHERE id = ?", (run_id,))


def _average(db: sqlite3.Connection, layout: Version2, left_alone: str) -> int:
    """Give the newest record of each row with several, unless a failure, the mean of all; returns how many."""
    db.execute(
        "INSERT INTO temp.means SELECT a.last, a.s, a.runs, a.n FROM (SELECT max(id) AS last, avg(median_s) AS s,"
        f" sum(runs) AS runs, count(*) AS n FROM records WHERE place NOT IN ({left_alone})"
        " GROUP BY place, config HAVING count(*) > 1) AS a JOIN records AS r ON r.id = a.last WHERE r.error IS NULL"
    )
    last, done = 0, 0
    while part := db.execute(
        "SELECT id, s, runs, n FROM temp.means WHERE id > ? ORDER BY id LIMIT ?", (last, _PART)
    ).fetchall():
        db.executemany(
            "UPDATE records SET median_s = ?, seconds = ?, runs = ?, remark = ? WHERE id = ?",
            [(s, struct.pack("<d", s), runs, layout.remark(db, f"mean of {n} records"), i) for i, s, runs, n in part],
        )
        last, done = part[-1][0], done + len(part)
    return done


def _remove(db: sqlite3.Connection, layout: Version2) -> int:
    """Delete the doomed and count their places anew."""
    places = [i for (i,) in db.execute("SELECT DISTINCT place FROM records WHERE id IN temp.doomed")]
    removed = db.execute("DELETE FROM records WHERE id IN temp.doomed").rowcount
    layout.recount(db, places)
    return removed


# -- merging ------------------------------------------------------------------------------------------------------


def _same_file(a: str, b: str) -> bool:
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


@contextmanager
def _blamed(source: SqliteStore) -> Iterator[None]:
    """Say what a source cannot do of the source, not of the file that is written."""
    try:
        yield
    except sqlite3.DatabaseError as e:
        raise source.explained(e) from e


def _told(source: SqliteStore, records: Iterator[tuple[int, Raw]]) -> Iterator[tuple[int, Raw]]:
    with _blamed(source):
        yield from records


def _without(keys: set[str], left: Counter[str], records: Iterator[tuple[int, Raw]]) -> Iterator[tuple[int, Raw]]:
    """The records of other tasks; `left` counts those that are not told."""
    for i, raw in records:
        if (key := raw.place[0]) in keys:
            left[key] += 1
        else:
            yield i, raw


def _merge_about(
    db: sqlite3.Connection, layout: Version2, other: sqlite3.Connection, view: Version1 | Version2
) -> set[str]:
    """Take tasks and spaces that are not yet known; the keys that are another operator's here."""
    apart = set()
    for t in view.tasks(other):
        payload = b""
        if isinstance(view, Version2):
            (payload,) = other.execute("SELECT payload FROM known_tasks WHERE key = ?", (t["key"],)).fetchone()
        if layout.is_another(db, t["key"], t["target"], t["shapes"]):
            apart.add(t["key"])
            continue
        db.execute(
            "INSERT INTO known_tasks (key, name, op, target, shapes, flops, weight, workload, payload)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET"
            " workload = CASE workload WHEN '' THEN excluded.workload ELSE workload END,"
            " payload = CASE payload WHEN x'' THEN excluded.payload ELSE payload END",
            (*(t[k] for k in ("key", "name", "op", "target", "shapes", "flops", "weight", "workload")), payload),
        )
    if isinstance(view, Version2):
        for key, content in other.execute("SELECT key, content FROM spaces WHERE content IS NOT NULL"):
            layout.keep_space(db, key, content)
        db.executemany(
            "INSERT OR IGNORE INTO task_spaces (task_key, space_key) VALUES (?, ?)",
            (
                row
                for row in other.execute("SELECT task_key, space_key FROM task_spaces ORDER BY id")
                if row[0] not in apart
            ),
        )
    return apart


def _merge_runs(db: sqlite3.Connection, others: Iterable[sqlite3.Connection]) -> None:
    """All runs by start; of one that is in several files, the one that knows its end."""
    found: dict[str, tuple[Any, ...]] = {}
    for source in (db, *others):
        for row in source.execute("SELECT id, started, ended, reason, info FROM runs ORDER BY rowid"):
            if row[0] not in found or found[row[0]][2] is None:
                found[row[0]] = row
    db.execute("DELETE FROM runs")
    db.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", sorted(found.values(), key=lambda r: r[1]))


def _merge_tables(db: sqlite3.Connection, other: sqlite3.Connection, name: str, into: str) -> None:
    """Tables of others, e.g. a recording's statements: rows that are equal, or have an equal key, count once."""
    listed = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for table, sql in other.execute(listed).fetchall():
        if table in OURS:
            continue
        quoted = '"' + table.replace('"', '""') + '"'
        there = db.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
        if there is None:
            db.execute(sql)
        elif [c[1:] for c in other.execute(f"PRAGMA table_info({quoted})")] != [
            c[1:] for c in db.execute(f"PRAGMA table_info({quoted})")
        ]:
            raise StoreError(f"{into}: its table {table} has other columns than that of {name}; merge into a new file")
        cursor = other.execute(f"SELECT * FROM {quoted}")
        names = [c[0] for c in cursor.description]
        while part := cursor.fetchmany(_PART):
            db.executemany(f"INSERT OR IGNORE INTO {quoted} VALUES ({', '.join('?' * len(names))})", part)
        if not any(c[5] for c in other.execute(f"PRAGMA table_info({quoted})")):
            columns = ", ".join('"' + n.replace('"', '""') + '"' for n in names)
            db.execute(f"DELETE FROM {quoted} WHERE rowid NOT IN (SELECT min(rowid) FROM {quoted} GROUP BY {columns})")


def _merge_records(db: sqlite3.Connection, layout: Version2, others: Sequence[Iterator[tuple[int, Raw]]]) -> int:
    """Records of all files in the order of their dates, each file's own order kept; returns how many there were.

    They are written to a new table, because an older record must not come after a newer verdict on its row.
    """
    db.execute(RECORDS.format("merged"))
    total = 0
    merged = heapq.merge(layout.raws(db), *others, key=lambda x: x[1].at)
    while part := [raw for _, raw in itertools.islice(merged, _PART)]:
        total += layout.insert(db, part, into="merged")
    for view in ("measurements", "tasks"):
        db.execute(f"DROP VIEW {view}")
    db.execute("DROP TABLE records")
    db.execute("ALTER TABLE merged RENAME TO records")
    for statement in (*INDEXES, *VIEWS):
        db.execute(statement)
    db.execute(
        "DELETE FROM records WHERE id IN (SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY place, config, at,"
        " context, error, median_s, runs, remark, seconds, cost ORDER BY id) AS n FROM records) WHERE n > 1)"
    )
    layout.recount(db)
    return total


def _bytes(store: SqliteStore, db: sqlite3.Connection) -> dict[str, int]:
    """Of the file, of its log, and what is free in the file."""
    (size,) = db.execute("PRAGMA page_size").fetchone()
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    log = f"{store.name}-wal"
    return {"file": pages * size, "log": os.path.getsize(log) if os.path.isfile(log) else 0, "free": free * size}
