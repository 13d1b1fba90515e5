"""The columns of a table of records, of tasks and of runs, and the cells' values.

A cell is a text, a number, None, or a list of numbers; what is nested is JSON, as `tt_spec.serial` writes it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tt_spec.exchange import Content, Item
from tt_spec.serial import from_json, to_json
from tt_spec.types import Measurement, Noise, RunRecord, Task

from tt_history.raw import Explain, explain

__all__ = ["RECORDS", "RUNS", "TASKS", "Cells", "Rows", "Tables", "run", "task", "told"]

RECORDS = {
    "task_key": "text",
    "space_key": "text",
    "device": "text",
    "config": "integers",
    "latency_s": "number?",
    "seconds": "numbers",
    "runs": "integer",
    "error": "text?",
    "why": "text",
    "knobs": "json",
    "cost": "json",
    "noise": "json?",
    "origin": "text",
    "versions": "json",
    "at": "number",
    "run_id": "text",
}
"""Columns of the records with their kinds; a question mark says that a cell may be empty. `latency_s`, the median of
`seconds`, is for readers: an import leaves it aside."""

TASKS = {
    "key": "text",
    "name": "text",
    "op": "text",
    "target": "text",
    "flops": "number",
    "weight": "number",
    "shapes": "text",
    "workload": "text",
    "payload": "json",
    "spaces": "json",
}

RUNS = {"id": "text", "started": "number", "ended": "number?", "reason": "text?", "info": "json"}

_INTEGERS = {int}
_FLOATS = {float}

_KNOWN = 100_000
"""Values whose JSON is kept at most."""


def _beside(path: Path) -> tuple[Path, Path]:
    """The files of tasks and runs that belong to one of records: `them.csv.gz` has `them.tasks.csv.gz`."""
    stem, dot, rest = path.name.partition(".")
    return path.with_name(f"{stem}.tasks{dot}{rest}"), path.with_name(f"{stem}.runs{dot}{rest}")


class Tables(ABC):
    """A format with a file each for records, tasks and runs; the records' is the one that is named."""

    @abstractmethod
    def room(self, path: Path) -> AbstractContextManager[Any]:
        """Whatever `put` writes to, which becomes the file in the end."""

    @abstractmethod
    def put(self, room: Any, names: dict[str, str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a table; `names` gives each column's kind."""

    @abstractmethod
    def rows(
        self, path: Path, names: dict[str, str], make: Callable[[Sequence[Any]], Item]
    ) -> Iterator[tuple[str, Item]]:
        """What `make` makes of each row of a table, and where it stands."""

    def write(self, path: Path, content: Content) -> dict[str, int]:
        tasks, runs = _beside(path)
        cells = Cells()
        with ExitStack() as stack:  # what is opened first is put in its place last
            self.put(stack.enter_context(self.room(path)), RECORDS, map(cells.of, content.records))
            for other, names, items in ((runs, RUNS, content.runs), (tasks, TASKS, content.tasks)):
                self.put(stack.enter_context(self.room(other)), names, map(told, items))
        return {}

    def read(self, path: Path) -> Iterator[tuple[str, Item]]:
        tasks, runs = _beside(path)
        rows = Rows()
        for other, names, make in ((tasks, TASKS, task), (runs, RUNS, run)):
            if other.exists():
                for where, item in self.rows(other, names, make):
                    if isinstance(item, Task):
                        rows.learn(item)
                    yield f"{other.name}, {where}", item
        yield from self.rows(path, RECORDS, rows.record)


class Cells:
    """The cells of records. A choice of a knob is one object in all rows of a space, so its JSON is made once."""

    def __init__(self) -> None:
        self._json: dict[int, tuple[Any, str]] = {}
        self._names: dict[str, str] = {}
        self._versions: dict[int, tuple[Any, str]] = {}

    def of(self, m: Measurement) -> list[Any]:
        """In the order of `RECORDS`."""
        return [
            m.task_key,
            m.space_key,
            m.device,
            m.config,
            m.latency_s if m.seconds else None,
            m.seconds,
            m.runs,
            m.error,
            m.why,
            self.knobs(m.knobs),
            self.costs(m.cost),
            None if m.noise is None else to_json(dict(vars(m.noise))),
            m.origin,
            _versions(tuple(m.versions.items())),
            m.at,
            m.run_id,
        ]

    def knobs(self, knobs: dict[str, Any]) -> str:
        """The cell of a record's knobs."""
        known, names = self._json, self._names
        try:  # a value that is kept keeps its id
            return f"{{{','.join([names[name] + known[id(value)][1] for name, value in knobs.items()])}}}"
        except KeyError:
            pass
        parts = []
        for name, value in knobs.items():
            found = known.get(id(value))
            if found is None:
                if len(known) >= _KNOWN:
                    known.clear()
                found = known[id(value)] = (value, to_json(value))
            parts.append(self._name(name) + found[1])
        return f"{{{','.join(parts)}}}"

    def costs(self, cost: dict[str, Any]) -> str:
        """The cell of a record's costs: `to_json`, at a fifth of its time where all are floats, as nearly always."""
        if _FLOATS.issuperset(map(type, cost.values())) and isfinite(sum(cost.values())):
            return f"{{{','.join([self._name(name) + repr(value) for name, value in cost.items()])}}}"
        return to_json(cost)

    def _name(self, name: str) -> str:
        text = self._names.get(name)
        if text is None:
            if name.startswith("$"):
                raise ValueError(f"a name must not begin with '$', got {name!r}")
            if len(self._names) >= _KNOWN:
                self._names.clear()
            text = self._names[name] = f"{json.dumps(name)}:"
        return text


@lru_cache(maxsize=256)
def _versions(items: tuple[tuple[str, str], ...]) -> str:
    return to_json(dict(items))


class Rows:
    """The measurements of rows. Where a space says the very knobs that a cell does, the cell is not parsed."""

    def __init__(self) -> None:
        self._explained: dict[str, Explain] = {}

    def learn(self, t: Task) -> None:
        """Know a task's spaces."""
        self._explained.update((s.key, explain(s)) for s in t.spaces)

    def record(self, cells: Sequence[Any]) -> Measurement:
        """The measurement of a row; ValueError where a cell cannot be read."""
        task, space, device, config, _, seconds, runs, error, why, knobs, cost, noise, origin, versions, at, run_id = (
            cells
        )
        row = tuple(config)
        return Measurement(
            task,
            space,
            row,
            self._knobs(space, row, knobs),
            tuple(seconds),
            runs,
            error,
            why,
            _object("cost", cost),
            origin,
            device,
            _parsed(versions),
            at,
            run_id,
            None if noise is None else _noise(noise),
        )

    def _knobs(self, space: str, row: tuple[Any, ...], text: str) -> dict[str, Any]:
        explained = self._explained.get(space)
        if explained is not None and _INTEGERS.issuperset(map(type, row)) and explained.text(row) == text:
            return explained(row) or {}
        return _object("knobs", text)


def task(cells: Sequence[Any]) -> Task:
    """The task of a row; ValueError where a cell cannot be read."""
    key, name, op, target, flops, weight, shapes, workload, payload, spaces = cells
    return Task(
        key, name, op, target, _nested("spaces", spaces), flops, weight, _nested("payload", payload), shapes, workload
    )


def run(cells: Sequence[Any]) -> RunRecord:
    """The run of a row; ValueError where a cell cannot be read."""
    i, started, ended, reason, info = cells
    return RunRecord(i, started, ended, reason, _object("info", info))


def told(item: Task | RunRecord) -> list[Any]:
    """The cells of a task or a run."""
    if isinstance(item, RunRecord):
        return [item.id, float(item.started), item.ended, item.reason, to_json(item.info)]
    t = item
    payload, spaces = to_json(t.payload), to_json(t.spaces)
    return [t.key, t.name, t.op, t.target, float(t.flops), float(t.weight), t.shapes, t.workload, payload, spaces]


@lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, Any]:
    """One object for all rows of a run, as when they were measured."""
    return _object("versions", text)


def _noise(text: str) -> Noise:
    try:
        return Noise(**_object("noise", text))
    except TypeError as e:
        raise ValueError(f"column noise: {e}") from e


def _object(name: str, text: str) -> dict[str, Any]:
    found = _nested(name, text)
    if type(found) is not dict:
        raise ValueError(f"column {name}: must be an object of JSON, got {text[:40]!r}")
    return found


def _nested(name: str, text: str) -> Any:
    try:
        if "$" not in text and "\\" not in text:  # nothing to unpack, and no `$` in disguise
            return json.loads(text)
        return _light(json.loads(text)) if name == "knobs" else from_json(text)
    except RecursionError as e:
        raise ValueError(f"column {name}: nested too deeply") from e
    except (ValueError, TypeError, LookupError, ArithmeticError) as e:
        raise ValueError(f"column {name}: no JSON of ours: {' '.join(str(e).split())[:120]}") from e


def _light(found: Any) -> Any:
    """What `from_json` gives, for knobs, whose values are mostly numbers and tuples of numbers."""
    if type(found) is not dict or any(k.startswith("$") for k in found):
        return found if type(found) is not dict else from_json(json.dumps(found))
    for name, value in found.items():
        if type(value) is dict:
            inner = value.get("$tuple")
            if type(inner) is list and not any(type(v) is dict or type(v) is list for v in inner):
                found[name] = tuple(inner)
            else:
                found[name] = from_json(json.dumps(value))
        elif type(value) is list:
            found[name] = from_json(json.dumps(value))
    return found
