"""Recordings on disk: a history database that grows while recording, and T4 JSON to hand on."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import zlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Measurement, Plugins, StoreError

from tt_bench import atomic, t4
from tt_bench.errors import BenchError
from tt_bench.recording import Pace, Recorded, Recording

__all__ = ["FORMAT", "StatementTable", "load", "read_history", "unzipped", "write_t4"]

MOST = 512 << 20
"""Bytes of an unpacked recording at most: a small file may claim to be any size."""

FORMAT = 1
"""Of what a recording says about itself; a reader refuses others."""


def load(path: str | Path) -> Recording:
    """A recording from a history database or from T4 JSON (`.json`, `.json.gz`). Raises `BenchError`."""
    path = Path(path)
    if not path.is_file():
        raise BenchError(f"no recording {path}: tt record writes one")
    with open(path, "rb") as f:
        head = f.read(16)
    if head.startswith(b"SQLite format 3"):
        return read_history(path)
    try:
        raw = path.read_bytes()
        text = unzipped(raw, path) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as e:
        raise BenchError(f"{path}: not readable as JSON ({e}); it may be truncated: record or copy it again") from e
    return t4.read(data, str(path), FORMAT)


def unzipped(raw: bytes, path: Path) -> bytes:
    """The content of a gzip file, bounded. Raises `BenchError`, `OSError`, `EOFError` or `zlib.error`."""
    with gzip.GzipFile(fileobj=io.BytesIO(raw)) as opened:
        text = opened.read(MOST + 1)
    if len(text) > MOST:
        raise BenchError(f"{path}: more than {MOST >> 20} MB once it is unpacked, which no file of tt-bench has")
    return text


def write_t4(recording: Recording, path: Path) -> None:
    """Write T4 JSON, compressed if the name ends in .gz; the same recording gives the same bytes."""
    text = json.dumps(t4.write(recording, FORMAT), separators=(",", ":"), allow_nan=False)
    data = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
    atomic.write(path, data, "every measurement is kept in the history beside it")


def read_history(path: Path, store: Any = None) -> Recording:
    """The recording in a history that `tt record` wrote, complete or not."""
    own = store or Plugins().build("store", "sqlite", path=str(path))
    try:
        runs = own.runs()
        about = [r["info"] for r in runs if "recording" in r["info"]]
        parts = []
        for info in about:
            if info["recording"] != FORMAT:
                raise BenchError(f"{path}: {t4.wrong_format(info['recording'], FORMAT)}")
            if "task" not in info:
                continue
            task = info["task"]
            t4.check_space(task, info["space_key"], str(path))
            measured = list(own.query(task.key, task.space.key))
            paces = [i["pace"] for i in about if i.get("of") == [task.key, task.space.key]]
            statements = StatementTable(path).read(task.key, task.space.key)
            keep = None if info["keep"] is None else tuple(tuple(k) for k in info["keep"])
            pace = (Pace(**paces[-1]) if paces else Pace()).observed(measured)
            parts.append(Recorded.of(task, keep, measured, statements, pace))
    except StoreError as e:
        raise BenchError(str(e)) from e
    finally:
        if store is None:
            own.close()
    first = next((i for i in about if "task" in i), None)
    if first is None:
        raise BenchError(f"{path}: a history without a recording: tt record makes one; tt report shows a run's history")
    return Recording(first["model"], first["space"], tuple(parts), first["device"], first["versions"])


class StatementTable:
    """Statement features in a table of their own in the history file; tt-history does not touch it.

    Args:
        path: Of the SQLite file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, measured: Iterable[Measurement], values: Iterable[np.ndarray]) -> None:
        """Keep `(s, 164)` features of each row."""
        rows = [
            (m.task_key, m.space_key, json.dumps(m.config), t4.pack(v)) for m, v in zip(measured, values, strict=True)
        ]
        try:
            with closing(sqlite3.connect(self.path, timeout=30.0)) as db, db:
                db.execute(
                    "CREATE TABLE IF NOT EXISTS tt_bench_statements"
                    " (task_key TEXT, space_key TEXT, config TEXT, packed TEXT,"
                    " PRIMARY KEY (task_key, space_key, config))"
                )
                db.executemany("INSERT OR REPLACE INTO tt_bench_statements VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as e:
            raise BenchError(f"{self.path}: {e}; every measurement is kept: free some space, then go on") from e

    def read(self, task_key: str, space_key: str) -> dict[tuple[int, ...], np.ndarray]:
        """`(s, 164)` float32 by row."""
        try:
            with closing(sqlite3.connect(self.path, timeout=30.0)) as db:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'tt_bench_statements'").fetchone():
                    return {}
                rows = db.execute(
                    "SELECT config, packed FROM tt_bench_statements WHERE task_key = ? AND space_key = ?",
                    (task_key, space_key),
                ).fetchall()
        except sqlite3.Error as e:
            raise BenchError(f"{self.path}: {e}") from e
        return {tuple(json.loads(c)): t4.unpack(p) for c, p in rows}
