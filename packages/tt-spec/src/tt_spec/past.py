"""The rows of a store that a run may believe: measured here, on its device, and built by the compiler that builds now.

Another version of TVM or LLVM makes another program of the same row, whose time and result nobody knows. Such rows stay
in the store; the run measures them again where its search meets them. Nor is what came from a file believed: the best
of it is measured first, here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tt_spec.pieces.memory_store import MemoryStore
from tt_spec.roles import Lends, Recalls, Store
from tt_spec.types import Foreign, Measurement, Task

__all__ = ["Past"]

_GUIDES = 4
"""Imported rows of a task that are measured first."""


class Past:
    """What a store knows of tasks on one device.

    Args:
        compiler: Versions of the compiler that builds now, by name, which a row must not contradict.

    Attributes:
        last: When each run measured last, of the rows that were asked for.
        left: Rows that were left out, by the versions that built them.
        imported: Rows that were left out because they came from a file.
    """

    def __init__(self, store: Store, device: str, compiler: Mapping[str, str]) -> None:
        self.store, self.device, self.compiler = store, device, compiler
        self.last: dict[str, float] = {}
        self.left: dict[str, int] = {}
        self.imported = 0

    def believes(self, m: Measurement) -> bool:
        """Whether a row was measured here and the compiler of now built it. One that does not say which is believed:
        older versions did not."""
        return not m.imported and all(
            m.versions.get(name, version) == version for name, version in self.compiler.items()
        )

    def rows(self, task: Task, space: bool = True) -> list[Measurement]:
        """All that is known of a task, in its space or in any."""
        keys = {"task_key": task.key, "device": self.device, **({"space_key": task.space.key} if space else {})}
        return [m for m in self.store.query(**keys) if self.believes(m)]

    def known(self, task: Task) -> list[Measurement]:
        """The same; notes when runs ended and what is left out."""
        found = []
        for m in self.store.query(task_key=task.key, space_key=task.space.key, device=self.device):
            if m.imported:
                self.imported += 1
                continue
            if not self.believes(m):
                built = ", ".join(f"{n} {m.versions[n]}" for n in self.compiler if n in m.versions)
                self.left[built] = self.left.get(built, 0) + 1
                continue
            found.append(m)
            if m.origin != "finalist":
                self.last[m.run_id] = max(m.at, self.last.get(m.run_id, 0.0))
        return found

    def guides(self, task: Task) -> np.ndarray:
        """The best imported rows of the task's space, `(n, d)`, to be measured here before others."""
        latest = {
            (m.device, m.config): m
            for m in self.store.query(task_key=task.key, space_key=task.space.key)
            if m.imported and len(m.config) == len(task.space.knobs)
        }
        valid = sorted((m for m in latest.values() if m.error is None), key=lambda m: m.latency_s)
        rows = list(dict.fromkeys(m.config for m in valid))[:_GUIDES]
        return np.array(rows, dtype=np.int64).reshape(-1, len(task.space.knobs))

    def best_s(self, task: Task) -> float:
        """Seconds of a task's best program; inf where there is none."""
        found = self.store.best(task.key, self.device)
        if found is not None and not self.believes(found):
            kept = MemoryStore()
            kept.append(self.rows(task, space=False))
            found = kept.best(task.key, self.device)
        return math.inf if found is None else found.latency_s

    def recall(self, key: str) -> Task | None:
        """The task that the store knows by a key, which may be another operator's by chance."""
        return self.store.task(key) if isinstance(self.store, Recalls) else None

    def lend(self, task: Task, rows: int) -> Sequence[Foreign]:
        """Rows of other tasks and devices that may tell something of this one."""
        return self.store.lend(task, self.device, rows) if isinstance(self.store, Lends) else ()

    @property
    def remarks(self) -> list[str]:
        """What was left out, a line for each compiler."""
        now = ", ".join(f"{name} {version}" for name, version in self.compiler.items())
        told = [f"{self.imported} imported measurements of these tasks guide the search; what ships is measured here"]
        return (told if self.imported else []) + [
            f"{n} measurements of these tasks are of programs built by {built}, not by {now}: they are made again"
            for built, n in sorted(self.left.items())
        ]
