"""Which rows of a task deserve another timing, and what a row's timings are together."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tt_spec.space import token
from tt_spec.told import Told
from tt_spec.types import Measurement, Trial
from tt_spec.windows import away

__all__ = ["Repeats"]


class Repeats:
    """Later timings of rows that are known.

    Args:
        told: The rows of the task; their seconds are read, not changed.
    """

    CLOSE, CONTENDERS, LOOKS, MANY = 1.05, 4, 3, 4
    """How near to the leader, how many, timings after which a leader is known, and rows before there is a race."""

    UNLUCKY, UNSURE, UNLUCKY_S = 2, 16, 1.5
    """Rows timed in another state of the machine, at once and in mind, and how far behind the leader they may lie."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._looks: Counter[bytes] = Counter()
        self._later: dict[bytes, Trial] = {}
        self._unsure: list[bytes] = []

    def due(self, results: Sequence[Measurement]) -> np.ndarray:
        """Rows `(n, d)` that deserve another timing after these results of a batch.

        The leader and those within `CLOSE` of it, at most `CONTENDERS`, as long as one of them was timed fewer than
        `LOOKS` times: the fastest of many timings is the luckiest; of fewer than `MANY` it may be the fastest. And up
        to `UNLUCKY` rows, of this batch or an earlier one, that met the machine in no state that counts, and may be
        nearly as good as the leader.
        """
        told, best_s = self._told, self._told.best_s
        top = [token(row) for row, s in told.top(self.CONTENDERS) if s <= self.CLOSE * best_s]
        if len(told) < self.MANY or all(self._looks[name] >= self.LOOKS - 1 for name in top):
            top = []
        self._doubt(token(m.config) for m in results if m.error is None and _elsewhere(m))
        near = [name for name in self._unsure if self._seconds(name) <= self.UNLUCKY_S * best_s]
        self._unsure = sorted(near, key=self._seconds)[: self.UNSURE]
        near = self._unsure[: self.UNLUCKY]
        names = list(dict.fromkeys([*top, *near]))
        self._unsure = [n for n in self._unsure if n not in near or self._looks[n] < self.LOOKS - 1]
        self._looks.update(names)
        return told.rows[[told.at[name] for name in names]]

    def joined(self, trial: Trial) -> Trial:
        """A later timing of a row together with the one before it, which is kept for the next; the first of all is left
        out, since it is why the row was chosen to be timed again. Over 24 visits to rows of 12 operators the spread of
        two together was 0.043, of one 0.055 (standard deviation of the log)."""
        name = token(trial.config)
        before, self._later[name] = self._later.get(name), trial
        if before is None:
            return trial
        return dataclasses.replace(trial, seconds=(*before.seconds, *trial.seconds), runs=before.runs + trial.runs)

    def settle(self, m: Measurement) -> None:
        """Take note of a later timing: a row that met a state that counts is unsure no more."""
        if (name := token(m.config)) in self._unsure and not _elsewhere(m):
            self._unsure.remove(name)

    def begin_again(self) -> None:
        """Doubt the rows near the front as if none had been timed again."""
        self._looks.clear()
        self._later.clear()
        self._doubt(token(row) for row, _ in self._told.top(self.UNSURE))

    def _doubt(self, names: Iterable[bytes]) -> None:
        self._unsure = list(dict.fromkeys([*self._unsure, *names]))

    def _seconds(self, name: bytes) -> float:
        return float(self._told.seconds[self._told.at[name]])


def _elsewhere(m: Measurement) -> bool:
    """Whether it was timed in no state of the machine that counts."""
    return m.noise is not None and away(m.noise.slowdown, 1.0)
