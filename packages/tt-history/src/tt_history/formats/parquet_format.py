"""Parquet tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa  # pyright: ignore[reportMissingImports]
import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
from tt_spec.errors import FormatError
from tt_spec.exchange import Item, bounded, guarded, kind_of, replaced

from tt_history.formats import columns

__all__ = ["ParquetFormat"]

_PART = 8192
"""Rows that are in memory at once."""

_ROW = 32
"""Bytes that a row has at least once unpacked."""

_TYPES = {
    "text": pa.string(),
    "json": pa.string(),
    "integer": pa.int64(),
    "integers": pa.list_(pa.int64()),
    "number": pa.float64(),
    "numbers": pa.list_(pa.float64()),
}


class ParquetFormat(columns.Tables):
    """One row per record; tasks and runs in `NAME.tasks.parquet` and `NAME.runs.parquet` beside it.

    Source: parquet.apache.org, by pyarrow.
    """

    def room(self, path: Path) -> AbstractContextManager[Any]:
        return replaced(path)

    def put(self, room: Any, names: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
        _write(room, names, rows)

    def rows(
        self, path: Path, names: dict[str, str], make: Callable[[Sequence[Any]], Item]
    ) -> Iterator[tuple[str, Item]]:
        return _read(path, names, make)


def _schema(names: dict[str, str]) -> pa.Schema:
    return pa.schema([pa.field(n, _TYPES[k.rstrip("?")], nullable=k.endswith("?")) for n, k in names.items()])


def _write(path: Path, names: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
    schema = _schema(names)
    rows = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as out:
        while part := list(islice(rows, _PART)):
            arrays = [
                pa.array(column, field.type) for column, field in zip(zip(*part, strict=True), schema, strict=True)
            ]
            out.write_batch(pa.record_batch(arrays, schema=schema))


def _read(path: Path, names: dict[str, str], make: Callable[[Sequence[Any]], Item]) -> Iterator[tuple[str, Item]]:
    kind_of(path)
    number = 0
    with _told(path), pq.ParquetFile(path, memory_map=False) as file:
        about = file.metadata
        unpacked = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
        bounded(path, max(unpacked, _ROW * about.num_rows))
        present = _check_columns(path, file.schema_arrow, names)
        for batch in file.iter_batches(_PART, columns=present, use_threads=False):
            cells = [batch.column(n).to_pylist() if n in present else [None] * len(batch) for n in names]
            for row in zip(*cells, strict=True):
                number += 1
                try:
                    item = make(row)
                except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as e:
                    raise FormatError(f"{path}, row {number}: {' '.join(str(e).split())[:200]}") from e
                yield f"row {number}", item
        if number != about.num_rows:
            raise FormatError(f"{path}: claims {about.num_rows:,} rows and has {number:,}")


def _check_columns(path: Path, schema: pa.Schema, names: dict[str, str]) -> list[str]:
    """The columns that are there; those that must be are, each once and of its type."""
    present = []
    for name, kind in names.items():
        at = schema.get_all_field_indices(name)
        if not at and not kind.endswith("?"):
            raise FormatError(f"{path}: column {name} is missing")
        if len(at) > 1:
            raise FormatError(f"{path}: column {name} is there {len(at)} times")
        if at:
            found, wanted = schema.field(at[0]).type, _TYPES[kind.rstrip("?")]
            if not (_plain(found).equals(_plain(wanted)) or (kind.endswith("?") and pa.types.is_null(found))):
                raise FormatError(f"{path}: column {name} must be {wanted}, this is {found}")
            present.append(name)
    return present


def _plain(t: pa.DataType) -> pa.DataType:
    """What other programs make of a text, an integer, a number or a list of them, as we write it."""
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_list_view(t):
        return pa.list_(_plain(t.value_type))
    if pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return pa.string()
    if pa.types.is_integer(t):
        return pa.int64()
    return t


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What Arrow cannot read as a mistake in the file."""
    try:
        with guarded(path):
            yield
    except (pa.ArrowException, UnicodeDecodeError) as e:
        raise FormatError(f"{path}: no Parquet, or damaged: {' '.join(str(e).split())[:200]}") from e
