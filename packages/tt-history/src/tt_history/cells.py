"""What the columns of a record hold: timings and costs as packed float64, and JSON."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

from tt_spec.serial import from_json, to_json

__all__ = ["median", "pack_costs", "parsed", "unpack_costs"]

_FLOATS: set[type] = {float}


@lru_cache(maxsize=256)
def parsed(text: str) -> dict[str, Any]:
    """Of JSON that many rows share."""
    return from_json(text)


def pack_costs(cost: dict[str, Any]) -> tuple[str, bytes | str | None]:
    """Names as JSON, and their seconds as float64 one after the other; what is no float is kept as JSON."""
    if _FLOATS.issuperset(map(type, cost.values())):
        return _names(tuple(cost)), struct.pack(f"<{len(cost)}d", *cost.values()) if cost else None
    return "", to_json(cost)


@lru_cache(maxsize=256)
def _names(names: tuple[str, ...]) -> str:
    return json.dumps(list(names), separators=(",", ":"))


@lru_cache(maxsize=256)
def _listed(names: str) -> list[str]:
    return json.loads(names)


def unpack_costs(costs: str, cost: bytes | str | None) -> dict[str, Any]:
    """The reverse of `pack_costs`."""
    if isinstance(cost, str):
        return from_json(cost)
    names = _listed(costs)
    return dict(zip(names, struct.unpack(f"<{len(names)}d", cost or b""), strict=True))


def median(seconds: bytes) -> float | None:
    """Median of packed timings as `Measurement.latency_s` has it, None of none."""
    times = sorted(struct.unpack(f"<{len(seconds) // 8}d", seconds))
    if not times:
        return None
    half = len(times) // 2
    return times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2
