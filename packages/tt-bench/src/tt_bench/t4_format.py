"""Histories as T4."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tt_spec import Measurement, Task, from_json, to_json
from tt_spec.errors import FormatError
from tt_spec.exchange import Content, Item, LeftOut, check, written

from tt_bench import t4
from tt_bench.errors import BenchError
from tt_bench.files import FORMAT
from tt_bench.foreign import Kernel, Parameters, date, seconds_of
from tt_bench.streamed import Member, fault, members

__all__ = ["T4Format"]

HISTORY = 1
"""Version of what `metadata.tt.history` says of a history."""

_APART = frozenset({"results", "tasks", "runs"})

_UNITS = {
    **dict.fromkeys(("seconds", "s"), 1.0),
    **dict.fromkeys(("milliseconds", "ms"), 1e-3),
    **dict.fromkeys(("microseconds", "us"), 1e-6),
    **dict.fromkeys(("nanoseconds", "ns"), 1e-9),
}

_ERRORS = {
    "constraints": "invalid",
    "compile": "build",
    "runtime": "run",
    "timeout": "run-timeout",
    "correctness": "wrong-result",
    "correct": None,
}

_FIELDS = tuple(f.name for f in fields(Measurement) if f.name != "seconds")

_MISTAKES = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, zlib.error)


class T4Format:
    """T4 JSON of any tuner; `.gz` is packed.

    Ours keep all that a history says, in `metadata.tt`, in a measurement `tt` of each result and in two more members,
    `tasks` and `runs`. Recordings of `tt record` are read as records. Of others a result is a row of the kernel that
    the file is named after: its knobs are the parameters, their choices the values that occur.

    Source: results-schema.json 1.0.0, see `tt_bench.t4`.
    """

    def write(self, path: Path, content: Content) -> dict[str, int]:
        own = {"history": HISTORY, "records": content.rows}
        head = {"schema_version": t4.VERSION, "metadata": {"timeunit": "seconds", "tt": own}}
        with written(path) as out:
            out.write(json.dumps(head, separators=(",", ":"))[:-1].encode())
            for name, items in (("tasks", content.tasks), ("runs", content.runs)):
                out.write(_array(name, (to_json(i) for i in items)))
            out.write(b',\n"results":[')
            for n, m in enumerate(content.records):
                told = t4.result(m, to_json({f: getattr(m, f) for f in _FIELDS}))
                out.write((",\n" if n else "\n").encode() + _dumped(told).encode())
            out.write(b"\n]}\n")
        return {}

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        head = _Head.of(path)
        if head.kernel is not None:
            yield "line 1", head.kernel.task
        for task in head.tasks:
            yield "line 1", task
        found = 0
        for member in members(path, _APART):
            if not member.element:
                continue
            where = f"line {member.line}, {member.name} {member.element}"
            try:
                item = head.item(member)
            except _MISTAKES as e:
                raise FormatError(f"{path}, {where}: {fault(e)}") from e
            if item is not None:
                found += member.name == "results"
                yield where, item
        if head.records is not None and found != head.records:
            raise FormatError(f"{path}: has {found:,} of {head.records:,} records; copy it again")


def _array(name: str, texts: Iterator[str]) -> bytes:
    return f',\n"{name}":[{",".join(json.dumps(t) for t in texts)}]'.encode()


def _dumped(told: dict[str, Any]) -> str:
    return json.dumps(told, separators=(",", ":"), allow_nan=False)


@dataclass
class _Head:
    """What a file says beside its results: where it is a history's, a recording's, or a stranger's.

    Args:
        own: `metadata.tt`.
        records: How many a history promises.
    """

    own: dict[str, Any] = field(default_factory=dict)
    records: int | None = None
    tasks: list[Task] = field(default_factory=list)
    kernel: Kernel | None = None
    unit_s: float = 1.0

    @classmethod
    def of(cls, path: Path) -> _Head:
        about: dict[str, Any] = {}
        parameters = Parameters()
        for member in members(path, _APART):
            if not member.element:
                about[member.name] = member.value
                if _own(about) is not None and "schema_version" in about:
                    break
            elif member.name == "results":
                about["results"] = True
                try:
                    parameters.see(_result(member)["configuration"])
                except _MISTAKES as e:
                    raise FormatError(f"{path}, line {member.line}, result {member.element}: {fault(e)}") from e
        try:
            return cls._made(about, parameters, path)
        except BenchError as e:
            raise FormatError(str(e)) from e
        except _MISTAKES as e:
            raise FormatError(f"{path}: {fault(e)}") from e

    @classmethod
    def _made(cls, about: dict[str, Any], parameters: Parameters, path: Path) -> _Head:
        if "schema_version" not in about:
            raise ValueError("no T4 results: schema_version is missing")
        if about["schema_version"] != t4.VERSION:
            raise ValueError(f"T4 schema {str(about['schema_version'])[:20]}, this tt-bench reads {t4.VERSION}")
        own = _own(about)
        if own is None:
            return cls._stranger(about, parameters, path)
        if "history" in own:
            if own["history"] != HISTORY:
                raise ValueError(f"a history of version {str(own['history'])[:20]}, this tt-bench reads {HISTORY}")
            return cls(own, int(own["records"]))
        if own["format"] != FORMAT:
            raise ValueError(t4.wrong_format(own["format"], FORMAT))
        head = cls(own)
        for told in own["tasks"]:
            head.tasks.append(from_json(told["task"]))
            t4.check_space(head.tasks[-1], told["space_key"], str(path))
        return head

    @classmethod
    def _stranger(cls, about: dict[str, Any], parameters: Parameters, path: Path) -> _Head:
        if "results" not in about:
            raise ValueError("T4 without results")
        metadata = about.get("metadata")
        unit = metadata.get("timeunit") if isinstance(metadata, dict) else None
        if unit not in _UNITS:
            raise ValueError(f"metadata.timeunit is seconds, milliseconds, microseconds or nanoseconds, got {unit!r}")
        name = path.name.removesuffix(".gz").removesuffix(".json")
        kernel = Kernel("t4", name, None, "", parameters.values())
        check(kernel.task)
        return cls(kernel=kernel, unit_s=_UNITS[unit])

    def item(self, member: Member) -> Item | None:
        """What an element of the file is to a history."""
        if member.name != "results":
            return from_json(member.value) if self.records is not None else None
        result = _result(member)
        if self.kernel is not None:
            return _foreign(self.kernel, result, self.unit_s)
        mine = from_json({m["name"]: m["value"] for m in result["measurements"]}["tt"])
        if self.records is None:
            return t4.measured_of(self.tasks[mine["task"]], result, mine, self.own)
        return Measurement(**mine, seconds=tuple(float(s) for s in result["times"]["runtimes"]))


def _own(about: dict[str, Any]) -> dict[str, Any] | None:
    metadata = about.get("metadata")
    own = metadata.get("tt") if isinstance(metadata, dict) else None
    return own if isinstance(own, dict) else None


def _result(member: Member) -> dict[str, Any]:
    if not isinstance(member.value, dict):
        raise ValueError(f"a result is an object, got {str(member.value)[:40]}")
    return member.value


def _foreign(kernel: Kernel, result: dict[str, Any], unit_s: float) -> Measurement | LeftOut:
    if result["invalidity"] not in _ERRORS:
        raise ValueError(f"invalidity is one of {', '.join(_ERRORS)}, got {str(result['invalidity'])[:40]!r}")
    error, times = _ERRORS[result["invalidity"]], result["times"]
    seconds = () if error is not None else seconds_of(times.get("runtimes") or [], unit_s) or _objective(result)
    if error is None and not seconds:
        return LeftOut("neither runtimes nor a measurement named time")
    spent = {"build": times.get("compilation_time", times.get("compilation")), "run": times.get("benchmark")}
    cost = {k: v * unit_s for k, v in spent.items() if isinstance(v, int | float)}
    at = date(result.get("timestamp"))
    return kernel.measured(result["configuration"], seconds=seconds, runs=len(seconds), error=error, cost=cost, at=at)


def _objective(result: dict[str, Any]) -> tuple[float, ...]:
    """The time where a file has one figure and no runs."""
    for m in result.get("measurements", ()):
        if m["name"] == "time" and m.get("unit") in _UNITS:
            return seconds_of([m["value"]], _UNITS[m["unit"]])
    return ()
