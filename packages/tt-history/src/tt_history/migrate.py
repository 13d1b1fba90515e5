"""From schema version 1 to 2, in place and in one transaction."""

from __future__ import annotations

import sqlite3

from tt_spec.errors import StoreError
from tt_spec.serial import from_json
from tt_spec.types import Task

from tt_history.schema import INDEXES, RECORDS, SCHEMA, VIEWS
from tt_history.version1 import Version1
from tt_history.version2 import Version2

__all__ = ["migrate"]

_PART = 2000
"""Rows that are moved at once; the pages of those before are used again."""


def migrate(db: sqlite3.Connection, old: Version1) -> Version2:
    """Rewrite the file; call it inside a transaction. Ids, runs and tables of others stay as they are.

    Tasks of recordings are in their runs, so their rows need no knobs; other rows keep theirs.
    """
    new = Version2(old.name)
    db.execute("DROP INDEX measurements_by_task")
    db.execute("ALTER TABLE tasks RENAME TO old_tasks")
    for statement in (*SCHEMA, RECORDS.format("records")):
        db.execute(statement)
    db.execute(
        "INSERT INTO known_tasks (key, name, op, target, shapes, flops, weight, workload, payload)"
        " SELECT key, name, op, target, shapes, flops, weight, '', x'' FROM old_tasks ORDER BY rowid"
    )
    db.execute("DROP TABLE old_tasks")
    for run_id, text in db.execute('SELECT id, info FROM runs WHERE info LIKE \'%"$type":"Task"%\'').fetchall():
        try:
            info = from_json(text)
        except ValueError as e:
            raise StoreError(f"{old.name}: run {run_id} cannot be read ({e}); was the file edited by hand?") from e
        new.remember(db, [t for t in info.values() if isinstance(t, Task)])
    last = 0
    while part := list(old.raws(db, last, _PART)):
        new.insert(db, (raw for _, raw in part), iter([i for i, _ in part]))
        last = part[-1][0]
        db.execute("DELETE FROM measurements WHERE id <= ?", (last,))
    db.execute("DROP TABLE measurements")
    for statement in (*INDEXES, *VIEWS):
        db.execute(statement)
    db.execute("PRAGMA user_version=2")
    return new
