"""The tables, indexes and views of schema version 2."""

from __future__ import annotations

__all__ = ["INDEXES", "OURS", "RECORDS", "RUNS", "SCHEMA", "VIEWS"]

_UPGRADE = "schema version 2 needs a newer tt-history: pip install --upgrade tt-history"

RECORDS = """
CREATE TABLE {} (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    place INTEGER NOT NULL,
    config TEXT NOT NULL,
    context INTEGER NOT NULL,
    error TEXT,
    median_s REAL,
    runs INTEGER NOT NULL,
    at REAL NOT NULL,
    remark INTEGER,
    seconds BLOB NOT NULL,
    cost BLOB,
    knobs BLOB
)"""

INDEXES = (
    "CREATE INDEX records_by_row ON records (place, config)",
    "CREATE INDEX records_by_median ON records (place, median_s) WHERE median_s IS NOT NULL",
)

RUNS = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    started REAL NOT NULL,
    ended REAL,
    reason TEXT,
    info TEXT NOT NULL
)"""

SCHEMA = (
    """
CREATE TABLE places (
    id INTEGER PRIMARY KEY,
    task_key TEXT NOT NULL,
    space_key TEXT NOT NULL,
    device TEXT NOT NULL,
    trials INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    invalid INTEGER NOT NULL DEFAULT 0,
    first_id INTEGER,
    last_id INTEGER,
    last_at REAL,
    UNIQUE (task_key, space_key, device)
)""",
    """
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY,
    origin TEXT NOT NULL,
    run_id TEXT NOT NULL,
    versions TEXT NOT NULL,
    costs TEXT NOT NULL,
    UNIQUE (origin, run_id, versions, costs)
)""",
    "CREATE TABLE remarks (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL, text TEXT NOT NULL)",
    "CREATE INDEX remarks_by_crc ON remarks (crc)",
    """
CREATE TABLE known_tasks (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    op TEXT NOT NULL,
    target TEXT NOT NULL,
    shapes TEXT NOT NULL,
    flops REAL NOT NULL,
    weight REAL NOT NULL,
    workload TEXT NOT NULL,
    payload BLOB NOT NULL
)""",
    "CREATE INDEX known_tasks_by_workload ON known_tasks (workload)",
    """
CREATE TABLE spaces (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    content BLOB,
    sample TEXT
)""",
    """
CREATE TABLE task_spaces (
    id INTEGER PRIMARY KEY,
    task_key TEXT NOT NULL,
    space_key TEXT NOT NULL,
    UNIQUE (task_key, space_key)
)""",
)

VIEWS = (
    f"""
CREATE VIEW measurements AS
SELECT r.id, p.task_key, p.space_key, r.config, n.note AS knobs, n.note AS seconds, r.median_s, r.runs, r.error,
       coalesce(m.text, '') AS why, n.note AS cost, c.origin, p.device, c.versions, r.at, c.run_id
FROM records AS r JOIN places AS p ON p.id = r.place JOIN contexts AS c ON c.id = r.context
LEFT JOIN remarks AS m ON m.id = r.remark
JOIN (SELECT '{{"$type":"{_UPGRADE}"}}' AS note) AS n""",
    "CREATE VIEW tasks AS SELECT key, name, op, target, shapes, flops, weight, workload FROM known_tasks",
    *(
        f"CREATE TRIGGER {view}_of_an_older_version INSTEAD OF INSERT ON {view} BEGIN"
        f" SELECT RAISE(ABORT, '{_UPGRADE}'); END"
        for view in ("measurements", "tasks")
    ),
)
"""The view for people's SQL and for processes of version 1: the latter are told to make way for a newer one."""

OURS = (
    "places",
    "contexts",
    "remarks",
    "known_tasks",
    "spaces",
    "task_spaces",
    "runs",
    "records",
    "measurements",
    "tasks",
)
"""Tables and views of ours in a file; all others belong to somebody else."""
