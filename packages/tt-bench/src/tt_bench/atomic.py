"""Files that are written whole or not at all, so that a kill leaves no half one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tt_bench.errors import BenchError

__all__ = ["read_json", "write", "write_json"]

KEPT = "what is finished is kept"


def write(path: Path, content: str | bytes, kept: str = KEPT) -> None:
    """Write a file, and its folder if there is none. Raises `BenchError`.

    Args:
        kept: What is not lost if the file cannot be written, for the message.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError as e:
        raise BenchError(f"{path}: {e.strerror or e}; {kept}") from e


def write_json(path: Path, data: Any, kept: str = KEPT) -> None:
    """Write data as JSON, infinities and NaN refused. Raises `BenchError`."""
    write(path, json.dumps(data, separators=(",", ":"), allow_nan=False), kept)


def read_json(path: Path) -> Any:
    """Data that `write_json` wrote. Raises `BenchError`."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise BenchError(f"{path}: {e}; delete it and repeat the command") from e
