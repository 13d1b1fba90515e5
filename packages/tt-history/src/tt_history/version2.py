"""Schema version 2: what repeats is kept once, and every task with what it takes to read its rows."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tt_spec.errors import StoreError
from tt_spec.serial import from_json, to_json
from tt_spec.space import Space
from tt_spec.types import IMPORT, Measurement, Task

from tt_history.cells import median, pack_costs, parsed, unpack_costs
from tt_history.raw import Explain, Raw, explain, explain_json, raw_of, same, spent_and_noise

__all__ = ["BEST_OF_PLACE", "UNREADABLE", "Version2", "left_out"]

_SELECT = """
SELECT r.id, p.task_key, p.space_key, r.config, r.knobs, r.seconds, r.runs, r.error, m.text, r.cost, c.costs, c.origin,
       p.device, c.versions, r.at, c.run_id
FROM records AS r JOIN places AS p ON p.id = r.place JOIN contexts AS c ON c.id = r.context
LEFT JOIN remarks AS m ON m.id = r.remark
"""

BEST_OF_PLACE = """
SELECT r.id, r.median_s FROM records AS r WHERE r.place = ? AND r.median_s IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM records AS later WHERE later.place = r.place AND later.config = r.config AND later.id > r.id)
ORDER BY r.median_s, r.id
"""
"""The rows whose latest verdict that is, the fastest first: its index is walked until one has no later record."""

BEST_OF_RUNS = """
SELECT c.run_id, p.task_key, min(b.median_s) FROM (
    SELECT context, place, min(median_s) AS median_s FROM records WHERE median_s IS NOT NULL GROUP BY context, place
) AS b JOIN contexts AS c ON c.id = b.context JOIN places AS p ON p.id = b.place
WHERE c.origin <> 'again' GROUP BY c.run_id, p.task_key
"""
"""Grouped by context first: a million rows are a few hundred of those."""

UNREADABLE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading a row may raise of which somebody changed a column."""


def left_out(name: str, rows: int) -> None:
    """Warn of rows of a file that cannot be read, if there are any."""
    if rows:
        warnings.warn(f"{name}: {rows} damaged rows are left out; was the file edited by hand?", stacklevel=3)


_IMPORTED = f"SELECT id FROM contexts WHERE origin GLOB '{IMPORT} *'"
"""Contexts of records that came from a file."""

