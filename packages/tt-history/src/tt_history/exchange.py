"""A history to and from files of any format.

What comes from a file is not believed: its records say `import`, with the file and the date, and never take the place
of one that was measured here. An import is one transaction: killed, or at the first mistake in the file, it has done
nothing.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from tt_spec.clock import Clock, WallClock
from tt_spec.errors import FormatError
from tt_spec.exchange import Content, Item, LeftOut, check
from tt_spec.roles import Format, Writes
from tt_spec.serial import to_json
from tt_spec.types import IMPORT, Measurement, RunRecord, Task

from tt_history.raw import Explain, Raw, explain, raw_of
from tt_history.sqlite import SqliteStore
from tt_history.version2 import Version2

__all__ = ["export", "take"]

_PART = 4096
"""Records that are written at once."""

_ASKED = 500
"""Rows that one question to the file is about; SQLite before 3.32 takes 999 values."""

_NAME = 100
"""Characters of a file's name that are kept."""

_MISTAKES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)

Told = Callable[[int], None]
"""Told from time to time how many records are done."""


def export(store: SqliteStore, form: Writes, path: Path, told: Told = lambda n: None) -> dict[str, Any]:
    """Write all tasks, runs and records; returns `rows`, those that were `written`, and `left_out` by reason."""
    tasks = [store.task(t["key"]) or _named(t) for t in store.tasks()]
    runs = [RunRecord(r["id"], r["started"], r["ended"], r["reason"], r["info"]) for r in store.runs()]
    rows, records = store.counted()
    left = form.write(path, Content(tasks, runs, _watched(records, told), rows))
    return {
        "rows": rows,
        "written": rows - sum(left.values()),
        "left_out": left,
        "tasks": len(tasks),
        "runs": len(runs),
    }


def _named(about: dict[str, Any]) -> Task:
    """What a history of version 1 knows of a task."""
    return Task(**{k: about[k] for k in ("key", "name", "op", "target", "flops", "weight", "shapes")}, spaces=())


def _watched(records: Iterator[Measurement], told: Told) -> Iterator[Measurement]:
    for n, m in enumerate(records):
        if n % _PART == 0:
            told(n)
        yield m


def take(
    store: SqliteStore,
    form: Format,
    path: Path,
    dry_run: bool = False,
    clock: Clock | None = None,
    told: Told = lambda n: None,
) -> dict[str, Any]:
    """Bring what a file holds into a history; returns `records` (read), `added`, `known` (the same record is there),
    `measured_here` (this history measured the row itself), `left_out` by reason, and the number of new `tasks` and
    `runs`.

    Raises `FormatError`, and then nothing has changed.
    """
    with ExitStack() as stack:
        if dry_run and not os.path.exists(store.name):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tt-history-"))
            store = SqliteStore(Path(folder) / "imported.db")
            stack.callback(store.close)
        today = datetime.fromtimestamp((clock or WallClock()).now(), timezone.utc).date().isoformat()
        db, layout = stack.enter_context(store.transaction(keep=not dry_run))
        taking = _Taking(db, layout, path, _mark(path), today)
        items = iter(form.read(path))
        while part := list(islice(items, _PART)):
            taking.part(part)
            told(taking.counts["records"])
    return taking.result()


def _mark(path: Path) -> str:
    name = "".join(c if c.isprintable() else "?" for c in path.name)
    return name.encode("utf-8", "replace").decode()[-_NAME:]


