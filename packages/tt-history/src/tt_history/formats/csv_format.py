"""Tables of comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tt_spec.errors import FormatError
from tt_spec.exchange import LINE, Item, opened, written

from tt_history.formats import columns

__all__ = ["CsvFormat"]


class CsvFormat(columns.Tables):
    """One row per record, with a first line of names; tasks and runs in `NAME.tasks.csv` and `NAME.runs.csv` beside it.

    Lists are numbers with blanks between them; `.gz` is packed. Columns that may be empty may be
    missing, and there may be others.

    Source: Shafranovich (2005), RFC 4180, in UTF-8.
    """

    def room(self, path: Path) -> AbstractContextManager[Any]:
        return written(path)

    def put(self, room: Any, names: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
        _write(room, names, rows)

    def rows(
        self, path: Path, names: dict[str, str], make: Callable[[Sequence[Any]], Item]
    ) -> Iterator[tuple[str, Item]]:
        return _read(path, names, make)


def _write(out: Any, names: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
    lists = [i for i, kind in enumerate(names.values()) if kind in ("integers", "numbers")]
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    try:
        table = csv.writer(text, lineterminator="\r\n")  # both characters of it are quoted in cells
        table.writerow(names)
        for row in rows:
            row = list(row)
            for i in lists:
                row[i] = " ".join(map(repr, row[i]))
            table.writerow(row)  # numbers as repr has them, None as nothing
    finally:
        text.detach()


def _read(path: Path, names: dict[str, str], make: Callable[[Sequence[Any]], Item]) -> Iterator[tuple[str, Item]]:
    csv.field_size_limit(max(csv.field_size_limit(), LINE))
    with opened(path) as stream:
        table = csv.reader(io.TextIOWrapper(stream, encoding="utf-8", newline=""), strict=True)
        try:
            places = _places(path, next(table, None), names)
            readers = [(name, i, _READERS[kind]) for (name, kind), i in zip(names.items(), places, strict=True)]
            width = max(places, default=0)
            line = table.line_num
            for row in table:
                if len(row) <= width:
                    raise ValueError(f"{len(row)} cells, at least {width + 1} are wanted")
                where = f"line {line + 1}"
                yield where, make([None if i < 0 else _cell(name, read, row[i]) for name, i, read in readers])
                line = table.line_num
        except (ValueError, TypeError, csv.Error, RecursionError, OverflowError) as e:
            where = f"line {table.line_num + isinstance(e, UnicodeDecodeError)}"
            raise FormatError(f"{path}, {where}: {' '.join(str(e).split())[:200]}") from e


def _places(path: Path, head: list[str] | None, names: dict[str, str]) -> list[int]:
    """Where each column is, -1 for one that may be empty and is not there."""
    if head is None:
        raise FormatError(f"{path}: empty; the first line must name the columns")
    lacking = [n for n, kind in names.items() if n not in head and not kind.endswith("?")]
    if lacking:
        raise FormatError(f"{path}, line 1: columns are missing: {', '.join(lacking)}")
    return [head.index(n) if n in head else -1 for n in names]


def _cell(name: str, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError as e:
        raise ValueError(f"column {name}: {' '.join(str(e).split())[:120]}") from e


def _integers(text: str) -> list[int]:
    return [int(t) for t in text.split()]


def _numbers(text: str) -> list[float]:
    return [float(t) for t in text.split()]


_READERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "text?": lambda text: text or None,
    "integer": int,
    "integers": _integers,
    "number": float,
    "number?": lambda text: float(text) if text else None,
    "numbers": _numbers,
    "json": str,
    "json?": lambda text: text or None,
}
