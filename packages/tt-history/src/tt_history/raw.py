"""Records between a file and the vocabulary, and how a space explains a row's knobs."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

from tt_spec.serial import to_json
from tt_spec.space import Space
from tt_spec.types import Measurement, Noise

__all__ = ["NOISE", "Explain", "Raw", "explain", "explain_json", "raw_of", "same", "spent_and_noise"]


class Raw(NamedTuple):
    """A record as both schema versions hold it.

    Args:
        place: Task key, space key, device.
        config: JSON array without blanks.
        versions: JSON object.
        cost: Seconds spent, by name; `noise.` and a field's name is a field of the measurement's `Noise`.
        median_s: None for a failure.
        seconds: Timed runs, little-endian float64 one after the other.
        knobs: JSON object, or None where the space explains them.
    """

    place: tuple[str, str, str]
    config: str
    origin: str
    run_id: str
    versions: str
    cost: dict[str, Any]
    error: str | None
    median_s: float | None
    runs: int
    at: float
    why: str
    seconds: bytes
    knobs: str | None


def raw_of(m: Measurement, known: dict[str, Any] | None, versions: str, origin: str | None = None) -> Raw:
    """The record of a measurement; a `why` that is not UTF-8 is kept with escapes.

    Args:
        known: The row's knobs as its space decodes them, None if that is not known.
        versions: JSON of its versions, which are the same for a whole run.
        origin: To be kept instead of its own.
    """
    knobs = None if known is not None and same(known, m.knobs) else to_json(m.knobs)
    seconds = m.seconds
    return Raw(
        (m.task_key, m.space_key, m.device),
        str(list(map(int, m.config))).replace(" ", ""),
        m.origin if origin is None else origin,
        m.run_id,
        versions,
        m.cost if m.noise is None else {**m.cost, **{NOISE + k: float(v) for k, v in vars(m.noise).items()}},
        m.error,
        m.latency_s if m.error is None else None,
        int(m.runs),
        float(m.at),
        # a compiler's output may have been decoded with surrogate escapes, which SQLite cannot hold
        m.why if m.why.isascii() else m.why.encode("utf-8", "backslashreplace").decode(),
        struct.pack(f"<{len(seconds)}d", *seconds),
        knobs,
    )


NOISE = "noise."


def spent_and_noise(cost: dict[str, Any]) -> tuple[dict[str, Any], Noise | None]:
    """A record's `cost` taken apart into the measurement's `cost` and `noise`."""
    seen = {k.removeprefix(NOISE): v for k, v in cost.items() if k.startswith(NOISE)}
    if not seen:
        return cost, None
    noise = Noise(int(seen["windows"]), int(seen["discarded"]), seen["slowdown"], seen["vain_s"])
    return {k: v for k, v in cost.items() if not k.startswith(NOISE)}, noise


class Explain:
    """Rows of a space in words.

    Args:
        knobs: Name, choices and `active_if` of each.
    """

    def __init__(self, knobs: list[tuple[str, Sequence[Any], tuple[int, Sequence[int]] | None]]) -> None:
        self._knobs = knobs
        self._switches = sorted({condition[0] for _, _, condition in knobs if condition is not None})
        self._plans: dict[tuple[int, ...], list[tuple[int, str, Sequence[Any]]]] = {}
        self._texts: dict[int, list[str]] = {}

    def __call__(self, row: Sequence[int]) -> dict[str, Any] | None:
        """A row's knobs as its space decodes them, None if it is not a row of that space."""
        plan = self._plan(row)
        try:
            return None if plan is None else {name: choices[row[i]] for i, name, choices in plan}
        except IndexError:
            return None

    def text(self, row: Sequence[int]) -> str | None:
        """`to_json` of a row's knobs, None if it is not a row of the space. Each choice's JSON is made once."""
        plan, texts = self._plan(row), self._texts
        if plan is None:
            return None
        for i, name, choices in plan:
            if i not in texts:
                texts[i] = [to_json({name: choice})[1:-1] for choice in choices]
        try:
            return f"{{{','.join([texts[i][row[i]] for i, _, _ in plan])}}}"
        except IndexError:
            return None

    def _plan(self, row: Sequence[int]) -> list[tuple[int, str, Sequence[Any]]] | None:
        """Index, name and choices of the knobs that matter in `row`, None if it is not a row of the space."""
        if len(row) != len(self._knobs) or min(row) < 0:
            return None
        key = tuple([row[i] for i in self._switches])
        found = self._plans.get(key)
        if found is None:
            on: list[bool] = []
            for _, _, condition in self._knobs:
                on.append(condition is None or (on[condition[0]] and row[condition[0]] in condition[1]))
            found = [(i, name, choices) for i, (name, choices, _) in enumerate(self._knobs) if on[i]]
            self._plans[key] = found
        return found


def explain(space: Space) -> Explain:
    """`space.decode` for one row at a time: without arrays, at a twentieth of the time."""
    return Explain([(k.name, k.choices, k.active_if) for k in space.knobs])


def explain_json(text: bytes) -> Explain:
    """`explain` of a space in JSON (`tt_spec.serial`), without making the space, which takes far longer.

    Raises ValueError, KeyError or TypeError if it is none.
    """
    knobs = json.loads(text)["knobs"]["$tuple"]
    return Explain([(k["name"], _value(k["choices"]), _value(k["active_if"])) for k in knobs])


def _value(x: Any) -> Any:
    """A choice, or a tuple of them, as `tt_spec.serial` unpacks it."""
    if not isinstance(x, dict):
        return x
    return tuple(map(_value, x["$tuple"])) if "$tuple" in x else float(x["$float"])


def same(a: Any, b: Any) -> bool:
    """Whether both come back from a file alike: 1 is not True, a tuple is no list, and the order of names counts."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        if list(a) != list(b):
            return False
        if all(map(is_, a.values(), b.values())):  # the same choices, as nearly always
            return True
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return False
        for x, y in zip(a, b, strict=True):  # noqa: SIM110, for a loop takes half as long and this is asked of every row
            if x is not y and not same(x, y):
                return False
        return True
    return a == b and (not isinstance(a, float) or str(a) == str(b))
