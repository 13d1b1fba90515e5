"""Rows of tuning histories, taken into a data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Measurement, Plugins, StoreError, Task
from tt_spec.types import ERRORS

from tt_bench.dataset import DataSet, Operator, load, merged, path_of, write
from tt_bench.errors import BenchError
from tt_bench.held_out import held_out

__all__ = ["Added", "add", "operators"]


@dataclasses.dataclass
class Added:
    """The outcome of `add`.

    Args:
        rows: New ones.
        paths: Files that were written.
        held_out: Names of the tasks that were left out because no data set holds them.
        unknown: Tasks whose space or workload the histories do not know.
    """

    rows: int = 0
    paths: list[Path] = dataclasses.field(default_factory=list)
    held_out: list[str] = dataclasses.field(default_factory=list)
    unknown: int = 0


def add(histories: Sequence[Path], folder: Path, say: Callable[[str], None] = lambda text: None) -> Added:
    """Take the rows of SQLite histories into the data sets of a folder, one per device; each row once.

    Operators that are held out stay out. The same histories may be added again. Raises `BenchError`.
    """
    done = Added()
    found: dict[str, tuple[str, list[Operator]]] = {}
    for history in histories:
        if not os.path.isfile(history):  # unlike pathlib's, it takes any text
            raise BenchError(f"no history {history}: tt tune --history writes one")
        rows = 0
        try:  # read only, so that a run may go on writing it
            with closing(Plugins().build("store", "sqlite", path=f"{history.resolve().as_uri()}?mode=ro")) as store:
                for device, tvm, operator in operators(store, done):
                    known = found.setdefault(device, (tvm, []))
                    _same_tvm(str(history), device, known[0], tvm)
                    known[1].append(operator)
                    rows += len(operator)
        except StoreError as e:
            raise BenchError(str(e)) from e
        say(f"{history}: {rows} rows")
    for device, (tvm, every) in found.items():
        path = path_of(folder, device)
        old = load(path) if path.is_file() else DataSet(device, tvm)
        if old.device != device:
            raise BenchError(f"{path} has rows of {old.device}, not of {device}: choose another folder")
        _same_tvm(str(path), device, old.tvm, tvm)
        new, count = merged(old, every)
        done.rows += count
        done.paths.append(write(new, folder))
    return done


def operators(store: Any, done: Added) -> Iterator[tuple[str, str, Operator]]:
    """`(device, TVM's version, rows)` of each task, space and device of a store; what is left out is noted."""
    for about in store.tasks():
        task = store.task(about["key"])
        spaces = {s.key: s for s in task.spaces}
        if held_out(task):
            done.held_out.append(task.name)
            continue
        parts: dict[tuple[str, str], list[Measurement]] = {}
        for m in store.query(task.key):
            parts.setdefault((m.space_key, m.device), []).append(m)
        for (space_key, device), measured in parts.items():
            if space_key not in spaces or not task.payload:
                done.unknown += 1
                continue
            operator = _operator(dataclasses.replace(task, spaces=(spaces[space_key],)), measured)
            versions = {m.versions.get("tvm", "") for m in measured}
            for version in versions:
                _same_tvm(task.name, device, min(versions), version)
            if len(operator):
                yield device, min(versions), operator


def _operator(task: Task, measured: Iterable[Measurement]) -> Operator:
    """Of each row the first timing, the last one where there are several, and a failure where that came last."""
    rows: dict[tuple[int, ...], list[Measurement]] = {}
    for m in measured:
        if m.error != "invalid":
            rows.setdefault(m.config, []).append(m)
    first = np.full(len(rows), np.inf)
    again = np.full(len(rows), np.nan)
    errors = np.full(len(rows), -1, dtype=np.int8)
    for i, every in enumerate(rows.values()):
        error = every[-1].error
        timed = [m.latency_s for m in every if m.seconds]
        if error is not None:
            errors[i] = ERRORS.index(error)
            continue
        first[i] = np.float32(timed[0])
        if len(timed) > 1:
            again[i] = np.float32(timed[-1])
    codes = np.array(list(rows), dtype=np.int64).reshape(-1, len(task.space.knobs))
    inside = task.space.in_range(codes)
    return Operator(task, codes[inside], first[inside], again[inside], errors[inside])


def _same_tvm(where: str, device: str, known: str, tvm: str) -> None:
    if known != tvm:
        told = f"rows of TVM {known} and of {tvm} on {device}, whose programs may differ"
        raise BenchError(f"{where}: {told}: give each version a folder of its own")
