"""Bounds of what a request may hold, before anything makes objects of it: depth, numbers of things, numbers themselves.

The models of the protocol say what each field must be; these bounds say what no field may be, whatever the route, so
that reading a body costs what its bytes cost.
"""

from __future__ import annotations

import json
import math
from typing import Any

from tt_spec import UserError

__all__ = ["MOST", "BoundsError", "checked"]

DEPTH = 24
"""A job's deepest value, a factor of a tile of a knob of a space of a task, lies at 9."""

VALUES = 2_000_000
"""In one body, all lists and objects together: a few hundred MB at the very worst."""

FIELDS, NAME = 1000, 200
"""Fields of an object, and characters of a field's name."""

MOST = {
    "tasks": 1000,
    "spaces": 8,
    "knobs": 512,
    "limits": 512,
    "choices": 100_000,
    "rows": 4096,
    "trials": 4096,
    "seconds": 10_000,
    "sets": 100,
    "batches": 64,
}
"""Entries of a list of this name, wherever it stands."""

_WHOLE = 2**63


class BoundsError(UserError):
    """A body that is not JSON, or holds more than it may; the message is one line."""


def checked(raw: bytes) -> Any:
    """The JSON document in these bytes. Raises `BoundsError`; recurses no deeper than Python allows."""
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > VALUES:  # before objects are made of them
        raise BoundsError(f"the body holds more than {VALUES:,} values")
    try:
        document = json.loads(raw.decode("utf-8"), parse_constant=_constant)
    except RecursionError:
        raise BoundsError(f"the body is nested deeper than {DEPTH}") from None
    except UnicodeDecodeError as e:
        raise BoundsError(f"the body is not UTF-8: byte {e.start}") from None
    except json.JSONDecodeError as e:
        raise BoundsError(f"the body is not JSON: line {e.lineno}, column {e.colno}") from None
    except ValueError:
        raise BoundsError("the body holds a number of too many digits") from None
    _walk(document)
    return document


def _constant(name: str) -> None:
    raise BoundsError(f"the body holds {name}, which is not JSON; a number that is not finite is null")


def _walk(document: Any) -> None:
    """Refuse what is too deep, too many, too long or no number. Level by level, without recursion."""
    level, depth = [document], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise BoundsError(f"the body is nested deeper than {DEPTH}")
        deeper: list[Any] = []
        for x in level:
            if isinstance(x, dict):
                _named(x)
                deeper.extend(x.values())
            elif isinstance(x, list):
                deeper.extend(x)
            else:
                _plain(x)
        level = deeper


def _named(x: dict[str, Any]) -> None:
    if len(x) > FIELDS:
        raise BoundsError(f"an object has {len(x):,} fields, more than {FIELDS:,}")
    for name, value in x.items():
        if len(name) > NAME:
            raise BoundsError(f"a field's name has more than {NAME} characters")
        _plain(name)
        if isinstance(value, list) and len(value) > MOST.get(name, len(value)):
            raise BoundsError(f"{name!r} has {len(value):,} entries, more than {MOST[name]:,}")


def _plain(x: object) -> None:
    """Refuse a value that JSON can say and this program cannot keep."""
    if isinstance(x, str):
        try:
            x.encode()
        except UnicodeEncodeError:
            raise BoundsError("the body holds half of a surrogate pair, which is no character") from None
    elif isinstance(x, float):
        if not math.isfinite(x):
            raise BoundsError("the body holds a number that is too large")
    elif isinstance(x, int) and not -_WHOLE <= x < _WHOLE:
        raise BoundsError("the body holds a whole number of more than 64 bits")
