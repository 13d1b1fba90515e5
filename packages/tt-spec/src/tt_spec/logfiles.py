"""The event logs beside a history: where they lie, and which are too old or too many."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOST_BYTES", "OLDEST_S", "Pruned", "folder", "prune"]

OLDEST_S = 90 * 86400.0
"""Age at which a log goes by default, seconds."""

MOST_BYTES = 1e9
"""Bytes that all logs of a history have by default; the oldest go first."""

YOUNG_S = 86400.0
"""Younger ones stay in any case: their run may go on."""


@dataclass(frozen=True)
class Pruned:
    """The logs that went, or would: their number and bytes, and the number and bytes of all that were there."""

    removed: int
    removed_bytes: int
    logs: int
    bytes: int


def folder(history: str | Path | None) -> Path | None:
    """Where the event logs of a history lie, `tt.runs` beside `tt.db`; None if the history is no plain file."""
    text = "" if history is None else str(history)
    if not text or text == ":memory:" or text.startswith("file:") or "://" in text:
        return None
    path = Path(text)
    return path.with_suffix(".runs") if path.name else None


def prune(
    where: Path,
    older_than_s: float = OLDEST_S,
    most_bytes: float = MOST_BYTES,
    dry_run: bool = False,
    young_s: float = YOUNG_S,
) -> Pruned:
    """Remove the logs of a folder that were last written so long ago, then the oldest until the others have no more
    bytes than that. Only files named like a run's log count; links and all else are left alone.

    Args:
        young_s: Logs that were written since stay.
    """
    now, found = time.time(), []
    with suppress(OSError):
        for entry in os.scandir(where):
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode) and re.fullmatch(r"[0-9a-f]{32}\.jsonl", entry.name):
                found.append((about.st_mtime, about.st_size, entry.path))
    found.sort(reverse=True)
    total, kept, gone = sum(size for _, size, _ in found), 0, []
    for written, size, path in found:
        age = now - written
        if age > young_s and (age > older_than_s or kept + size > most_bytes):
            gone.append((size, path))
        else:
            kept += size
    removed = []
    for size, path in gone:
        with suppress(OSError):  # another run may be at it, or the folder read-only
            if not dry_run:
                os.unlink(path)
            removed.append(size)
    return Pruned(len(removed), sum(removed), len(found), total)
