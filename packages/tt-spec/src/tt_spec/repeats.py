"""Which rows of a task deserve another timing, and what a row's timings are together."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tt_spec.space import token
from tt_spec.told import Told
from tt_spec.types import Measurement, Noise, Trial
from tt_spec.windows import SHARE, away

__all__ = ["Level", "Repeats"]


@dataclass(frozen=True)
class Level:
    """Rows whose seconds are of another machine than those of the others.

    Args:
        of: `levelled`, where these are a batch, or `corrections`, where they are earlier ones that were corrected.
        factor: That brings them to the others.
        places: Of the rows in `Told`, `(n,)`.
    """

    of: str
    factor: float
    places: np.ndarray


class Repeats:
    """Later timings of rows that are known.

    Args:
        told: The rows of the task; their seconds are read, not changed.
    """

    CLOSE, CONTENDERS, LOOKS, MANY = 1.05, 4, 3, 4
    """How near to the leader, how many, timings after which a leader is known, and rows before there is a race."""

    UNLUCKY, UNSURE, UNLUCKY_S = 2, 16, 1.5
    """Rows timed in another state of the machine, at once and in mind, and how far behind the leader they may lie."""

    ANCHORS = 2
    """Leaders of before a batch that are timed beside it. One alone may have been lucky."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._looks: Counter[bytes] = Counter()
        self._later: dict[bytes, Trial] = {}
        self._unsure: list[bytes] = []
        self._corrected: set[bytes] = set()
        self._batch: set[bytes] = set()
        self._own: list[int] = []
        self._anchors: list[bytes] = []

    def due(self, results: Sequence[Measurement]) -> np.ndarray:
        """Rows `(n, d)` that deserve another timing after these results of a batch.

        The leader and those within `CLOSE` of it, at most `CONTENDERS`, as long as one of them was timed fewer than
        `LOOKS` times: the fastest of many timings is the luckiest; of fewer than `MANY` it may be the fastest. And up
        to `UNLUCKY` rows, of this batch or an earlier one, that met the machine in no state that counts, and may be
        nearly as good as the leader. And the `ANCHORS` that led this run's rows before the batch, for `levelled`.
        """
        told, expected = self._told, self._told.expected
        best_s = float(expected.min(initial=math.inf))
        self._batch = {token(m.config) for m in results}
        led = told.best(self.ANCHORS, np.array(self._own, dtype=np.int64))
        known = len(told) >= self.MANY and bool(self._batch)
        self._anchors = [token(told.rows[i]) for i in led if known and math.isfinite(told.seconds[i])]
        self._own += sorted(told.at[name] for name in self._batch if name in told.at)
        top = [token(told.rows[i]) for i in told.best(self.CONTENDERS) if expected[i] <= self.CLOSE * best_s]
        if len(told) < self.MANY or all(self._looks[name] >= self.LOOKS - 1 for name in top):
            top = []
        corrected = [token(m.config) for m in results if m.error is None and _elsewhere(m.noise)]
        self._corrected.update(corrected)
        self._doubt(corrected)
        near = {name: expected[told.at[name]] for name in self._unsure}
        near = {name: s for name, s in near.items() if s <= self.UNLUCKY_S * best_s}
        self._unsure = sorted(near, key=near.__getitem__)[: self.UNSURE]
        unlucky = self._unsure[: self.UNLUCKY]
        names = list(dict.fromkeys([*self._anchors, *top, *unlucky]))
        self._unsure = [n for n in self._unsure if n not in unlucky or self._looks[n] < self.LOOKS - 1]
        self._looks.update(names)
        return told.rows[[told.at[name] for name in names]]

    def levelled(self, trials: Sequence[Trial]) -> tuple[list[Trial], Level | None]:
        """Later timings on the scale of what is known, and what it takes to bring all rows there.

        Seconds of two batches can be compared only as far as the machine was the same. Two processors that share a core
        and two that lie far apart look alike to a probe, or the wrong way round: a program of 18 us in the one took 27
        in the other, others 24 and 55. So the leaders of before a batch are timed beside it. Where all take longer than
        was known, or all less, by more than states differ (`SHARE`), it is the machine, and the nearest of them says by
        how much: the batch is brought to the seconds that are known. Where those were corrections and these count, it
        is this run's corrections that are brought to the batch's.
        """
        now = {token(t.config): t for t in trials}
        timed = [name for name in self._anchors if name in now]
        logs = [math.log(now[name].latency_s / self._seconds(name)) for name in timed]
        guessed = bool(timed) and all(name in self._corrected and not _elsewhere(now[name].noise) for name in timed)
        if len(logs) < self.ANCHORS and not guessed:
            return list(trials), None
        nearest = min(logs, key=abs)
        if abs(nearest) <= math.log1p(SHARE) or any(log * nearest < 0 for log in logs):
            return list(trials), None
        if guessed:
            guesses = self._corrected - self._batch
            for name in guesses:
                self._later.pop(name, None)
            return list(trials), Level("corrections", math.exp(nearest), self._places(guesses))
        factor = math.exp(-nearest)
        brought = [dataclasses.replace(t, seconds=tuple(factor * s for s in t.seconds)) for t in trials]
        return brought, Level("levelled", factor, self._places(self._batch))

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
        if _elsewhere(m.noise):
            return
        self._corrected.discard(name := token(m.config))
        if name in self._unsure:
            self._unsure.remove(name)

    def begin_again(self) -> None:
        """Doubt the rows near the front as if none had been timed again."""
        self._looks.clear()
        self._later.clear()
        self._doubt(token(row) for row, _ in self._told.top(self.UNSURE))

    def _doubt(self, names: Iterable[bytes]) -> None:
        self._unsure = list(dict.fromkeys([*self._unsure, *names]))

    def _places(self, names: set[bytes]) -> np.ndarray:
        return np.array(sorted(self._told.at[name] for name in names if name in self._told.at), dtype=np.int64)

    def _seconds(self, name: bytes) -> float:
        return float(self._told.seconds[self._told.at[name]])


def _elsewhere(noise: Noise | None) -> bool:
    """Whether it was timed in no state of the machine that counts."""
    return noise is not None and away(noise.slowdown, 1.0)
