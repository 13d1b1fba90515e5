"""The process in which TVM parses what a stranger wrote: `worker FD read FOLDER`, `worker FD write ROWS FILE FILE`.

It says a line of JSON for everything: what it works `at`, an item or a reason, and at last that it is `done`.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tt_spec import FormatError, Measurement, Plugins, Task, summary, to_json
from tt_spec.exchange import lines
from tt_spec.pieces.jsonl_format import JsonlFormat
from tt_spec.roles import ReadsTraces, Workload
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tt_core.compiler.lower import task_of, unpack
from tt_core.exchange.metaschedule import RECORDS, WORKLOADS

__all__: list[str] = []

FAILED_S = 1e9
"""Seconds from which a record is of a failure: stock writes 1e10."""

LIMIT_S, LIMIT_BYTES = 120, 8 << 30
"""For one line of a file, and for all of it."""

_OPEN = 64
"""Workloads that are open at once."""

_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def main(arguments: list[str]) -> None:
    descriptor, what, *paths = arguments
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))
    with os.fdopen(int(descriptor), "w", buffering=1 << 16) as out:
        say = _Says(out)
        try:
            if what == "read":
                _Reading(Path(paths[0]), say).all()
            else:
                say.message(left=dict(_write(Path(paths[0]), paths[1], paths[2], say)))
            say.message(done=True)
        except FormatError as e:
            say.message(error=str(e))


class _Says:
    def __init__(self, out: Any) -> None:
        self.out = out

    def at(self, where: str) -> None:
        """Begin something that TVM may not survive."""
        signal.alarm(LIMIT_S)
        self.message(at=where)
        self.out.flush()

    def message(self, **fields: Any) -> None:
        self.out.write(json.dumps(fields) + "\n")


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class _Reading:
    """One folder."""

    path: Path
    say: _Says
    workloads: list[tuple[str, Any]] = field(default_factory=list)
    opened: dict[tuple[int, str], tuple[Task, Workload] | str] = field(default_factory=dict)

    def all(self) -> None:
        for where, content in self._lines(WORKLOADS):
            self.workloads.append((where, content))
        seen: dict[str, str] = {}
        for where, content in self.workloads:
            name = str(content[0])[:40] if isinstance(content, list) and content else ""
            if name in seen:
                self.say.message(where=where, why=f"{where}: workload {name} is doubled, its records are read")
            seen[name] = where
        for where, content in self._lines(RECORDS):
            self.say.at(where)
            try:
                number, (trace, seconds, target, _) = content
                self._record(where, int(number), trace, seconds, target)
            except FormatError:
                raise
            except _MISTAKES as e:
                raise FormatError(f"{self.path}, {where}: {_short(e)}") from e

    def _lines(self, name: str) -> Iterator[tuple[str, Any]]:
        """Each line's place and content; of a last line that was cut, only that it was."""
        path = self.path / name
        with path.open("rb") as raw:
            raw.seek(0, os.SEEK_END)
            size = raw.tell()
            raw.seek(max(0, size - 1))
            whole = raw.read(1) in (b"\n", b"")
        before = None
        for number, line in lines(path):
            if before is not None:
                yield self._parsed(name, *before)
            before = (number, line)
        if before is not None:
            try:
                found = self._parsed(name, *before)
            except FormatError:
                if whole:
                    raise
                where = f"{name}, line {before[0]}"
                self.say.message(where=where, why=f"{where}: cut")
                return
            yield found

    def _parsed(self, name: str, number: int, line: bytes) -> tuple[str, Any]:
        where = f"{name}, line {number}"
        try:
            return where, json.loads(line)
        except (ValueError, RecursionError) as e:
            raise FormatError(f"{self.path}, {where}: {_short(e)}") from e

    def _record(self, where: str, number: int, trace: Any, seconds: Any, target: Any) -> None:
        if seconds is None:
            self.say.message(where=where, why="records that were never timed")
            return
        times = [float(s) for s in seconds]
        if not times or not all(math.isfinite(s) and s > 0 for s in times):
            raise ValueError(f"seconds must be finite and positive, got {str(times)[:60]}")
        found = self._open(where, number, target)
        if isinstance(found, str):
            self.say.message(where=where, why=found)
            return
        task, programs = found
        assert isinstance(programs, ReadsTraces)
        try:
            row = programs.row_of(trace)
        except ValueError as e:
            self.say.message(where=where, why=_short(e))
            return
        failed = max(times) >= FAILED_S
        config = tuple(map(int, row))
        m = Measurement(
            task.key,
            task.space.key,
            config,
            task.space.decode(config),
            () if failed else tuple(times),
            0 if failed else len(times),
            "run" if failed else None,
            "it failed in MetaSchedule, which does not say how" if failed else "",
            device=_device(task.target),
        )
        self.say.message(where=where, item=to_json(m))

    def _open(self, where: str, number: int, target: Any) -> tuple[Task, Workload] | str:
        """The task of a workload on a target, which is told when it is opened; or why there is none."""
        if not 0 <= number < len(self.workloads):
            return f"{where}: there is no workload {number}"
        name = (number, json.dumps(target, sort_keys=True))
        if name not in self.opened:
            if len(self.opened) >= _OPEN:
                self.opened.clear()
            self.opened[name] = self._new(where, number, target)
        return self.opened[name]

    def _new(self, where: str, number: int, target: Any) -> tuple[Task, Workload] | str:
        place, content = self.workloads[number]
        try:
            on = tvm.target.Target(target)
        except Exception as e:  # TVM raises several types
            return f"{where}: a foreign target: {_short(e)}"
        self.say.at(place)
        try:
            mod = ms.database.Workload.from_json(content).mod
            mod["main"].body  # noqa: B018, so that it is a function
        except Exception as e:  # as above
            raise FormatError(f"{self.path}, {place}: TVM cannot read the workload: {_short(e)}") from e
        self.say.at(where)
        try:
            programs = Plugins().build("space", "sketch").open(mod, on)
        except Exception as e:  # as above
            return f"{where}: no sketch space on this target: {_short(e)}"
        task = task_of(mod, on, programs.space, "sketch")
        self.say.message(where=where, item=to_json(task))
        return task, programs


