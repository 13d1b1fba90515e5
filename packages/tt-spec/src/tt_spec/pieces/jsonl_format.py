"""A line of JSON for everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tt_spec.errors import FormatError
from tt_spec.exchange import Content, Item, lines, written
from tt_spec.serial import from_json, to_json
from tt_spec.types import Measurement, RunRecord, Task

__all__ = ["JsonlFormat"]

VERSION = 1


class JsonlFormat:
    """A line of JSON for each task, run and record, as `tt_spec.serial` writes them; `.gz` is packed.

    The first line says the version, and how many records follow, so that a file that was cut is noticed.
    """

    def write(self, path: Path, content: Content) -> dict[str, int]:
        with written(path) as out:
            head = {"format": "tt-history", "version": VERSION, "records": content.rows}
            out.write(json.dumps(head, separators=(",", ":")).encode() + b"\n")
            for group in (content.tasks, content.runs, content.records):
                for item in group:
                    out.write(to_json(item).encode() + b"\n")
        return {}

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        promised, found, number = None, 0, 0
        for number, line in lines(path):
            where = f"line {number}"
            try:
                if number == 1:
                    promised = _promised(json.loads(line))
                    continue
                item = from_json(line)
            except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as e:
                raise FormatError(f"{path}, {where}: {_short(e)}") from e
            if not isinstance(item, Task | RunRecord | Measurement):
                raise FormatError(f"{path}, {where}: neither a task, a run nor a measurement")
            found += isinstance(item, Measurement)
            yield where, item
        if not number:
            raise FormatError(f"{path}: empty; tt history export writes such files")
        if promised is not None and promised != found:
            raise FormatError(f"{path}, line {number}: ends after {found:,} of {promised:,} records; copy it again")


def _promised(head: object) -> int | None:
    if not isinstance(head, dict) or head.get("format") != "tt-history":
        raise ValueError('not a history\'s export: {"format":"tt-history",…} is missing')
    if head.get("version") != VERSION:
        raise ValueError(f"version {str(head.get('version'))[:20]}, this tt reads {VERSION}")
    promised = head.get("records")
    if promised is not None and type(promised) is not int:
        raise ValueError(f"records must be a number, got {str(promised)[:20]!r}")
    return promised


def _short(e: Exception) -> str:
    if isinstance(e, RecursionError):
        return "nested too deeply"
    return " ".join(str(e).split())[:200] or type(e).__name__