@dataclass
class _Taking:
    """An import that goes on.

    Args:
        file: Its name, as records are marked with it.
        brought: Decoders of spaces that the history lacked. Their choices are the file's own objects, as those of its
            records may be, so that comparing both takes no time.
        versions: Those of the last record, and their JSON.
    """

    db: sqlite3.Connection
    layout: Version2
    path: Path
    file: str
    today: str
    counts: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    others: set[str] = field(default_factory=set)
    places: dict[tuple[str, str, str], int] = field(default_factory=dict)
    brought: dict[str, Explain] = field(default_factory=dict)
    versions: tuple[dict[str, str] | None, str] = (None, "")

    def result(self) -> dict[str, Any]:
        names = ("records", "added", "known", "measured_here", "tasks", "runs")
        return {**{n: self.counts[n] for n in names}, "left_out": dict(self.left)}

    def part(self, part: list[tuple[str, Item]]) -> None:
        """Take some items, tasks and runs at once, then the records."""
        raws: list[Raw] = []
        for where, item in part:
            try:
                check(item)
                if isinstance(item, Measurement):
                    self.counts["records"] += 1
                    self._record(item, raws)
                elif isinstance(item, Task):
                    self._task(item)
                elif isinstance(item, RunRecord):
                    self._run(item)
                elif isinstance(item, LeftOut):
                    self.left[item.why] += 1
                else:
                    raise TypeError(f"{type(item).__name__} is no task, run, record or remark")
            except _MISTAKES as e:
                text = "nested too deeply" if isinstance(e, RecursionError) else " ".join(str(e).split())[:200]
                raise FormatError(f"{self.path}, {where}: {text}") from e
        self.counts["added"] += self.layout.insert(self.db, self._fresh(raws))

    def _record(self, m: Measurement, raws: list[Raw]) -> None:
        if m.task_key in self.others:
            self.left["of operators whose key is another one's in this history"] += 1
            return
        explained = self.brought.get(m.space_key) or self.layout.explained(self.db, m.space_key)
        known = None if explained is None else explained(m.config)
        if explained is not None and known is None:
            raise ValueError(f"{list(m.config)} is no row of the space {m.space_key}")
        if m.versions is not self.versions[0]:  # one object serves many records
            self.versions = (m.versions, to_json(m.versions))
        raws.append(raw_of(m, known, self.versions[1], _marked(m.origin, self.file, self.today)))

    def _fresh(self, raws: list[Raw]) -> Iterable[Raw]:
        """Those that are not there."""
        fresh: dict[tuple[Any, ...], Raw] = {}
        there = self._there(raws)
        for raw in raws:
            name = (raw.place, raw.config, raw.at, raw.seconds, raw.error)
            if name in fresh:
                self.counts["known"] += 1
                continue
            same = None
            for at, seconds, error, source in there.get(name[:2], ()):
                if source.split(" ", 1)[0] != IMPORT:
                    same = "known" if (at, seconds, error) == name[2:] else same or "measured_here"
                elif (at, seconds, error) == name[2:]:
                    same = "known"
            if same is None:
                fresh[name] = raw
            else:
                self.counts[same] += 1
        return fresh.values()

    def _there(self, raws: list[Raw]) -> dict[Any, list[tuple[float, bytes, str | None, str]]]:
        """What the history has of the same rows, by place and row: one question for many, not one for each."""
        wanted: dict[tuple[str, str, str], dict[str, None]] = {}
        for raw in raws:
            wanted.setdefault(raw.place, {})[raw.config] = None
        found: dict[Any, list[tuple[float, bytes, str | None, str]]] = {}
        for place, configs in wanted.items():
            number = self._place(place)
            left = iter(configs)
            while number is not None and (some := list(islice(left, _ASKED))):
                for config, *about in self.db.execute(
                    "SELECT r.config, r.at, r.seconds, r.error, c.origin FROM records AS r"
                    " JOIN contexts AS c ON c.id = r.context"
                    f" WHERE r.place = ? AND r.config IN ({', '.join('?' * len(some))})",
                    (number, *some),
                ):
                    found.setdefault((place, config), []).append(tuple(about))
        return found

    def _place(self, place: tuple[str, str, str]) -> int | None:
        """Its number here; None of one that is new."""
        if place not in self.places:
            found = self.db.execute(
                "SELECT id FROM places WHERE task_key = ? AND space_key = ? AND device = ?", place
            ).fetchone()
            if found is None:
                return None
            self.places[place] = found[0]
        return self.places[place]

    def _task(self, t: Task) -> None:
        """Keep a task that is new; of one that is known, only what the history lacks."""
        if self.layout.is_another(self.db, t.key, t.target, t.shapes):
            self.others.add(t.key)
            return
        fresh = [s for s in t.spaces if self.layout.explained(self.db, s.key) is None]
        self.counts["tasks"] += self.layout.introduce(self.db, t)
        self.brought.update((s.key, explain(s)) for s in fresh)

    def _run(self, r: RunRecord) -> None:
        """A run of somebody else: marked, and no recording of ours even if it was theirs."""
        info = {k: v for k, v in r.info.items() if k != "recording"}
        info[IMPORT] = {"file": self.file, "date": self.today}
        self.counts["runs"] += self.db.execute(
            "INSERT OR IGNORE INTO runs (id, started, ended, reason, info) VALUES (?, ?, ?, ?, ?)",
            (r.id, float(r.started), r.ended, r.reason, to_json(info)),
        ).rowcount


@lru_cache(maxsize=256)
def _marked(origin: str, file: str, today: str) -> str:
    """The origin of a record that came from a file; of one that had come from another file before, its own first."""
    first, _, rest = origin.partition(" ")
    base = rest if first == IMPORT and rest else origin
    return f"{IMPORT} {base.split(',')[0][:40]}, {file}, {today}"
