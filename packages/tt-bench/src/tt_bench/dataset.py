"""A data set: measured rows of many operators, from which cost models learn before they meet an operator.

A folder holds one file per device, `DEVICE.dataset.json.gz`, small enough to be committed: tasks with the workload from
which programs are made again, rows, medians, errors. The statements of the programs are not in it: `tt dataset
features` computes them into a cache beside it, `DEVICE.statements.db`.

`read` gives the rows, `tt_bench.statements.groups` what a model over statements trains on.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Task, from_json, summary, to_json, tokens
from tt_spec.types import ERRORS

from tt_bench import atomic
from tt_bench.errors import BenchError
from tt_bench.files import unzipped

__all__ = [
    "FORMAT",
    "SUFFIX",
    "DataSet",
    "Operator",
    "algorithms",
    "folder_hash",
    "load",
    "load_all",
    "merged",
    "path_of",
    "read",
    "write",
]

FORMAT = 1
"""Of the file; a reader refuses others."""

SUFFIX = ".dataset.json.gz"
"""Of a data set's file, so that recordings may lie in the same folder."""

_KIND = "tt data set"
_ROWS = 1 << 20
"""Rows of an operator at most: a few bytes may claim to be any number."""

Row = tuple[Task, np.ndarray, np.ndarray, np.ndarray]
"""An operator as `read` gives it."""


@dataclass(frozen=True)
class Operator:
    """One operator's rows on one device.

    Args:
        task: With the rows' space as its only one.
        codes: `(n, d)` int64 canonical rows, each once; rows that never had a program are not kept.
        seconds: `(n,)` medians of the first timing, seconds; inf for failures.
        again: `(n,)` medians of the last timing of rows that were timed again, minutes later; else NaN.
        errors: `(n,)` int8, index into `tt_spec.types.ERRORS`; -1 for valid rows.
    """

    task: Task
    codes: np.ndarray
    seconds: np.ndarray
    again: np.ndarray
    errors: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def key(self) -> tuple[str, str]:
        """The task's and the space's key."""
        return self.task.key, self.task.space.key

    def parts(self) -> np.ndarray:
        """The algorithm of each row; see `algorithms`."""
        return algorithms(self.task, self.codes)


def algorithms(task: Task, codes: np.ndarray) -> np.ndarray:
    """The algorithm of each row `(n, d)` of a task, `(n,)` text: "template", "winograd", "sketch", …"""
    first = task.space.knobs[0]
    names = first.choices if first.name == "space" else (task.space.name,)
    return np.array(names)[codes[:, 0] if len(names) > 1 else np.zeros(len(codes), dtype=np.int64)]


@dataclass(frozen=True)
class DataSet:
    """Operators that were measured on one device with one version of TVM.

    Args:
        device: Fingerprint of the machine.
        tvm: TVM's version, on which programs and spaces depend.
    """

    device: str
    tvm: str
    operators: tuple[Operator, ...] = field(default_factory=tuple)

    @property
    def rows(self) -> int:
        """Of all operators."""
        return sum(map(len, self.operators))

    @property
    def sha256(self) -> str:
        """Of the content: equal data sets have equal ones."""
        return _hash(_content(self))


def read(folder: str | Path) -> list[Row]:
    """The rows of a folder's data sets: `(task, codes (n, d), seconds (n,), again (n,))` per operator and device.

    `seconds` is inf for failures; `again` is NaN but for rows that were timed twice. Raises `BenchError`.
    """
    return [(o.task, o.codes, o.seconds, o.again) for d in load_all(folder) for o in d.operators]


def folder_hash(folder: str | Path) -> str:
    """SHA-256 of a folder's data sets, for model cards."""
    return hashlib.sha256("".join(d.sha256 for d in load_all(folder)).encode()).hexdigest()


def load_all(folder: str | Path) -> list[DataSet]:
    """A folder's data sets, by name. Raises `BenchError`, also where it has none or they have no rows."""
    try:
        paths = sorted(Path(folder).glob(f"*{SUFFIX}"))
    except (OSError, ValueError) as e:  # a name that is too long, a folder that may not be read
        raise BenchError(f"{str(folder)[:100]} is no folder of data sets: {summary(e)[:100]}") from e
    if not paths:
        raise BenchError(f"no data set in {folder}: tt dataset record or add makes one (DEVICE{SUFFIX})")
    found = [load(p) for p in paths]
    if not any(d.rows for d in found):
        raise BenchError(f"the data set in {folder} is empty: tt dataset record or add brings rows")
    return found


