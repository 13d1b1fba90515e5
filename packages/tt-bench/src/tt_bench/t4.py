"""T4, the JSON in which tuners exchange their results.

Source: results-schema.json 1.0.0 of github.com/odgaard/TuningSchema (FAIR auto-tuning formats T1 and T4), which Kernel
Tuner and KTT write and `autotuning_methodology` reads. Whatever has no place there is in `metadata.tt`.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import zlib
from datetime import datetime, timezone
from typing import Any

import numpy as np
from tt_spec import Measurement, Task, from_json, to_json

from tt_bench.errors import BenchError
from tt_bench.recording import Pace, Recorded, Recording

__all__ = ["VERSION", "check_space", "measured_of", "pack", "read", "result", "unpack", "write", "wrong_format"]

VERSION = "1.0.0"

_INVALIDITY = {
    None: "correct",
    "invalid": "constraints",
    "build": "compile",
    "build-timeout": "timeout",
    "run": "runtime",
    "run-timeout": "timeout",
    "wrong-result": "correctness",
}


def write(recording: Recording, version: int) -> dict[str, Any]:
    """The T4 document: one result per row, tasks one after the other.

    Args:
        version: Of `metadata.tt`.
    """
    results = []
    for number, part in enumerate(recording.parts):
        for m, statements in zip(part.measured, part.statements, strict=True):
            own = {"task": number, "config": m.config, "error": m.error, "why": m.why, "runs": m.runs, "cost": m.cost}
            results.append(result(m, json.dumps(own), statements))
    tasks = [
        {
            "task": to_json(p.whole),
            "space_key": p.whole.space.key,
            "keep": p.keep,
            "pace": dataclasses.asdict(p.pace),
            "rows": len(p.rows),
        }
        for p in recording.parts
    ]
    own = {
        "format": version,
        "model": recording.model,
        "space": recording.space,
        "device": recording.device,
        "versions": recording.versions,
        "tasks": tasks,
    }
    return {"schema_version": VERSION, "metadata": {"timeunit": "seconds", "tt": own}, "results": results}


def result(m: Measurement, own: str, statements: np.ndarray | None = None) -> dict[str, Any]:
    """A measurement as T4 has it.

    Args:
        own: JSON of what has no place there.
    """
    measurements = [
        {"name": "time", "value": m.latency_s if m.seconds else "failed", "unit": "s"},
        {"name": "tt", "value": own, "unit": ""},
    ]
    if statements is not None:
        measurements.append({"name": "statements", "value": pack(statements), "unit": "zlib float32 (n, 164)"})
    return {
        "timestamp": datetime.fromtimestamp(min(max(m.at, 0.0), _LAST), timezone.utc).isoformat(),
        "configuration": _plain(m.knobs),
        "objectives": ["time"],
        "times": {
            "compilation_time": _spent(m, "build"),
            "benchmark": _spent(m, "run"),
            "runtimes": list(m.seconds),
            "framework": _spent(m, "apply"),
            "search_algorithm": 0.0,
            "validation": 0.0,
        },
        "invalidity": _INVALIDITY[m.error],
        "correctness": 0.0 if m.error == "wrong-result" else 1.0,
        "measurements": measurements,
    }


_LAST = 253402300799.0
"""The last second of the year 9999, after which there is no ISO date."""


def _spent(m: Measurement, what: str) -> float:
    spent = m.cost.get(what, 0.0)
    return spent if math.isfinite(spent) else 0.0


def _plain(value: Any) -> Any:
    """A value as JSON of other programs has it: tuples are arrays, and what is not finite is text."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


MOST = 64 << 20
"""Bytes of one row's features at most: a few kilobytes may claim to be gigabytes."""


def read(data: Any, name: str, version: int) -> Recording:
    """A recording from a T4 document that `write` made. Raises `BenchError`, one line with what to do."""
    if not isinstance(data, dict) or "results" not in data or "schema_version" not in data:
        raise BenchError(f"{name}: no T4 results (schema_version and results are missing): give a file of tt record")
    if data["schema_version"] != VERSION:
        raise BenchError(f"{name}: T4 schema {data['schema_version']}, this tt-bench reads {VERSION}: record it again")
    own = data.get("metadata", {}).get("tt") if isinstance(data.get("metadata"), dict) else None
    if not isinstance(own, dict):
        raise BenchError(f"{name}: T4 results of another tuner lack the spaces for replay: give a file of tt record")
    if own.get("format") != version:
        raise BenchError(f"{name}: {wrong_format(own.get('format'), version)}")
    try:
        parts = [_part(t, number, data["results"], own, name) for number, t in enumerate(own["tasks"])]
        return Recording(own["model"], own["space"], tuple(parts), own["device"], own["versions"])
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, zlib.error) as e:
        raise BenchError(f"{name}: damaged ({type(e).__name__}: {e}); record or copy it again") from e


def _part(about: dict[str, Any], number: int, results: list[Any], own: dict[str, Any], name: str) -> Recorded:
    task = from_json(about["task"])
    check_space(task, about["space_key"], name)
    measured, statements = [], {}
    for r in results:
        values = {m["name"]: m["value"] for m in r["measurements"]}
        mine = json.loads(values["tt"])
        if mine["task"] != number:
            continue
        measured.append(measured_of(task, r, mine, own))
        if "statements" in values:
            statements[measured[-1].config] = unpack(values["statements"])
    keep = None if about["keep"] is None else tuple(tuple(k) for k in about["keep"])
    part = Recorded.of(task, keep, measured, statements, Pace(**about["pace"]))
    if len(part.rows) != about["rows"]:
        raise ValueError(f"task {task.name} has {len(part.rows)} rows of {about['rows']}")
    return part


def measured_of(task: Task, r: dict[str, Any], mine: dict[str, Any], own: dict[str, Any]) -> Measurement:
    """The measurement that a result of a recording tells.

    Args:
        mine, own: What the result and the file say in `tt`.
    """
    config = tuple(mine["config"])
    return Measurement(
        task.key,
        task.space.key,
        config,
        task.space.decode(config),
        tuple(float(s) for s in r["times"]["runtimes"]),
        mine["runs"],
        mine["error"],
        mine["why"],
        mine["cost"],
        "record",
        own["device"],
        own["versions"],
        datetime.fromisoformat(r["timestamp"]).timestamp(),
    )


def check_space(task: Task, key: str, name: str) -> None:
    """Refuse rows that were recorded under another meaning."""
    if key != task.space.key:
        raise BenchError(
            f"{name}: the space of task {task.name} has changed since ({key}, now {task.space.key}): record it again"
        )


def wrong_format(found: Any, known: int) -> str:
    """The message about a recording of another format."""
    return f"a recording of format {found}, this tt-bench reads {known}: record it again, or upgrade tt-bench"


def pack(statements: np.ndarray) -> str:
    """`(s, 164)` features as text."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(statements, dtype="<f4").tobytes(), 9)).decode()


def unpack(text: str) -> np.ndarray:
    """Features from the text of `pack`. Raises `ValueError` for more than `MOST` bytes."""
    opened = zlib.decompressobj()
    data = opened.decompress(base64.b64decode(text), MOST)
    if opened.unconsumed_tail:
        raise ValueError(f"statements of more than {MOST >> 20} MB")
    return np.frombuffer(data, dtype="<f4").reshape(-1, 164)
