"""One line of CSV for every measurement."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from tt_spec import Measurement, Task

__all__ = ["COLUMNS", "write"]

COLUMNS = ("run", "task", "config", "origin", "latency_s", "error")


def write(path: Path, task: Task, results: Sequence[Measurement]) -> None:
    """Append the measurements; a new file gets a heading. `latency_s` is empty where `error` is not."""
    with path.open("a", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        if not file.tell():
            rows.writerow(COLUMNS)
        for m in results:
            latency = "" if m.error else m.latency_s
            rows.writerow([m.run_id, task.name, " ".join(map(str, m.config)), m.origin, latency, m.error or ""])
