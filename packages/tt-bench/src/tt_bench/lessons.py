"""Lessons of cost models that learn beforehand: measured rows of many operators with their programs' statements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Group, Statements, Task, concat_statements, labels

from tt_bench import files
from tt_bench.dataset import SUFFIX, DataSet, load_all, path_of
from tt_bench.errors import BenchError
from tt_bench.statements import statements

__all__ = ["Lesson", "data_hash", "read", "split"]


@dataclass(frozen=True)
class Lesson:
    """One operator's rows on one device.

    Args:
        name: To choose it by: "resnet18-64-sketch/conv2d".
        task: With the rows' space as its only one.
        codes: `(n, d)` rows, for a model over statements those that have a program.
        statements: Of each row; none where only knobs are read.
        seconds: Medians `(n,)`, inf for failures.
        device: Fingerprint of the machine.
    """

    name: str
    task: Task
    codes: np.ndarray
    statements: Statements
    seconds: np.ndarray
    device: str

    @property
    def operator(self) -> tuple[str, str]:
        """Kind, first input and outputs: one operator in several spaces and on several devices is one.

        Packed weights do not show, whose blocks are as wide as a device's vectors; nor does the kernel, so that what is
        kept apart errs on the safe side.
        """
        inputs, _, outputs = self.task.shapes.partition("->")
        return self.task.op, f"{inputs.split(',')[0].strip()} -> {outputs.strip()}"

    def features(self, inputs: str) -> Any:
        """The input that a model reads, "knobs" or "statements"."""
        return self.statements if inputs == "statements" else self._knobs

    @cached_property
    def _knobs(self) -> np.ndarray:
        """Encoded rows `(n, width)`, which every round of a training reads."""
        return self.task.space.encode(self.codes)

    def group(self, inputs: str) -> Group:
        """Training data: labels are best / seconds."""
        return self.task, self.features(inputs), labels(self.seconds)


def read(folders: Sequence[str | Path], inputs: str = "statements") -> list[Lesson]:
    """Every operator of some folders with at least two rows. Raises `BenchError`.

    A folder holds recordings of `tt record` (`.json.gz`, `.json`), data sets of `tt dataset`, or both.

    Args:
        inputs: What the model reads, "knobs" or "statements".
    """
    found: list[Lesson] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise BenchError(f"no folder {folder}: give one with recordings, or with a data set")
        for path in _recordings(folder):
            found += _of_recording(path, inputs)
        for data in load_all(folder) if any(folder.glob(f"*{SUFFIX}")) else ():
            found += _of_data_set(folder, data, inputs)
    if not found:
        names = ", ".join(map(str, folders))
        with_them = " with statements" if inputs == "statements" else ""
        raise BenchError(f"nothing to learn from in {names}: no operator has two rows{with_them}")
    return found


def _recordings(folder: Path) -> list[Path]:
    files = (p for p in folder.iterdir() if p.name.endswith((".json.gz", ".json")) and p.is_file())
    return sorted(p for p in files if not p.name.endswith(SUFFIX))


def _of_recording(path: Path, inputs: str) -> list[Lesson]:
    recording, found = files.load(path), []
    for part in recording.parts:
        X, ok = _all(len(part.rows)) if inputs == "knobs" else part.statements_of(list(range(len(part.rows))))
        if ok.sum() > 1:
            name = f"{path.name.split('.')[0]}/{part.whole.name}"
            codes = part.widen(part.rows)[ok]
            found.append(Lesson(name, part.whole, codes, X, part.latency[ok], recording.device))
    return found


def _all(rows: int) -> tuple[Statements, np.ndarray]:
    """No statements, and all rows."""
    return concat_statements([]), np.ones(rows, dtype=bool)


def _of_data_set(folder: Path, data: DataSet, inputs: str) -> list[Lesson]:
    found, place = [], path_of(folder, data.device).name.removesuffix(SUFFIX)
    made = (_all(len(o.codes)) for o in data.operators) if inputs == "knobs" else statements(folder, data)
    for o, (X, ok) in zip(data.operators, made, strict=True):
        if ok.sum() > 1:
            name = f"{place}/{o.task.name} {o.task.shapes}"  # names alone are those of many operators
            found.append(Lesson(name, o.task, o.codes[ok], X, o.seconds[ok], data.device))
    return found


def split(
    lessons: Sequence[Lesson], patterns: Sequence[str], matches: Callable[[str, str], bool], share: float, seed: int
) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons to learn from, and those kept apart: whole operators, in all their spaces and on all devices.

    Args:
        patterns: Of names; none draws operators by the seed.
        matches: `matches(name, pattern)`.
        share: Of the operators that are drawn.
    """
    operators = sorted({x.operator for x in lessons})
    if patterns:
        apart = {x.operator for x in lessons if any(matches(x.name, p) for p in patterns)}
    else:
        drawn = np.random.default_rng(seed).permutation(len(operators))[: int(share * len(operators))]
        apart = {operators[i] for i in drawn}
    return [x for x in lessons if x.operator not in apart], [x for x in lessons if x.operator in apart]


def data_hash(lessons: Iterable[Lesson]) -> str:
    """SHA-256 of the rows, their seconds and statements, in whatever order they were read."""
    parts = []
    for x in lessons:
        digest = hashlib.sha256(f"{x.task.key}\0{x.task.space.key}\0{x.device}\0".encode())
        for values in (x.codes, x.seconds, x.statements.values, x.statements.offsets, x.statements.operator):
            digest.update(np.ascontiguousarray(values).tobytes())
        parts.append(digest.hexdigest())
    return hashlib.sha256("".join(sorted(parts)).encode()).hexdigest()
