"""A store that lives as long as its process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tt_spec.types import Measurement

__all__ = ["MemoryStore"]


class MemoryStore:
    """Measurements in a list, runs in a dict."""

    def __init__(self) -> None:
        self._all: list[Measurement] = []
        self._runs: dict[str, dict[str, Any]] = {}

    def append(self, batch: Sequence[Measurement]) -> None:
        self._all.extend(batch)

    def query(
        self, task_key: str | None = None, space_key: str | None = None, device: str | None = None
    ) -> Iterable[Measurement]:
        wanted = (("task_key", task_key), ("space_key", space_key), ("device", device))
        return [m for m in self._all if all(v is None or getattr(m, k) == v for k, v in wanted)]

    def best(self, task_key: str, device: str | None = None) -> Measurement | None:
        latest = {(m.space_key, m.config, m.device): m for m in self.query(task_key, device=device)}
        return min((m for m in latest.values() if m.error is None), key=lambda m: m.latency_s, default=None)

    def begin_run(self, info: dict[str, Any]) -> str:
        run_id = str(len(self._runs) + 1)
        self._runs[run_id] = dict(info)
        return run_id

    def end_run(self, run_id: str, reason: str) -> None:
        self._runs[run_id]["reason"] = reason

    def close(self) -> None:
        pass