_INSERT = (
    "INSERT INTO {} (id, place, config, context, error, median_s, runs, at, remark, seconds, cost, knobs)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

_REMARKS = 4096
"""Remarks whose ids are kept in memory."""

_PLACE = ("task_key", "space_key", "device")
_TEXTS: set[type] = {str}

AGAIN = "again"
"""Origin of a row's later timings in one run, which are no trials."""

_CONTEXT = ("origin", "run_id", "versions", "costs")


class Version2:
    """Reading and writing schema version 2.

    Args:
        name: The file, for messages.
    """

    number = 2

    def __init__(self, name: str) -> None:
        self.name = name
        self._explained: dict[str, Explain] = {}
        self._samples: dict[str, bytes] = {}
        self.forget()

    def forget(self) -> None:
        """Drop ids that are held in memory: after a rollback, or when another process has written."""
        self._places: dict[tuple[str, str, str], int] = {}
        self._contexts: dict[tuple[str, str, str, str], int] = {}
        self._remarks: dict[str, int] = {}
        self._samples.clear()

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, db: sqlite3.Connection, batch: Sequence[Measurement]) -> None:
        """Add measurements; call it inside a transaction."""
        texts: dict[int, str] = {}

        def raw(m: Measurement) -> Raw:
            text = texts.get(id(m.versions))  # one object serves a whole run
            if text is None:
                text = texts[id(m.versions)] = to_json(m.versions)
            explained = self.explained(db, m.space_key)
            return raw_of(m, None if explained is None else explained(m.config), text)

        self.insert(db, map(raw, batch))

    def insert(
        self, db: sqlite3.Connection, raws: Iterable[Raw], ids: Iterator[int] | None = None, into: str = "records"
    ) -> int:
        """Add records and count them with their places; returns how many. Call it inside a transaction.

        Args:
            ids: Of each record; None numbers them on.
            into: The table.
        """
        rows = []
        counts: dict[int, list[Any]] = {}
        (last,) = db.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?", (into,)).fetchone()
        for raw in raws:
            last = last + 1 if ids is None else next(ids)
            place = self._id(db, self._places, "places", _PLACE, raw.place)
            costs, spent = pack_costs(raw.cost)
            about = (raw.origin, raw.run_id, raw.versions, costs)
            context = self._id(db, self._contexts, "contexts", _CONTEXT, about)
            remark = self.remark(db, raw.why) if raw.why else None
            knobs = None if raw.knobs is None else self._packed(db, raw)
            rows.append(
                (
                    last,
                    place,
                    raw.config,
                    context,
                    raw.error,
                    raw.median_s,
                    raw.runs,
                    raw.at,
                    remark,
                    raw.seconds,
                    spent,
                    knobs,
                )
            )
            count = counts.get(place)
            if count is None:
                count = counts[place] = [0, 0, 0, last, last, raw.at]
            count[0] += raw.error != "invalid" and raw.origin != AGAIN
            count[1] += raw.error is not None and raw.error != "invalid"
            count[2] += raw.error == "invalid"
            count[4], count[5] = last, max(count[5], raw.at)
        db.executemany(_INSERT.format(into), rows)
        db.executemany(
            "UPDATE places SET trials = trials + ?, failed = failed + ?, invalid = invalid + ?,"
            " first_id = min(ifnull(first_id, ?4), ?4), last_id = max(ifnull(last_id, ?5), ?5),"
            " last_at = max(ifnull(last_at, ?6), ?6) WHERE id = ?7",
            [(*count, place) for place, count in counts.items()],
        )
        return len(rows)

    def remember(self, db: sqlite3.Connection, tasks: Iterable[Task]) -> None:
        """Keep tasks with their spaces; a workload or payload that is known is not lost to one without."""
        for t in tasks:
            self._keep_task(
                db,
                t,
                "name = excluded.name, op = excluded.op, target = excluded.target, shapes = excluded.shapes,"
                " flops = excluded.flops, weight = excluded.weight,"
                " workload = CASE excluded.workload WHEN '' THEN workload ELSE excluded.workload END,"
                " payload = CASE excluded.payload WHEN x'' THEN payload ELSE excluded.payload END",
            )

    def is_another(self, db: sqlite3.Connection, key: str, target: str, shapes: str) -> bool:
        """Whether this key is another operator's here: keys have 64 bits, and two may meet by chance. What both targets
        and shapes say has to do, because workloads are compared by a compiler. Where the outputs begin was said
        otherwise once, of functions that have several."""
        found = db.execute("SELECT target, shapes FROM known_tasks WHERE key = ? AND shapes != ''", (key,)).fetchone()
        flat = [text.replace(" -> ", ", ") for text in (*(found or ()), target, shapes)]
        return found is not None and shapes != "" and flat[:2] != flat[2:]

    def introduce(self, db: sqlite3.Connection, t: Task) -> int:
        """Keep a task that is not known, with its spaces; of one that is known, a workload and a payload that were
        missing. Returns how many were not known."""
        fresh = db.execute("SELECT 1 FROM known_tasks WHERE key = ?", (t.key,)).fetchone() is None
        self._keep_task(
            db,
            t,
            "workload = CASE workload WHEN '' THEN excluded.workload ELSE workload END,"
            " payload = CASE payload WHEN x'' THEN excluded.payload ELSE payload END",
        )
        return int(fresh)

    def _keep_task(self, db: sqlite3.Connection, t: Task, known: str) -> None:
        """Keep a task with its spaces; `known` says in SQL what changes where its key is known."""
        db.execute(
            "INSERT INTO known_tasks (key, name, op, target, shapes, flops, weight, workload, payload)"
            f" VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET {known}",
            (t.key, t.name, t.op, t.target, t.shapes, float(t.flops), float(t.weight), t.workload, bytes(t.payload)),
        )
        for space in t.spaces:
            self.keep_space(db, space.key, None, space)
            db.execute("INSERT OR IGNORE INTO task_spaces (task_key, space_key) VALUES (?, ?)", (t.key, space.key))

    def keep_space(self, db: sqlite3.Connection, key: str, content: bytes | None, space: Space | None = None) -> None:
        """Keep a space's description, packed or not, unless it is kept already."""
        found = db.execute("SELECT content IS NOT NULL FROM spaces WHERE key = ?", (key,)).fetchone()
        if found is None or not found[0]:
            if content is None and space is not None:
                content = zlib.compress(to_json(space).encode())
            db.execute(
                "INSERT INTO spaces (key, content) VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET content = excluded.content",
                (key, content),
            )
        if space is not None:
            self._explained[key] = explain(space)
        else:
            self._explained.pop(key, None)

    def recount(self, db: sqlite3.Connection, places: Sequence[int] | None = None) -> None:
        """Count the records of these places anew; None is all."""
        chosen = [i for (i,) in db.execute("SELECT id FROM places")] if places is None else places
        one = f" WHERE place = {chosen[0]}" if len(chosen) == 1 else ""
        counted = {
            row[0]: row[1:]
            for row in db.execute(  # the plus: a scan and a sort, not a look-up for each record
                f" WITH again AS (SELECT id FROM contexts WHERE origin = '{AGAIN}') "
                "SELECT place, count(*) - coalesce(sum(error IS 'invalid' OR context IN again), 0),"
                " coalesce(sum(error IS NOT NULL AND error IS NOT 'invalid'), 0),"
                " coalesce(sum(error IS 'invalid'), 0), min(id), max(id), max(at)"
                f" FROM records{one} GROUP BY +place"
            )
        }
        db.executemany(
            "UPDATE places SET trials = ?, failed = ?, invalid = ?, first_id = ?, last_id = ?, last_at = ?"
            " WHERE id = ?",
            [(*counted.get(i, (0, 0, 0, None, None, None)), i) for i in chosen],
        )

    @staticmethod
    def _id(
        db: sqlite3.Connection, known: dict[Any, int], table: str, columns: tuple[str, ...], row: tuple[str, ...]
    ) -> int:
        """The id of a row of a table, which holds it once; `known` remembers it."""
        found = known.get(row)
        if found is None:
            marks = ", ".join("?" * len(columns))
            db.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({marks})", row)
            where = " AND ".join(f"{c} = ?" for c in columns)
            (found,) = db.execute(f"SELECT id FROM {table} WHERE {where}", row).fetchone()
            known[row] = found
        return found

    def remark(self, db: sqlite3.Connection, text: str) -> int:
        """The id of a text, which is kept once."""
        found = self._remarks.get(text)
        if found is None:
            crc = zlib.crc32(text.encode())
            row = db.execute("SELECT id FROM remarks WHERE crc = ? AND text = ?", (crc, text)).fetchone()
            if row is None:
                found = db.execute("INSERT INTO remarks (crc, text) VALUES (?, ?)", (crc, text)).lastrowid or 0
            else:
                (found,) = row
            if len(self._remarks) >= _REMARKS:
                self._remarks.clear()
            self._remarks[text] = found
        return found

    def _packed(self, db: sqlite3.Connection, raw: Raw) -> bytes | None:
        """Knobs that the space does not explain, packed with the first such row of the space as dictionary."""
        assert raw.knobs is not None
        key = raw.place[1]
        known = self.explained(db, key)
        if known is not None and _explains(known, raw):
            return None
        sample = self._sample(db, key)
        if sample is None:
            db.execute(
                "INSERT INTO spaces (key, sample) VALUES (?, ?)"
                " ON CONFLICT (key) DO UPDATE SET sample = excluded.sample",
                (key, raw.knobs),
            )
            sample = self._samples[key] = raw.knobs.encode()
        packer = zlib.compressobj(6, zlib.DEFLATED, -12, 4, zdict=sample)  # a small window: setting up is what it costs
        return packer.compress(raw.knobs.encode()) + packer.flush()

    def _sample(self, db: sqlite3.Connection, key: str) -> bytes | None:
        found = self._samples.get(key)
        if found is None:
            row = db.execute("SELECT sample FROM spaces WHERE key = ? AND sample IS NOT NULL", (key,)).fetchone()
            if row is not None:
                found = self._samples[key] = row[0].encode()
        return found

    # -- reading ------------------------------------------------------------------------------------------------

    def ids(self, db: sqlite3.Connection, **wanted: str | None) -> array[int]:
        """Ids of the rows that fit, in order of arrival."""
        places = self.places(db, **wanted)
        if places is None:
            return array("q", (i for (i,) in db.execute("SELECT id FROM records ORDER BY id")))
        if len(places) == 1:
            rows = db.execute("SELECT id FROM records WHERE place = ? ORDER BY id", places)
            return array("q", (i for (i,) in rows))
        found = array("q")
        for place in places:
            found.extend(i for (i,) in db.execute("SELECT id FROM records WHERE place = ?", (place,)))
        return array("q", sorted(found))

    def places(self, db: sqlite3.Connection, **wanted: str | None) -> list[int] | None:
        """Ids of the (task, space, device) that fit; None for all."""
        given = {k: v for k, v in wanted.items() if v is not None}
        if not given:
            return None
        where = " AND ".join(f"{k} = ?" for k in given)
        return [i for (i,) in db.execute(f"SELECT id FROM places WHERE {where} ORDER BY id", list(given.values()))]

    def read(self, db: sqlite3.Connection, ids: Sequence[int]) -> list[Measurement]:
        """The rows of these ids, in order; ids that are gone are left out."""
        places = ", ".join("?" * len(ids))
        rows = db.execute(f"{_SELECT} WHERE r.id IN ({places}) ORDER BY r.id", list(ids)).fetchall()
        return [self._measurement(db, row) for row in rows]

    def best(self, db: sqlite3.Connection, task_key: str, device: str | None) -> Measurement | None:
        """The valid row of lowest median whose latest verdict it is."""
        best: tuple[float, int, Measurement] | None = None
        damaged = 0
        for place in self.places(db, task_key=task_key, device=device) or []:
            found, out = self._best(db, place)
            damaged += out
            if found is not None and (best is None or found[:2] < best[:2]):
                best = found
        left_out(self.name, damaged)
        return None if best is None else best[2]

    def _best(self, db: sqlite3.Connection, place: int) -> tuple[tuple[float, int, Measurement] | None, int]:
        """The best row of a place that can be read, with its median and id, and how many before it cannot."""
        damaged = 0
        for i, median_s in db.execute(BEST_OF_PLACE, (place,)):
            try:
                (m,) = self.read(db, [i])
                return (float(median_s), i, m), damaged
            except (*UNREADABLE, StoreError):  # one damaged row costs that row, not its task's best
                damaged += 1
        return None, damaged

    def summary(self, db: sqlite3.Connection) -> list[dict[str, Any]]:
        """One per task and device, by first arrival."""
        rows = db.execute(
            "SELECT p.id, p.task_key, p.device, p.space_key, t.name, t.op, p.trials, p.failed, p.invalid, p.last_at,"
            " p.first_id, p.last_id FROM places AS p LEFT JOIN known_tasks AS t ON t.key = p.task_key"
            " WHERE p.last_id IS NOT NULL ORDER BY p.last_id"
        ).fetchall()
        found: dict[tuple[str, str], dict[str, Any]] = {}
        first: dict[tuple[str, str], int] = {}
        damaged = 0
        for i, task_key, device, space_key, name, op, trials, failed, invalid, last, first_id, _ in rows:
            if not all(isinstance(n, int | float) for n in (trials, failed, invalid, last, first_id)):
                damaged += 1
                continue
            best, out = self._best(db, i)
            damaged += out
            both = (task_key, device)
            s = found.setdefault(
                both,
                {
                    "task_key": task_key,
                    "device": device,
                    "name": name,
                    "op": op,
                    "trials": 0,
                    "failed": 0,
                    "invalid": 0,
                    "best_s": None,
                    "last": last,
                    "space_key": space_key,
                },
            )
            s["trials"] += trials
            s["failed"] += failed
            s["invalid"] += invalid
            s["last"] = max(s["last"], last)
            s["space_key"] = space_key  # the place of the latest row comes last
            if best is not None:
                s["best_s"] = best[0] if s["best_s"] is None else min(s["best_s"], best[0])
            first[both] = min(first.get(both, first_id), first_id)
        left_out(self.name, damaged)
        return sorted(found.values(), key=lambda s: first[s["task_key"], s["device"]])

    def bests(self, db: sqlite3.Connection) -> dict[tuple[str, str], float]:
        """Lowest median by run and task."""
        return {(str(run), str(task)): float(s) for run, task, s in db.execute(BEST_OF_RUNS)}

    def trials(self, db: sqlite3.Connection) -> dict[str, int]:
        """Measured rows of each task that has any, by its key."""
        return dict(db.execute("SELECT task_key, sum(trials) FROM places GROUP BY task_key"))

    def tasks(self, db: sqlite3.Connection) -> list[dict[str, Any]]:
        """The records of tasks, without payload and spaces."""
        rows = db.execute(
            "SELECT key, name, op, target, shapes, flops, weight, workload FROM known_tasks ORDER BY rowid"
        )
        names = ("key", "name", "op", "target", "shapes", "flops", "weight", "workload")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def task(self, db: sqlite3.Connection, key: str) -> Task | None:
        """A task as it was remembered, with every space that it ever had, the latest known first."""
        row = db.execute(
            "SELECT name, op, target, flops, weight, payload, shapes, workload FROM known_tasks WHERE key = ?", (key,)
        ).fetchone()
        if row is None:
            return None
        keys = db.execute("SELECT space_key FROM task_spaces WHERE task_key = ? ORDER BY id DESC", (key,)).fetchall()
        spaces = tuple(s for (k,) in keys if (s := self.space(db, k)) is not None)
        name, op, target, flops, weight, payload, shapes, workload = row
        return Task(key, name, op, target, spaces, flops, weight, payload, shapes, workload)

    def space(self, db: sqlite3.Connection, key: str) -> Space | None:
        """The space of that key, None if it was never remembered."""
        return self._space(db, key, from_json)

    def latest(
        self, db: sqlite3.Connection, key: str, most: int, own: tuple[str, str] | None = None
    ) -> Iterator[tuple[Space, str, dict[tuple[int, ...], float]]]:
        """A task's rows by space and device: seconds by row as its latest verdict says, inf for failures, of the newest
        `most` records; rows that never had a program, and those of forgotten spaces, are left out. Of the space and
        device `own` only imported records count."""
        places = db.execute("SELECT id, space_key, device FROM places WHERE task_key = ? ORDER BY id", (key,))
        for place, space_key, device in places.fetchall():
            space = self.space(db, space_key)
            if space is None:
                continue
            found: dict[tuple[int, ...], float] = {}
            foreign = f" AND context IN ({_IMPORTED})" if (space_key, device) == own else ""
            for config, median_s, error in db.execute(
                f"SELECT config, median_s, error FROM records WHERE place = ?{foreign} ORDER BY id DESC LIMIT ?",
                (place, most),
            ):
                row = tuple(json.loads(config))
                if row not in found:
                    found[row] = math.nan if error == "invalid" else math.inf if median_s is None else median_s
            usable = {row: s for row, s in found.items() if s == s and len(row) == len(space.knobs)}
            codes = np.array(list(usable), dtype=np.int64).reshape(-1, len(space.knobs))
            inside = space.in_range(codes)
            yield space, device, {r: s for (r, s), ok in zip(usable.items(), inside, strict=True) if ok}

    def explained(self, db: sqlite3.Connection, key: str) -> Explain | None:
        """The decoder of rows of the space of that key, None if it was never remembered."""
        found = self._explained.get(key)
        if found is None and (found := self._space(db, key, explain_json)) is not None:
            self._explained[key] = found
        return found

    def _space(self, db: sqlite3.Connection, key: str, read: Callable[[bytes], Any]) -> Any:
        row = db.execute("SELECT content FROM spaces WHERE key = ? AND content IS NOT NULL", (key,)).fetchone()
        try:
            return None if row is None else read(zlib.decompress(row[0]))
        except (ValueError, KeyError, TypeError, zlib.error) as e:
            raise self._unreadable(f"space {key}", e) from e

    def raws(self, db: sqlite3.Connection) -> Iterator[tuple[int, Raw]]:
        """`(id, record)` of every row, in order of arrival."""
        for row in db.execute(f"{_SELECT} ORDER BY r.id"):
            i, task, space, config, knobs, seconds, runs, error, why, cost, costs, origin, device, versions, at, run = (
                row
            )
            try:
                text = None if knobs is None else self._unpacked(db, space, knobs)
                median_s = median(seconds)
                place, spent = (task, space, device), unpack_costs(costs, cost)
            except (ValueError, TypeError, struct.error, zlib.error) as e:
                raise self._unreadable(f"measurement {i}", e) from e
            yield (
                i,
                Raw(place, config, origin, run, versions, spent, error, median_s, runs, at, why or "", seconds, text),
            )

    def _measurement(self, db: sqlite3.Connection, row: tuple[Any, ...]) -> Measurement:
        i, task, space, config, knobs, seconds, runs, error, why, cost, costs, origin, device, versions, at, run = row
        try:
            codes = tuple(json.loads(config))
            if knobs is None:
                known = self.explained(db, space)
                decoded = None if known is None else known(codes)
                if decoded is None:
                    raise ValueError("its space is not in the file")
            else:
                decoded = from_json(self._unpacked(db, space, knobs))
            times = struct.unpack(f"<{len(seconds) // 8}d", seconds)
            spent, noise = spent_and_noise(unpack_costs(costs, cost))
            texts = (task, space, origin, device, run, error or "", why or "")
            if type(runs) is not int or type(at) is not float or not _TEXTS.issuperset(map(type, texts)):
                raise TypeError("a column holds what does not belong there")
            return Measurement(
                task, space, codes, decoded, times, runs, error, why or "", spent, origin, device,
                dict(parsed(versions)), at, run, noise,
            )  # fmt: skip
        except (ValueError, TypeError, struct.error, zlib.error) as e:
            raise self._unreadable(f"measurement {i}", e) from e

    def _unpacked(self, db: sqlite3.Connection, space: str, knobs: bytes) -> str:
        return zlib.decompressobj(-15, zdict=self._sample(db, space) or b"").decompress(knobs).decode()

    def _unreadable(self, what: str, e: Exception) -> StoreError:
        return StoreError(f"{self.name}: {what} cannot be read ({e}); was the file edited by hand?")


def _explains(known: Explain, raw: Raw) -> bool:
    try:
        decoded = known(json.loads(raw.config))
        return decoded is not None and same(decoded, from_json(raw.knobs or ""))
    except (ValueError, TypeError):
        return False
