"""Statement features of a data set's programs, computed once into a cache beside it.

`compute` fills the cache through the host's workers and goes on where it was stopped; `groups` is what a model over
statements trains on.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Group, Statements, Task, concat_statements, labels, tokens
from tt_spec.errors import PieceError

from tt_bench.dataset import SUFFIX, DataSet, Operator, load_all, path_of
from tt_bench.errors import BenchError

__all__ = ["Cache", "compute", "groups", "statements"]

CHUNK = 256
"""Rows of one call to the workers, and of one entry of the cache."""

RENEW = 8192
"""Rows after which the workers start anew: they keep the schedules of every task that they have open."""

WIDTH, OPERATOR = 164, 10
MOST = 256 << 20
"""Bytes of an entry of the cache at most, unpacked."""


def groups(folder: str | Path) -> list[Group]:
    """Training data for a model over statements: `(task, Statements, labels)` per operator and device.

    Rows whose program could not be made are left out, and operators with fewer than two rows left. Labels are best /
    seconds of the rows that stay, failures 0. Raises `BenchError` where statements are missing.
    """
    found: list[Group] = []
    for data in load_all(folder):
        for operator, (values, ok) in zip(data.operators, statements(folder, data), strict=True):
            if ok.sum() > 1:
                found.append((operator.task, values, labels(operator.seconds[ok])))
    return found


def statements(folder: str | Path, data: DataSet) -> Iterator[tuple[Statements, np.ndarray]]:
    """Of each operator of a data set: the statements of its rows that have a program, in order, and which rows those
    are, `(n,)` bool. Raises `BenchError` where `tt dataset features` is yet to compute some."""
    path = cache_of(Path(folder), data)
    cache = Cache(path)
    for operator in data.operators:
        known = cache.read(operator) if path.is_file() else []
        values, ok, missing = _of(operator, known)
        if missing.any():
            told = f"{missing.sum()} of {len(operator)} rows of {operator.task.name} have no statements"
            raise BenchError(f"{path}: {told}: tt dataset features {folder} computes them")
        yield values, ok


def cache_of(folder: Path, data: DataSet) -> Path:
    """The cache of a device's statements."""
    path = path_of(folder, data.device)
    return path.with_name(path.name.removesuffix(SUFFIX) + ".statements.db")


