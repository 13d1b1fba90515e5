"""Anything as plain JSON data: what is not finite becomes null, arrays and tuples become lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["plain"]


def plain(thing: Any) -> Any:
    """The thing as JSON has it; what is nothing of JSON becomes its text."""
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, dict):
        return {str(k): plain(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple | set | frozenset):
        return [plain(v) for v in thing]
    return str(thing)