def path_of(folder: Path, device: str) -> Path:
    """The file of a device's rows."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "device"
    return folder / f"{name}{SUFFIX}"


def merged(old: DataSet, new: Iterable[Operator]) -> tuple[DataSet, int]:
    """The data set with further rows, and how many were not in it. Of a row that is, the first timing stays, a later
    one becomes its `again`, and a later failure counts."""
    found = {o.key: o for o in old.operators}
    added = 0
    for o in new:
        known = found.get(o.key)
        found[o.key] = o if known is None else _joined(known, o)
        added += len(found[o.key]) - (0 if known is None else len(known))
    return replace(old, operators=tuple(found[k] for k in sorted(found))), added


def _joined(old: Operator, new: Operator) -> Operator:
    place = {name: i for i, name in enumerate(tokens(old.codes))}
    at = np.array([place.get(name, -1) for name in tokens(new.codes)], dtype=np.int64)
    seconds, again, errors = old.seconds.copy(), old.again.copy(), old.errors.copy()
    for i, j in zip(at[at >= 0], np.flatnonzero(at >= 0), strict=True):
        latest = new.seconds[j] if np.isnan(new.again[j]) else new.again[j]
        if new.errors[j] >= 0:
            seconds[i], again[i], errors[i] = np.inf, np.nan, new.errors[j]
        elif errors[i] < 0 and latest != seconds[i]:
            again[i] = latest
    fresh = at < 0
    return Operator(
        new.task,
        np.concatenate([old.codes, new.codes[fresh]]),
        np.concatenate([seconds, new.seconds[fresh]]),
        np.concatenate([again, new.again[fresh]]),
        np.concatenate([errors, new.errors[fresh]]),
    )


# -- the file ----------------------------------------------------------------------------------------------------------


def write(data: DataSet, folder: Path) -> Path:
    """Write the file of the data set's device, whole or not at all; the same data give the same bytes."""
    content = _content(data)
    text = json.dumps({**content, "sha256": _hash(content)}, separators=(",", ":"), allow_nan=False)
    path = path_of(folder, data.device)
    atomic.write(path, gzip.compress(text.encode(), mtime=0), "the histories that it was made of are kept")
    return path


def load(path: str | Path) -> DataSet:
    """One device's data set. Raises `BenchError`, one line with what to do."""
    path = Path(path)
    try:
        found = json.loads(unzipped(path.read_bytes(), path))
    except FileNotFoundError:
        raise BenchError(f"no data set {path}: tt dataset record or add makes one") from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as e:
        raise BenchError(f"{path}: not readable ({e}); it may be truncated: copy it again") from e
    if not isinstance(found, dict) or found.get("kind") != _KIND:
        raise BenchError(f"{path}: no data set of tt: give a folder that tt dataset record or add wrote")
    if found.get("format") != FORMAT:
        told = f"a data set of format {found.get('format')}, this tt-bench reads {FORMAT}"
        raise BenchError(f"{path}: {told}: upgrade tt-bench, or record it again")
    if found.pop("sha256", None) != _hash(found):
        raise BenchError(f"{path}: damaged (its SHA-256 is another than it says): copy it again")
    try:
        return DataSet(found["device"], found["tvm"], tuple(_operator(o, path) for o in found["operators"]))
    except (LookupError, TypeError, ValueError, AttributeError, zlib.error) as e:
        raise BenchError(f"{path}: damaged ({type(e).__name__}: {e}); copy it again") from e


def _hash(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content(data: DataSet) -> dict[str, Any]:
    operators = [
        {
            "task": to_json(o.task),
            "space_key": o.task.space.key,
            "rows": len(o),
            "codes": _pack(o.codes.T.astype("<u4")),
            "seconds": _pack(np.where(np.isfinite(o.seconds), o.seconds, 0).astype("<f4")),
            "again": _pack(np.where(np.isfinite(o.again), o.again, 0).astype("<f4")),
            "errors": _pack(o.errors.astype("<i1")),
        }
        for o in data.operators
    ]
    return {"kind": _KIND, "format": FORMAT, "device": data.device, "tvm": data.tvm, "operators": operators}


def _operator(about: dict[str, Any], path: Path) -> Operator:
    task: Task = from_json(about["task"])
    if about["space_key"] != task.space.key:
        told = f"({about['space_key']}, now {task.space.key})"
        raise BenchError(f"{path}: the space of {task.name} has changed since {told}: record it again")
    n, d = about["rows"], len(task.space.knobs)
    if not 0 <= n <= _ROWS:
        raise ValueError(f"{task.name} has {n} rows")
    codes = _unpack(about["codes"], "<u4", d * n).reshape(d, n).T.astype(np.int64)
    seconds, again = (_unpack(about[name], "<f4", n).astype(np.float64) for name in ("seconds", "again"))
    errors = _unpack(about["errors"], "<i1", n).astype(np.int8)
    if not (task.space.in_range(codes).all() and (errors >= -1).all() and (errors < len(ERRORS)).all()):
        raise ValueError(f"{task.name} has rows outside its space or unknown errors")
    if not ((seconds > 0) == (errors < 0)).all() or not np.isfinite(seconds).all() or not (again >= 0).all():
        raise ValueError(f"{task.name} has rows with neither a time nor an error")
    return Operator(task, codes, np.where(errors < 0, seconds, np.inf), np.where(again > 0, again, np.nan), errors)


def _pack(values: np.ndarray) -> str:
    """An array as text: the bytes of all values by significance, so that equal ones stand together."""
    planes = np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(-1, values.dtype.itemsize).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()


def _unpack(text: str, dtype: str, n: int) -> np.ndarray:
    """`(n,)` from the text of `_pack`."""
    size = np.dtype(dtype).itemsize
    opened = zlib.decompressobj()
    data = opened.decompress(base64.b64decode(text, validate=True), n * size + 1)
    if len(data) != n * size:
        raise ValueError(f"{len(data)} bytes where {n * size} belong")
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(size, n).T).reshape(-1).view(dtype)