def compute(
    host: Any,
    folder: Path,
    *,
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[int, int]:
    """Compute what the cache lacks; how many rows now have statements, and how many have no program.

    Args:
        host: `tt_core.host.Host`.
        halt: Asked after every chunk; a text stops there, and the same call goes on.

    Raises `BenchError`, also for rows of another version of TVM or of a space.
    """
    have = without = 0
    for data in load_all(folder):
        here = host.versions().get("tvm", "")
        if data.tvm != here:
            told = f"rows of TVM {data.tvm}, this is {here}, whose programs may be others"
            raise BenchError(f"{path_of(folder, data.device)}: {told}: install that version, or record again")
        cache = Cache(cache_of(folder, data))
        _fill(host, cache, data.operators, halt, say)
        if halt():
            break
        for _, ok in statements(folder, data):
            have, without = have + int(ok.sum()), without + int((~ok).sum())
    return have, without


def _fill(
    host: Any,
    cache: Cache,
    operators: Sequence[Operator],
    halt: Callable[[], str | None],
    say: Callable[[str], None],
) -> None:
    todo = [(o, missing) for o in operators if (missing := _of(o, cache.read(o))[2]).any()]
    left, began, done = sum(int(m.sum()) for _, m in todo), time.monotonic(), 0
    while todo:
        session, rows, tasks = [], 0, set()
        while todo and rows < RENEW and todo[0][0].task.key not in tasks:  # a worker knows one space of a task
            session.append(todo.pop(0))
            rows += int(session[-1][1].sum())
            tasks.add(session[-1][0].task.key)
        with closing(host.measurer()) as pool:
            for operator, missing in session:
                for codes in np.array_split(operator.codes[missing], -(-int(missing.sum()) // CHUNK)):
                    cache.append(operator, codes, *_features(pool, operator.task, codes))
                    done += len(codes)
                    if halt():
                        return
                each = (time.monotonic() - began) / done
                say(f"{operator.task.name}: {done} of {left} rows, {each * (left - done) / 60:.1f} min left")


def _features(pool: Any, task: Task, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
    try:
        return pool.features(task, codes)
    except PieceError as e:
        raise BenchError(f"{task.name}: {e}; rows of another version must be recorded again") from e


def _of(operator: Operator, known: list[Entry]) -> tuple[Statements, np.ndarray, np.ndarray]:
    """From entries of the cache: statements of the rows that have a program, in order, which rows those are, and which
    rows no entry has, both `(n,)` bool."""
    ok, place, base = {}, {}, 0
    for codes, good, found in known:
        at = base + np.cumsum(good) - 1
        for name, g, i in zip(tokens(codes), good.tolist(), at.tolist(), strict=True):
            ok[name], place[name] = g, i
        base += len(found)
    names = tokens(operator.codes)
    missing = np.array([n not in ok for n in names], dtype=bool)
    have = np.array([ok.get(n, False) for n in names], dtype=bool)
    every = concat_statements([found for _, _, found in known])
    order = np.array([place[n] for n, h in zip(names, have.tolist(), strict=True) if h], dtype=np.int64)
    return _taken(every, order), have, missing


def _taken(found: Statements, order: np.ndarray) -> Statements:
    """Programs of `found` in this order, `(m,)`, as `found[order]`, without a Python loop over programs."""
    lengths = np.diff(found.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.repeat(found.offsets[order] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Statements(found.values[at], offsets, found.operator[order])


Entry = tuple[np.ndarray, np.ndarray, Statements]
"""Rows `(m, d)`, which of them have a program `(m,)` bool, and the statements of those."""


class Cache:
    """Statements in an SQLite file of their own, an entry per chunk of rows: what a kill leaves is whole.

    Args:
        path: Of the file; made with the first entry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, operator: Operator, codes: np.ndarray, found: Statements, ok: np.ndarray) -> None:
        """Keep the statements of rows `(m, d)`, and which have some, `(m,)` bool. Raises `BenchError`."""
        parts = (
            codes.astype("<i8").tobytes(),
            ok.astype(np.uint8).tobytes(),
            np.diff(found.offsets).astype("<i8").tobytes(),
            found.operator.astype("<f4").tobytes(),
            found.values.astype("<f4").tobytes(),
        )
        packed = [zlib.compress(p, 1) for p in parts]
        try:
            with closing(sqlite3.connect(self.path, timeout=30.0)) as db, db:
                db.execute(
                    "CREATE TABLE IF NOT EXISTS statements (task_key TEXT, space_key TEXT,"
                    " codes BLOB, ok BLOB, lengths BLOB, operator BLOB, packed BLOB)"
                )
                db.execute("INSERT INTO statements VALUES (?, ?, ?, ?, ?, ?, ?)", (*operator.key, *packed))
        except sqlite3.Error as e:
            raise BenchError(f"{self.path}: {e}; free some space or delete it, then go on") from e

    def read(self, operator: Operator) -> list[Entry]:
        """The entries of an operator. Raises `BenchError`."""
        if not self.path.is_file():
            return []
        try:
            with closing(sqlite3.connect(self.path, timeout=30.0)) as db:
                if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'statements'").fetchone():
                    return []
                rows = db.execute(
                    "SELECT codes, ok, lengths, operator, packed FROM statements"
                    " WHERE task_key = ? AND space_key = ? ORDER BY rowid",
                    operator.key,
                ).fetchall()
            return [self._entry(operator, row) for row in rows]
        except (sqlite3.Error, zlib.error, ValueError, TypeError) as e:
            raise BenchError(f"{self.path}: {e}; delete it, then tt dataset features makes it again") from e

    @staticmethod
    def _entry(operator: Operator, row: tuple[bytes, ...]) -> Entry:
        codes, ok, lengths, about, values = map(_opened, row)
        rows = np.frombuffer(codes, "<i8").reshape(-1, len(operator.task.space.knobs))
        good = np.frombuffer(ok, np.uint8).astype(bool)
        offsets = np.concatenate([[0], np.cumsum(np.frombuffer(lengths, "<i8"))]).astype(np.int64)
        found = Statements(
            np.frombuffer(values, "<f4").reshape(-1, WIDTH).astype(np.float64),
            offsets,
            np.frombuffer(about, "<f4").reshape(-1, OPERATOR).astype(np.float64),
        )
        if not len(rows) == len(good) or not int(good.sum()) == len(found) == len(found.operator):
            raise ValueError("an entry has another number of rows than it says")
        if offsets[-1] != len(found.values):
            raise ValueError("an entry has another number of statements than it says")
        return rows, good, found


def _opened(data: bytes) -> bytes:
    opened = zlib.decompressobj()
    found = opened.decompress(data, MOST)
    if opened.unconsumed_tail:
        raise ValueError(f"an entry of more than {MOST >> 20} MB")
    return found
