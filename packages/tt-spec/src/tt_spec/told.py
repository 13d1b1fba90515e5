"""The rows that were told of one task, in buffers that grow: a batch costs the same after ten rows and after 10^5."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from tt_spec.space import token

__all__ = ["Told"]


class Told:
    """Rows, seconds, timed runs and errors in the order in which they were told, and where each row stands.

    Args:
        knobs: Columns of a row.
        surcharge: Seconds that a row's program takes longer in a network than alone, asked of rows that have one; see
            `tt_spec.Pipeline`.
    """

    def __init__(self, knobs: int, surcharge: Callable[[np.ndarray], float] = lambda row: 0.0) -> None:
        self._rows = np.empty((64, knobs), dtype=np.int64)
        self._seconds, self._surcharges, self._surcharge = np.empty(64), np.empty(64), surcharge
        self._trial = np.empty(64, dtype=bool)
        self._costs = np.empty((64, 2))
        self.errors: list[str | None] = []
        self.timed: list[tuple[float, ...]] = []
        self.at: dict[bytes, int] = {}
        self.trials = 0
        self._best = math.inf

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def rows(self) -> np.ndarray:
        """All rows, `(n, d)`, to be read only; later ones do not change it."""
        return _view(self._rows, len(self))

    @property
    def seconds(self) -> np.ndarray:
        """Medians, `(n,)`, inf of failures; to be read only."""
        return _view(self._seconds, len(self))

    @property
    def expected(self) -> np.ndarray:
        """Medians with what each row takes longer in a network, `(n,)`, inf of failures: what is searched for."""
        return self.seconds + self._surcharges[: len(self)]

    @property
    def costs(self) -> np.ndarray:
        """Seconds that each row took to build and to time, `(n, 2)`, NaN where nobody told; to be read only."""
        return _view(self._costs, len(self))

    @property
    def usable(self) -> np.ndarray:
        """Places of the rows that cost a trial: all but the refused ones."""
        return np.flatnonzero(self._trial[: len(self)])

    @property
    def best_s(self) -> float:
        """The least seconds; inf before the first valid row."""
        return self._best

    def add(
        self,
        row: np.ndarray,
        seconds: float,
        error: str | None,
        timed: tuple[float, ...] = (),
        cost: Mapping[str, float] | None = None,
    ) -> None:
        """Take a row `(d,)`; `timed` are the runs whose median `seconds` is, `cost` as in `Trial`."""
        n = len(self)
        if n == len(self._seconds):
            self._rows, self._seconds = np.concatenate([self._rows] * 2), np.concatenate([self._seconds] * 2)
            self._trial, self._costs = np.concatenate([self._trial] * 2), np.concatenate([self._costs] * 2)
            self._surcharges = np.concatenate([self._surcharges] * 2)
        self._rows[n], self._seconds[n], self._trial[n] = row, seconds, error != "invalid"
        self._costs[n], self._surcharges[n] = _costs(cost or {}), self._surcharge(row) if error is None else 0.0
        self.at[token(row)] = n
        self.errors.append(error)
        self.timed.append(timed)
        self.trials += error != "invalid"
        self._best = min(self._best, float(seconds))

    def change(self, place: int, seconds: float, error: str | None, timed: tuple[float, ...] = ()) -> None:
        """Let a row have another verdict from now on."""
        self.trials += (error != "invalid") - int(self._trial[place])
        self._seconds[place], self._trial[place], self.errors[place] = seconds, error != "invalid", error
        self.timed[place] = timed
        self._surcharges[place] = self._surcharge(self._rows[place]) if error is None else 0.0
        self._best = float(self.seconds.min())

    def rescale(self, factor: float, places: np.ndarray | None = None) -> None:
        """Multiply seconds, of the rows at these places or of all."""
        for i in range(len(self)) if places is None else places:
            self._seconds[i] *= factor
            self.timed[i] = tuple(factor * s for s in self.timed[i])
        self._best = float(self.seconds.min(initial=math.inf))

    def counts(self) -> Counter[str | None]:
        """Number of rows by error; the valid ones count under None."""
        return Counter(self.errors)

    def incumbents(self) -> list[tuple[int, float]]:
        """`(trial, seconds)` of every row that beat all before it."""
        seconds = self.seconds
        before = np.concatenate([[np.inf], np.minimum.accumulate(seconds)[:-1]]) if len(seconds) else seconds
        trial = np.cumsum(self._trial[: len(self)])
        return [(int(trial[i]), float(seconds[i])) for i in np.flatnonzero(seconds < before)]

    def best(self, n: int, among: np.ndarray | None = None) -> np.ndarray:
        """Places of the `n` rows of which the least is `expected`, best first and the earlier of equals; failures
        last."""
        expected, places = self.expected, np.arange(len(self)) if among is None else among
        if not 0 < n < len(places):
            places = places[: len(places) if n > 0 else 0]
        else:
            seconds = expected[places]
            nth = np.partition(seconds, n - 1)[n - 1]
            places = places[seconds <= nth]
        return places[np.argsort(expected[places], kind="stable")][: max(n, 0)]

    def top(self, n: int) -> list[tuple[np.ndarray, float]]:
        """The `n` best valid rows with their seconds, that of which the least is `expected` first."""
        rows, seconds = self.rows, self.seconds
        return [(rows[i], float(seconds[i])) for i in self.best(n) if math.isfinite(seconds[i])]


def _costs(cost: Mapping[str, float]) -> tuple[float, float]:
    """Seconds of building and of timing; NaN where either is not known."""
    build, run = (sum(cost.get(k, 0.0) for k in kinds) for kinds in (("apply", "build"), ("run",)))
    return (build, run) if build > 0 and run > 0 else (math.nan, math.nan)


def _view(buffer: np.ndarray, n: int) -> np.ndarray:
    view = buffer[:n]
    view.flags.writeable = False
    return view
