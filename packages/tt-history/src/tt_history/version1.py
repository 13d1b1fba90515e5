"""Files of schema version 1, which are read as they are and rewritten at the first write."""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from tt_spec.errors import StoreError
from tt_spec.serial import from_json
from tt_spec.types import Measurement, Task

from tt_history.raw import Raw

__all__ = ["Version1"]

_FIELDS = (
    "id, task_key, space_key, config, knobs, seconds, median_s, runs, error, why, cost, origin, device, versions, at,"
    " run_id"
)
_CONFIG = re.compile(r"\[[-\d, ]*\]")

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


class Version1:
    """Reading schema version 1: one table `measurements` with JSON in its columns.

    Args:
        name: The file, for messages.
    """

    number = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def ids(self, db: sqlite3.Connection, **wanted: str | None) -> array[int]:
        """Ids of the rows that fit, in order of arrival."""
        where, values = _where(wanted)
        return array("q", (i for (i,) in db.execute(f"SELECT id FROM measurements{where} ORDER BY id", values)))

    def read(self, db: sqlite3.Connection, ids: Sequence[int]) -> list[Measurement]:
        """The rows of these ids, in order; ids that are gone are left out."""
        places = ", ".join("?" * len(ids))
        rows = db.execute(f"SELECT {_FIELDS} FROM measurements WHERE id IN ({places}) ORDER BY id", list(ids))
        return [self._measurement(row) for row in rows]

    def best(self, db: sqlite3.Connection, task_key: str, device: str | None) -> Measurement | None:
        """The valid row of lowest median whose latest verdict it is."""
        where, values = _where({"task_key": task_key, "device": device})
        row = db.execute(
            f"SELECT {_FIELDS} FROM measurements WHERE id IN ({_LATEST.format(where)}) AND median_s IS NOT NULL"
            " ORDER BY median_s, id LIMIT 1",
            values,
        ).fetchone()
        return None if row is None else self._measurement(row)

    def summary(self, db: sqlite3.Connection) -> list[dict[str, Any]]:
        """One per task and device, by first arrival."""
        cursor = db.execute(_SUMMARY)
        names = [c[0] for c in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def trials(self, db: sqlite3.Connection) -> dict[str, int]:
        """Measured rows of each task that has any, by its key."""
        return dict(db.execute("SELECT task_key, sum(error IS NOT 'invalid') FROM measurements GROUP BY task_key"))

    def tasks(self, db: sqlite3.Connection) -> list[dict[str, Any]]:
        """The records of tasks; version 1 kept neither workload nor payload nor spaces."""
        rows = db.execute("SELECT key, name, op, target, shapes, flops, weight FROM tasks ORDER BY rowid")
        names = ("key", "name", "op", "target", "shapes", "flops", "weight")
        return [{**dict(zip(names, row, strict=True)), "workload": ""} for row in rows]

    def task(self, db: sqlite3.Connection, key: str) -> Task | None:
        """A task by its key, as far as version 1 kept it."""
        names = "key, name, op, target, flops, weight, shapes"
        row = db.execute(f"SELECT {names} FROM tasks WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        _, name, op, target, flops, weight, shapes = row
        return Task(key, name, op, target, (), flops, weight, shapes=shapes)

    def raws(self, db: sqlite3.Connection, after: int = 0, most: int = -1) -> Iterator[tuple[int, Raw]]:
        """`(id, record)` of up to `most` rows whose ids are above `after`, in order."""
        rows = db.execute(f"SELECT {_FIELDS} FROM measurements WHERE id > ? ORDER BY id LIMIT ?", (after, most))
        for row in rows:
            i, task, space, config, knobs, seconds, median_s, runs, error, why, cost, origin, device = row[:13]
            versions, at, run_id = row[13:]
            try:
                times = json.loads(seconds)
                packed = struct.pack(f"<{len(times)}d", *times)
                spent = from_json(cost) if "$" in cost else json.loads(cost)
                if not _CONFIG.fullmatch(config):
                    raise ValueError(f"its config is {config[:40]!r}")
            except (ValueError, TypeError, struct.error) as e:
                raise self._unreadable(i, e) from e
            yield (
                i,
                Raw(
                    (task, space, device),
                    config.replace(" ", ""),
                    origin,
                    run_id,
                    versions,
                    spent,
                    error,
                    median_s,
                    runs,
                    at,
                    why,
                    packed,
                    knobs,
                ),
            )

    def _measurement(self, row: tuple[Any, ...]) -> Measurement:
        i, task, space, config, knobs, seconds, _, runs, error, why, cost, origin, device, versions, at, run_id = row
        try:
            return Measurement(
                task,
                space,
                tuple(json.loads(config)),
                from_json(knobs),
                tuple(json.loads(seconds)),
                runs,
                error,
                why,
                from_json(cost),
                origin,
                device,
                from_json(versions),
                at,
                run_id,
            )
        except (ValueError, TypeError) as e:
            raise self._unreadable(i, e) from e

    def _unreadable(self, i: int, e: Exception) -> StoreError:
        return StoreError(f"{self.name}: measurement {i} cannot be read ({e}); was the file edited by hand?")


def _where(wanted: dict[str, str | None]) -> tuple[str, list[str]]:
    given = {k: v for k, v in wanted.items() if v is not None}
    return (" WHERE " + " AND ".join(f"{k} = ?" for k in given) if given else ""), list(given.values())