def _device(target: str) -> str:
    about = json.loads(target)
    return f"metaschedule/{about.get('mcpu') or about.get('kind')}"


def _short(e: BaseException) -> str:
    if isinstance(e, RecursionError):
        return "nested too deeply"
    return (str(e).strip().splitlines() or [type(e).__name__])[0][:200]


# -- writing ----------------------------------------------------------------------------------------------------------


def _write(rows: Path, workloads: str, records: str, say: _Says) -> Counter[str]:
    """Make a database of a history's export; returns how many records were left out, by reason."""
    left: Counter[str] = Counter()
    tasks: dict[str, Task] = {}
    writers: dict[tuple[str, str], _Writer | str] = {}
    database = ms.database.JSONDatabase(workloads, records)
    for where, item in JsonlFormat().read(rows):
        if isinstance(item, Task):
            tasks[item.key] = item
        if not isinstance(item, Measurement):
            continue
        name = (item.task_key, item.space_key)
        if name not in writers:
            say.at(f"task {item.task_key}")
            writers[name] = _writer(tasks.get(item.task_key), item.space_key, database)
        writer = writers[name]
        why = writer if isinstance(writer, str) else None
        if not isinstance(writer, str):
            say.at(f"{where} of the export")
            why = writer.write(item)
        if why is not None:
            left[why] += 1
    return left


def _writer(task: Task | None, space_key: str, database: Any) -> _Writer | str:
    if task is None or not task.payload:
        return "of tasks whose workload the history does not have"
    try:
        mod, target, space = unpack(task.payload)
        programs = Plugins().build("space", space).open(mod, target)
    except Exception as e:  # TVM raises several types
        return f"of workloads that TVM cannot read: {summary(e)[:100]}"
    if programs.space.key != space_key:
        programs = Plugins().build("space", "sketch").open(mod, target)
    if programs.space.key != space_key:
        return "of spaces that this version does not make"
    return _Writer(mod, target, programs, database)


class _Writer:
    """The records of one task and space."""

    def __init__(self, mod: tvm.IRModule, target: Any, programs: Workload, database: Any) -> None:
        self.mod, self.target, self.programs, self.database = mod, target, programs, database
        self.workload: Any = None

    def write(self, m: Measurement) -> str | None:
        """Commit a measurement; the reason if it is left out."""
        row = np.array(m.config, dtype=np.int64)
        if m.error == "invalid":
            return "rows without a program"
        try:
            if self.programs.repack(row) is not None:
                return "rows that take constants in another form"
            schedule = self.programs.apply(row)
            plain = Schedule(self.mod, seed=1, debug_mask="none", error_render_level="none")
            schedule.trace.apply_to_schedule(plain, remove_postproc=False)
            if not tvm_ffi.structural_equal(plain.mod, schedule.mod, map_free_vars=True):
                return "rows whose trace does not apply to the plain workload"
        except Exception as e:  # as above
            return "rows without a program" if isinstance(e, ValueError) else "rows whose trace does not apply"
        if self.workload is None:
            self.workload = self.database.commit_workload(self.mod)
        info = ms.arg_info.ArgInfo.from_prim_func(self.mod["main"])
        seconds = list(m.seconds) or [1e10]
        self.database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, self.workload, seconds, self.target, info)
        )
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
