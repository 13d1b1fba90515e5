"""A history of JSON lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tt_spec import Measurement, StoreError, Task, from_json, to_json

__all__ = ["LinesStore"]


class LinesStore:
    """Measurements, runs and tasks, a line of JSON each, in a file that only grows.

    Args:
        path: The file; made at the first line.
    """

    def __init__(self, path: str | Path = "tt.jsonl") -> None:
        self.path = Path(path)

    def append(self, batch: Sequence[Measurement]) -> None:
        self._write([("measurement", m) for m in batch])

    def query(
        self, task_key: str | None = None, space_key: str | None = None, device: str | None = None
    ) -> Iterator[Measurement]:
        wanted = {"task_key": task_key, "space_key": space_key, "device": device}
        for m in self._read("measurement"):
            if all(value is None or getattr(m, name) == value for name, value in wanted.items()):
                yield m

    def best(self, task_key: str, device: str | None = None) -> Measurement | None:
        latest = {(m.space_key, m.config, m.device): m for m in self.query(task_key, device=device)}
        return min((m for m in latest.values() if m.error is None), key=lambda m: m.latency_s, default=None)

    def begin_run(self, info: dict[str, Any]) -> str:
        run_id = f"{len(list(self._read('run'))) + 1:08d}"
        self._write([("run", {"id": run_id, "started": time.time(), "info": info})])
        return run_id

    def end_run(self, run_id: str, reason: str) -> None:
        self._write([("end", {"id": run_id, "reason": reason})])

    def close(self) -> None:
        """Every line is on disk already."""

    def remember(self, tasks: Sequence[Task]) -> None:
        self._write([("task", {"key": t.key, "name": t.name, "op": t.op}) for t in tasks])

    def runs(self) -> list[dict[str, Any]]:
        ends = {e["id"]: e["reason"] for e in self._read("end")}
        return [{**r, "reason": ends.get(r["id"])} for r in self._read("run")]

    def summary(self) -> list[dict[str, Any]]:
        names = {t["key"]: t for t in self._read("task")}
        found: dict[tuple[str, str], list[Measurement]] = {}
        for m in self.query():
            found.setdefault((m.task_key, m.device), []).append(m)
        rows = []
        for (key, device), measured in found.items():
            best, known = self.best(key, device), names.get(key, {})
            rows.append(
                {
                    "task_key": key,
                    "name": known.get("name"),
                    "op": known.get("op"),
                    "device": device,
                    "trials": sum(m.error != "invalid" for m in measured),
                    "failed": sum(m.error not in (None, "invalid") for m in measured),
                    "best_s": None if best is None else best.latency_s,
                }
            )
        return rows

    def _read(self, kind: str) -> Iterator[Any]:
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                found, thing = from_json(line)
            except (ValueError, TypeError) as e:
                raise StoreError(f"history {self.path}, line {number}: {e}; choose another file") from e
            if found == kind:
                yield thing

    def _write(self, things: Sequence[tuple[str, Any]]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(to_json([kind, thing]) + "\n" for kind, thing in things)
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            raise StoreError(f"history {self.path} cannot be written: {e.strerror or e}") from e
