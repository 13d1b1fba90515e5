"""Why candidates failed: the most frequent causes, one full message each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tt_spec import Measurement

__all__ = ["Cause", "Causes"]


@dataclass(frozen=True)
class Cause:
    """One kind of failure: how often, `Measurement.error`, and the first such message in full."""

    count: int
    error: str
    message: str


@dataclass(frozen=True)
class Causes:
    """The causes of all failed candidates, most frequent first."""

    found: tuple[Cause, ...] = ()

    @classmethod
    def of(cls, measurements: Iterable[Measurement]) -> Causes:
        """Group failures by error and message; messages that differ only in numbers are one cause."""
        counts: Counter[tuple[str, str]] = Counter()
        messages: dict[tuple[str, str], str] = {}
        for m in measurements:
            if m.error is not None:
                key = (m.error, re.sub(r"0x[0-9a-fA-F]+|\d+", "#", m.why))
                counts[key] += 1
                messages.setdefault(key, m.why)
        return cls(tuple(Cause(n, key[0], messages[key]) for key, n in counts.most_common()))

    def headline(self) -> str:
        """Number of failures by error: "64 candidates failed: 40 invalid, 24 build"."""
        kinds: Counter[str] = Counter()
        for c in self.found:
            kinds[c.error] += c.count
        if not kinds:
            return "no candidate was measured: give more --minutes or --trials"
        parts = ", ".join(f"{n} {error}" for error, n in kinds.most_common())
        return f"{kinds.total()} candidates failed: {parts}"

    def lines(self, most: int = 3) -> list[str]:
        """One per cause, the `most` frequent ones."""
        return [f"{c.count} x {c.error}: {c.message or 'no message'}" for c in self.found[:most]]
