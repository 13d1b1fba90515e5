"""What histories exchange, and files of strangers, which are read without trust.

A format (`tt_spec.roles.Format`) turns a file into items and items into a file. What a file claims is bounded before it
is believed: the bytes that it unpacks to, the length of a line, and the type of every value.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tt_spec.errors import FormatError
from tt_spec.types import Measurement, Noise, RunRecord, Task

__all__ = [
    "LINE",
    "Content",
    "Item",
    "LeftOut",
    "bounded",
    "check",
    "guarded",
    "kind_of",
    "lines",
    "opened",
    "replaced",
    "written",
]

RATIO, FREE = 200, 64 << 20
"""A packed file may unpack to so many times its size, and to so many bytes in any case."""

LINE = 32 << 20
"""Bytes of a line at most; a task with its space takes about a megabyte."""

_TEXT = 1 << 20
_INTEGER = 1 << 62
_INTEGERS: set[type] = {int}
_FLOATS: set[type] = {float}
_NUMBERS: set[type] = {int, float}
_STRINGS: set[type] = {str}


@dataclass(frozen=True)
class LeftOut:
    """Something in a file that is no record of ours.

    Args:
        why: The reason, in few words: equal reasons are counted together.
    """

    why: str


Item = Task | RunRecord | Measurement | LeftOut
"""What a file holds. A task comes before its records."""


@dataclass(frozen=True)
class Content:
    """What a history hands on.

    Args:
        records: Made as they are asked for, and only once: a history may be larger than the memory.
        rows: How many they are.
    """

    tasks: Sequence[Task]
    runs: Sequence[RunRecord]
    records: Iterable[Measurement]
    rows: int


# -- reading --------------------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file's bytes, unpacked if it is gzip's, up to a bound. What cannot be read is a `FormatError`."""
    kind_of(path)
    with guarded(path), path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not packed:
            yield raw
            return
        limit = max(FREE, RATIO * os.fstat(raw.fileno()).st_size)
        with gzip.GzipFile(fileobj=raw) as unpacked:
            yield cast(BinaryIO, io.BufferedReader(_Bounded(unpacked, path, limit), 1 << 16))


def bounded(path: Path, size: int) -> None:
    """Refuse a file that would unpack to so many bytes."""
    if size > max(FREE, RATIO * os.path.getsize(path)):
        raise FormatError(f"{path}: claims to unpack to {size:,} bytes, more than {RATIO} times its size")


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """A file's lines with their numbers, from 1, and without their ends."""
    with opened(path) as stream:
        number = 0
        while line := stream.readline(LINE + 1):
            number += 1
            if len(line) > LINE:
                raise FormatError(f"{path}, line {number}: longer than {LINE >> 20} MB")
            yield number, line.rstrip(b"\r\n")


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Say of a file what reading or writing it raised."""
    try:
        yield
    except gzip.BadGzipFile as e:
        raise FormatError(f"{path}: damaged: {e}") from e
    except (EOFError, zlib.error) as e:
        raise FormatError(f"{path}: truncated or damaged ({e}); copy it again") from e
    except OSError as e:
        raise FormatError(f"{path}: {e.strerror or e}") from e
    except MemoryError as e:
        raise FormatError(f"{path}: needs more memory than there is") from e


def kind_of(path: Path, folder: bool = False) -> None:
    """Refuse what is no file, or no folder: a device never ends."""
    if not os.path.lexists(path):
        raise FormatError(f"{path}: there is no such {'folder' if folder else 'file'}")
    if folder and not os.path.isdir(path):
        raise FormatError(f"{path}: a folder is wanted, this is none")
    if not folder and not os.path.isfile(path):
        raise FormatError(f"{path}: a file is wanted, this is {'a folder' if os.path.isdir(path) else 'none'}")


class _Bounded(io.RawIOBase):
    """Bytes of a packed file, up to a limit."""

    def __init__(self, inner: gzip.GzipFile, path: Path, limit: int) -> None:
        self._inner, self._path, self._limit = inner, path, limit
        self._seen = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n = self._inner.readinto(buffer)
        self._seen += n
        if self._seen > self._limit:
            raise FormatError(
                f"{self._path}: unpacks to more than {self._limit:,} bytes from {os.path.getsize(self._path):,};"
                " unpack it yourself if that is meant"
            )
        return n


def check(item: Item) -> None:
    """Raise ValueError, in one line, where a value is not of its field's type or kind."""
    if isinstance(item, Measurement):
        _check_measurement(item)
    elif isinstance(item, Task):
        _check_task(item)
    elif isinstance(item, RunRecord):
        _texts(id=item.id, reason=item.reason or "")
        _number("started", item.started)
        if item.ended is not None:
            _number("ended", item.ended)
        if not isinstance(item.info, dict):
            raise ValueError(f"info must be an object, got {type(item.info).__name__}")


