"""Kernels that other tuners have tuned: what they tried becomes rows of a space whose knobs are their parameters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from tt_spec import Knob, Measurement, Space, Task

__all__ = ["Kernel", "Parameters", "date", "seconds_of"]


_MOST = 1e300
"""Values are below it, and no infinity."""


class Parameters:
    """Parameters of a kernel and their values, in an order that does not depend on the order of results.

    Args:
        listed: Values by name, where the file lists them. Others that occur follow.
    """

    def __init__(self, listed: Mapping[str, Sequence[Any]] | None = None) -> None:
        self._fixed = listed is not None
        self._listed = {n: {_name(v): _value(n, v) for v in values} for n, values in (listed or {}).items()}
        self._others: dict[str, dict[str, Any]] = {n: {} for n in self._listed}

    def see(self, configuration: object) -> None:
        """Learn of the values of a result. Raises ValueError where its parameters are not those of the others."""
        if not isinstance(configuration, dict):
            raise ValueError(f"a configuration is an object, got {str(configuration)[:40]}")
        if not self._others and not self._fixed:
            self._listed = {n: {} for n in configuration}
            self._others = {n: {} for n in configuration}
        if set(configuration) != set(self._others):
            wanted, got = (", ".join(sorted(names))[:80] for names in (self._others, configuration))
            raise ValueError(f"the parameters are {wanted}, this result has {got}")
        for name, value in configuration.items():
            text = _name(value)
            if text not in self._listed[name] and text not in self._others[name]:
                self._others[name][text] = _value(name, value)

    def values(self) -> dict[str, tuple[Any, ...]]:
        """All values by name: the listed ones, then the others, numbers by size and before texts."""
        return {
            n: (*listed.values(), *sorted(self._others[n].values(), key=_rank)) for n, listed in self._listed.items()
        }


@dataclass(frozen=True)
class Kernel:
    """A kernel that somebody else's tuner has tuned.

    Args:
        tuner: Whose format this is; the origin of its records.
        size: Of the problem, as the file says it.
        device: Its name; empty where the file does not say.
        values: Of each parameter.
    """

    tuner: str
    name: str
    size: Any
    device: str
    values: Mapping[str, tuple[Any, ...]]

    @cached_property
    def task(self) -> Task:
        """The kernel as a task. Its kind is its own, so that no operator of ours learns from it."""
        space = Space(tuple(Knob(n, "choice", v) for n, v in self.values.items()), name=self.tuner)
        workload = _hash([self.tuner, self.name, self.size])
        return Task(
            _hash([workload, self.tuner]),
            self.name,
            f"kernel:{self.name}",
            self.tuner,
            (space,),
            0.0,
            shapes=_shapes(self.size),
            workload=workload,
        )

    @cached_property
    def _codes(self) -> list[tuple[str, dict[str, int]]]:
        return [(n, {_name(v): i for i, v in enumerate(values)}) for n, values in self.values.items()]

    def measured(self, configuration: Mapping[str, Any], **about: Any) -> Measurement:
        """The record of a result.

        Args:
            about: Other fields of `Measurement`.
        """
        row = tuple(codes[_name(configuration[n])] for n, codes in self._codes)
        knobs = {k.name: k.choices[c] for k, c in zip(self.task.space.knobs, row, strict=True)}
        where = {"origin": self.tuner, "device": self.device}
        return Measurement(self.task.key, self.task.space.key, row, knobs, **where, **about)


def seconds_of(times: object, unit_s: float) -> tuple[float, ...]:
    """Timed runs. Raises ValueError for what are no numbers; their sign is the measurement's to judge."""
    if not isinstance(times, list) or not all(type(t) in (int, float) for t in times):
        raise ValueError(f"times are a list of numbers, got {str(times)[:40]}")
    return tuple(float(t) * unit_s for t in times)


def date(text: object) -> float:
    """Seconds since the epoch of an ISO date, UTC where it has no zone; 0 where there is none."""
    if text is None:
        return 0.0
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError, OSError) as e:
        raise ValueError(f"timestamp is an ISO date, got {str(text)[:40]!r}") from e


def _value(name: str, value: Any) -> Any:
    """A parameter's value as a knob's choice."""
    if isinstance(value, list):
        return tuple(_value(name, v) for v in value)
    large = isinstance(value, int | float) and not abs(value) < _MOST
    if isinstance(value, dict) or large:
        raise ValueError(f"parameter {name}: a value is a number, a text or a list of them, got {str(value)[:40]}")
    return value


def _name(value: Any) -> str:
    """1, 1.0, True and "1" are four values."""
    return json.dumps(value)


def _rank(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, _name(value)


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _shapes(size: Any) -> str:
    return "x".join(map(str, size)) if isinstance(size, list) else str(size if isinstance(size, int) else "")
