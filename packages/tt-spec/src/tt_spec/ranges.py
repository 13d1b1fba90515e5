"""Ranges of a piece's options, which it declares in its `Entry`: `tt suggest` tries what lies in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["BATCH", "Choice", "Float", "Integer", "Range"]


@dataclass(frozen=True)
class Integer:
    """Whole numbers, both ends included.

    Args:
        log: Whether ratios count, not differences: 16 and 32 are as far apart as 512 and 1024.
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        if type(self.low) is not int or type(self.high) is not int:
            raise ValueError(f"the ends must be whole numbers, got {self.low!r} and {self.high!r}")
        _check(self.low, self.high, self.log)

    def holds(self, value: object) -> bool:
        """Whether a value lies in the range."""
        return type(value) is int and self.low <= value <= self.high

    def as_dict(self) -> dict[str, Any]:
        """For `tt plugins --json`."""
        return {"type": "integer", **vars(self)}


@dataclass(frozen=True)
class Float:
    """Real numbers, both ends included; `log` as in `Integer`."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.low) or not math.isfinite(self.high):
            raise ValueError(f"the ends must be finite, got {self.low!r} and {self.high!r}")
        _check(self.low, self.high, self.log)

    def holds(self, value: object) -> bool:
        """Whether a value lies in the range."""
        return type(value) in (int, float) and self.low <= value <= self.high  # type: ignore[operator]

    def as_dict(self) -> dict[str, Any]:
        """For `tt plugins --json`."""
        return {"type": "float", **vars(self)}


@dataclass(frozen=True)
class Choice:
    """One of several values, each None, a truth value, a number or a text."""

    values: tuple[bool | int | float | str | None, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(map(repr, self.values))) < len(self.values):
            raise ValueError(f"a choice needs two values or more, all different, got {self.values!r}")
        for value in self.values:
            if not isinstance(value, bool | int | float | str | None):
                raise ValueError(f"a value is None, a truth value, a number or a text, got {value!r}")

    def holds(self, value: object) -> bool:
        """Whether a value is one of them."""
        return any(type(v) is type(value) and v == value for v in self.values)

    def as_dict(self) -> dict[str, Any]:
        """For `tt plugins --json`."""
        return {"type": "choice", "values": list(self.values)}


Range = Integer | Float | Choice


def _check(low: float, high: float, log: bool) -> None:
    if not low < high:
        raise ValueError(f"the low end must be below the high one, got {low} and {high}")
    if log and low <= 0:
        raise ValueError(f"a range that counts ratios lies above 0, got {low}")


BATCH = Integer(8, 64, log=True)
"""Of a recipe's `batch`, which belongs to no piece."""