def _check_measurement(m: Measurement) -> None:
    texts = (m.task_key, m.space_key, m.why, m.origin, m.device, m.run_id)
    if not (_all(texts, _STRINGS) and (text := "".join(texts)).isascii() and len(text) <= _TEXT):  # else each is fine
        _texts(task_key=m.task_key, space_key=m.space_key, why=m.why, origin=m.origin, device=m.device, run_id=m.run_id)
    row = m.config
    if type(row) is not tuple or not _all(row, _INTEGERS) or (row and not (min(row) >= 0 and max(row) < _INTEGER)):
        raise ValueError(f"config must be integers from 0, got {str(m.config)[:60]}")
    if type(m.seconds) is not tuple or not _all(m.seconds, _FLOATS):
        raise ValueError(f"seconds must be floats, got {str(m.seconds)[:60]}")
    if type(m.runs) is not int or not 0 <= m.runs < _INTEGER:
        raise ValueError(f"runs must be an integer from 0, got {str(m.runs)[:60]!r}")
    _number("at", m.at)
    for name, of in (("knobs", m.knobs), ("cost", m.cost), ("versions", m.versions)):
        if type(of) is not dict:
            raise ValueError(f"{name} must be an object, got {type(of).__name__}")
    if not _all(m.cost.values(), _NUMBERS):
        raise ValueError(f"cost must be seconds by name, got {str(m.cost)[:60]}")
    if not _all(m.versions.values(), _STRINGS):
        raise ValueError(f"versions must be texts by name, got {str(m.versions)[:60]}")
    if m.noise is not None:
        if type(m.noise) is not Noise:
            raise ValueError(f"noise must be an object, got {type(m.noise).__name__}")
        for name, value in vars(m.noise).items():
            _number(name, value)


def _all(values: Iterable[object], kinds: set[type]) -> bool:
    return kinds.issuperset(map(type, values))  # a loop takes several times as long, and this is asked of every row


def _check_task(t: Task) -> None:
    _texts(key=t.key, name=t.name, op=t.op, target=t.target, shapes=t.shapes, workload=t.workload)
    if type(t.payload) is not bytes:
        raise ValueError(f"payload must be bytes, got {type(t.payload).__name__}")
    _number("flops", t.flops)
    _number("weight", t.weight)
    if type(t.spaces) is not tuple:
        raise ValueError(f"spaces must be a tuple, got {type(t.spaces).__name__}")


def _texts(**fields: object) -> None:
    for name, value in fields.items():
        if type(value) is not str:
            raise ValueError(f"{name} must be text, got {str(value)[:60]!r}")
        if len(value) > _TEXT:
            raise ValueError(f"{name} is longer than {_TEXT:,} characters")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as e:
                raise ValueError(f"{name} is no UTF-8") from e


def _number(name: str, value: object) -> None:
    if type(value) not in (int, float) or not math.isfinite(cast(float, value)):
        raise ValueError(f"{name} must be a finite number, got {str(value)[:60]!r}")


# -- writing --------------------------------------------------------------------------------------------------------


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A path beside the given one, which is put in its place at the end of the block, or removed on an error."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with guarded(path):
            yield part
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write, whole or not at all; packed where the name ends in .gz. The same content is the same bytes."""
    with replaced(path) as part, part.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield raw
