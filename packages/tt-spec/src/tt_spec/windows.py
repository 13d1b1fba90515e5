"""Timing in windows that count: a fixed program on both sides of each tells in which state the machine was."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tt_spec.types import Noise

__all__ = ["SHARE", "Reference", "Seen", "Windows", "away", "beside", "state", "suffered"]

SHARE = 0.15
"""Readings of the probe that differ by no more are of one state: the states of shared cores lie a factor of 1.3 to 2
apart, and a quiet machine's readings within 5 %."""


MOST = 3.0
"""A timing is corrected for a slowdown of so much at most: a probe that takes longer was interrupted."""

SUFFERS = 1.5
"""Largest sensitivity that is believed."""

ANCHOR_S, ANCHOR_ROUNDS = 1.5e-3, 3
"""How long a known program is timed in another state, at least, and how often unless once takes far longer."""

TURNS, FEW_TURNS = 5, 2
"""How often a program takes turns with a known one, and how often where one execution takes longer than `ANCHOR_S`."""

LOOKS = 3
"""Readings after a long window, of which the smallest counts: the pool's threads may have gone to sleep meanwhile, and
a probe that finds them so, or is interrupted, says nothing of the window."""


@dataclass(frozen=True)
class Seen:
    """The states that one candidate's timing met.

    Args:
        readings: Of the probe, in order, seconds.
        met: Whether most calls were judged by windows in the reference state: else what the candidate is said to take
            is mostly a correction.
        sensitivity: Log of how much longer the candidate took in another state, over the log of how much longer the
            probe did; None where it was not timed in both.
    """

    readings: tuple[float, ...]
    met: bool
    sensitivity: float | None = None


class Reference:
    """The state of the machine in which timings count, told by the seconds of a fixed program, the probe.

    Shared machines have states of speed that no load and no stolen time shows: a stranger on the other half of a core,
    two threads that the host put on one core, or on two that share no cache, a lower clock. A probe of 0.1 ms shows
    them. Timings are comparable within one state, so one is the reference: the fastest that makes up at least `least`
    of the readings, or the most frequent. One that is faster and rare is left out like one that is slower, since
    hardly any candidate would meet it.

    States may last for half a minute, and what was timed before a change of the reference can hardly be compared with
    what comes later. So the choice is made once more after each number of candidates in `early` if most of them did not
    meet the reference, and then only where fewer than `gone` of the last `recent` did; and nothing changes but by
    `settle`, between two batches.

    Args:
        least: Share of the readings that a state must have to be the reference. (default: 0.33)
        gone: Share of the candidates below which the reference is given up. (default: 0.2)
        early: Candidates after which the choice is made again. (default: 8, 24)
        recent: Candidates that are looked back at afterwards. (default: 256)

    Attributes:
        seconds: The probe's seconds in the reference state; None before the first reading.
        changes: How often another state became the reference.
        blind: Whether it is known that nothing tells the machine's state.
    """

    WAIT_S, SHORT_S, LAST = 0.03, 0.003, 3
    """Of `wait_s`: seconds, as a rule and in a state that lasts, and candidates by which that is known."""

    DOUBT = 0.5
    """Share of the candidates that must have met the reference early, lest it be chosen again. A fast state that is too
    rare for the first choice may be met by all, since they wait for it."""

    LOOKED = 8
    """Candidates that the look before all of them counts as much as."""

    def __init__(
        self, least: float = 0.33, gone: float = 0.2, early: Sequence[int] = (8, 24), recent: int = 256
    ) -> None:
        self.least, self.gone, self.early, self.recent = least, gone, tuple(early), recent
        self.seconds: float | None = None
        self.changes = 0
        self.blind = False
        self._told = 0
        self._due = False
        self._scales: dict[str, float] = {}
        self._looked: list[float] = []
        self._seen: deque[tuple[float, bool]] = deque(maxlen=recent)
        self._sensitivity: dict[str, deque[float]] = {}

    def look(self, readings: Sequence[float]) -> None:
        """Choose by readings of the probe alone, before any candidate. No readings: there is no probe, ask no more."""
        self.blind = not len(readings)
        if not self.blind:
            self.seconds = self._chosen(readings)
            self._looked = [float(q) for q in np.quantile(readings, (np.arange(self.LOOKED) + 0.5) / self.LOOKED)]

    def tell(self, task_key: str, seen: Seen) -> None:
        """Take down what a candidate of the task met; its first reading has a vote, not those of waiting."""
        if not seen.readings:  # its evaluator ran nothing
            return
        if self.seconds is not None:
            self._scales.setdefault(task_key, self.seconds)
        self._seen.append((seen.readings[0], seen.met))
        if seen.sensitivity is not None:
            self._sensitivity.setdefault(task_key, deque(maxlen=64)).append(seen.sensitivity)
        self._told += 1
        met = sum(met for _, met in self._seen) / len(self._seen)
        rare = len(self._seen) == self.recent and met < self.gone
        self._due = self._due or rare or (self._told in self.early and met < self.DOUBT)

    def settle(self) -> None:
        """Choose once more if it is time to: from now on timings may be in the seconds of another state."""
        if not self._due:
            return
        self._due, full = False, len(self._seen) == self.recent
        chosen = self._chosen([*([] if full else self._looked), *(reading for reading, _ in self._seen)])
        if self.seconds is None or away(chosen, self.seconds):
            self.seconds = chosen
            self.changes += 1
            if full:
                self._seen.clear()

    def rescaled(self, task_key: str) -> float:
        """By how much seconds of the task grew with the changes since the last call, as far as its programs suffer like
        the candidates of which that was seen."""
        if self.seconds is None or (before := self._scales.get(task_key)) is None:
            return 1.0
        self._scales[task_key] = self.seconds
        return (self.seconds / before) ** self.sensitivity(task_key)

    def wait_s(self) -> float:
        """What a candidate may spend on waiting for the reference state: little where none of the `LAST` met it, since
        a state that lasts so long will not end in time."""
        last = [met for _, met in self._seen][-self.LAST :]
        return self.WAIT_S if any(last) or len(last) < self.LAST else self.SHORT_S

    def sensitivity(self, task_key: str) -> float:
        """How much the task's programs suffer with the probe: 1 as much, 0 not at all. The median of what was seen; of
        all tasks, or 1, where nothing was seen of this one."""
        own = self._sensitivity.get(task_key) or [s for seen in self._sensitivity.values() for s in seen]
        return float(np.median(own)) if own else 1.0

    def _chosen(self, readings: Sequence[float]) -> float:
        """The middle of the fastest state that is frequent enough, else of the most frequent."""
        logs = np.sort(np.log(np.asarray(readings, dtype=float)))
        width = math.log1p(SHARE)
        ends = np.searchsorted(logs, logs + width, side="right")
        sizes = ends - np.arange(len(logs))
        enough = np.flatnonzero(sizes >= self.least * len(logs))
        # the first window that is large enough may begin below its state: go up to where it is fullest
        first = int(enough[0]) if len(enough) else int(sizes.argmax())
        near = np.flatnonzero((logs >= logs[first]) & (logs <= logs[first] + width))
        best = near[sizes[near].argmax()]
        return float(np.exp(np.median(logs[best : ends[best]])))


def state(probe: Callable[[], float], seconds: float = 0.1) -> float:
    """The probe's seconds in the state that counts, by looking for so long."""
    probe()  # the first is cold
    readings: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or not readings:
        readings.append(probe())
    reference = Reference()
    reference.look(readings)
    assert reference.seconds is not None
    return reference.seconds


def away(reading: float, reference_s: float) -> bool:
    """Whether a reading of the probe is of another state."""
    return abs(math.log(reading / reference_s)) > math.log1p(SHARE)


def suffered(
    run: Callable[[int], float], seconds: float, probe: Callable[[], float], reference_s: float
) -> float | None:
    """How much a known program suffers from the machine's state now: the log of how much longer it takes, over the log
    of how much longer the probe does. None if the machine is in the reference state.

    Args:
        run: Of the program, as in `tt_spec.roles.Candidate`.
        seconds: An execution of it in the reference state.
        probe: The fixed program's seconds, now.
        reference_s: Those in the reference state.
    """
    size = max(1, math.ceil(ANCHOR_S / seconds))
    readings, taken = [probe()], []
    for _ in range(ANCHOR_ROUNDS if size * seconds < 3 * ANCHOR_S else 1):
        taken.append(run(size))
        readings.append(probe())
    reading = float(np.median(readings))
    if not away(reading, reference_s):
        return None
    found = math.log(float(np.median(taken)) / seconds) / math.log(reading / reference_s)
    return min(max(found, 0.0), SUFFERS)


def beside(
    runs: Sequence[Callable[[int], float]], known: Callable[[int], float], seconds: float
) -> list[tuple[list[float], int]]:
    """Seconds of programs in the reference state, by a known one that takes turns with them; no probe is asked.

    States that one probe cannot tell apart may cost a program between nothing and half of its speed. What two programs
    of one operator take in the same moment has the same ratio in all of them, or nearly.

    Args:
        runs: Of the programs.
        known: Of the known program.
        seconds: An execution of that in the reference state.

    Returns:
        Of each program the seconds by each turn, and its executions.
    """
    size = max(1, math.ceil(ANCHOR_S / seconds))
    once = [run(1) for run in runs]
    sizes = [max(1, math.ceil(ANCHOR_S / s)) for s in once]
    found: list[list[float]] = [[] for _ in runs]
    turns = TURNS if max([seconds, *once]) <= ANCHOR_S else FEW_TURNS
    before = known(size)
    for _ in range(turns):
        taken = [run(n) for run, n in zip(runs, sizes, strict=True)]
        after = known(size)
        for mine, s in zip(found, taken, strict=True):
            mine.append(seconds * s / math.sqrt(before * after))
        before = after
    return [(mine, 1 + turns * n) for mine, n in zip(found, sizes, strict=True)]


class Windows:
    """`run` of a candidate, cut into short windows of which those count that the machine spent in the reference state.

    A probe runs right before and after each window. If either differs from the reference by more than `SHARE`, the
    window does not count and is made again, and no window begins before the probe is as ever. That goes on until
    `most_s` were spent on probes and windows in vain, over all calls. A candidate that met no window that counts by
    then is judged by the others: the seconds that it took, divided by `slowdown ** sensitivity`, a
    slowdown of `MOST` at most. Where windows of an earlier call did count, that sensitivity is the candidate's own.

    Windows grow while they count, up to `longest_s`, so that a steady machine spends little on probes, and shrink when
    they do not. Of a longer window, one execution that takes so long, a probe of 0.1 ms says less: it is corrected only
    if the probe found the same state before and after it.

    Args:
        run: Executes n times and returns the mean seconds, as in `tt_spec.roles.Candidate`.
        probe: The fixed program's seconds, now.
        reference_s: Those in the state that counts.
        sensitivity: See `Reference.sensitivity`; 0 corrects nothing. (default: 1)
        most_s: Seconds that may be spent in vain. (default: 0.03)
        longest_s: Of a window, unless one execution takes longer, seconds. (default: 0.004)

    Attributes:
        wasted: Executions in windows that did not count.
    """

    FIRST_S = 0.5e-3

    def __init__(
        self,
        run: Callable[[int], float],
        probe: Callable[[], float],
        reference_s: float,
        sensitivity: float = 1.0,
        most_s: float = 0.03,
        longest_s: float = 4e-3,
    ) -> None:
        self.run, self.probe, self.reference_s, self.sensitivity = run, probe, reference_s, sensitivity
        self.most_s, self.longest_s = most_s, longest_s
        self.wasted = 0
        self._readings: list[float] = []
        self._calls = self._met = 0
        self._good: list[_Window] = []
        self._rest: list[_Window] = []
        self._vain_s = 0.0
        self._window_s = self.FIRST_S
        self._each_s = math.inf

    def __call__(self, n: int) -> float:
        """Mean seconds of an execution in the reference state, from `n` executions at least."""
        good: list[_Window] = []
        rest: list[_Window] = []
        left = n
        before = self._settled(self._readings[-1] if self._readings else self._read())
        while left > 0:
            size = max(1, min(left, int(self._window_s / self._each_s)))
            seconds = self.run(size)
            after = min(self._read() for _ in range(LOOKS if self._long(seconds * size) else 1))
            self._each_s = seconds
            window = _Window(seconds, size, before / self.reference_s, after / self.reference_s)
            if window.counts:
                good.append(window)
                left, before = left - size, after
                self._window_s = min(2 * self._window_s, self.longest_s)
                continue
            rest.append(window)
            if self._vain_s >= self.most_s:
                left -= size
            self._vain_s += size * seconds
            self._window_s = max(self._window_s / 2, self.FIRST_S)
            before = self._settled(after)
        self._good += good
        self._rest += rest
        self._calls, self._met = self._calls + 1, self._met + bool(good)
        self.wasted += sum(w.size for w in [*good, *rest]) - n
        if good:
            return _middle(good)
        own = self._suffered()
        sensitivity = self.sensitivity if own is None else own
        return _middle([self._corrected(w, sensitivity) for w in _steadiest(rest)])

    def noise(self) -> Noise:
        """The machine's state while the candidate was timed."""
        used, left_out = (self._good, len(self._rest)) if self._good else (self._rest, 0)
        slowdown = float(np.median([w.slowdown for w in used])) if used else 1.0
        return Noise(len(used), left_out, slowdown, self._vain_s)

    def seen(self) -> Seen:
        """The states that were met."""
        return Seen(tuple(self._readings), 2 * self._met > self._calls, self._suffered())

    def _suffered(self) -> float | None:
        apart = 2 * math.log1p(SHARE)
        short = [w for w in self._rest if not self._long(w.seconds * w.size)]  # a longer one may hold both states
        other = [w for w in short if w.steady and abs(math.log(w.slowdown)) > apart]
        if not other or not self._good:
            return None
        ours = math.log(_middle(other) / _middle(self._good))
        return min(max(ours / math.log(float(np.median([w.slowdown for w in other]))), 0.0), SUFFERS)

    def _long(self, seconds: float) -> bool:
        return seconds > self.longest_s

    def _corrected(self, w: _Window, sensitivity: float) -> _Window:
        return w if self._long(w.seconds * w.size) and not w.steady else w.corrected(sensitivity)

    def _settled(self, reading: float) -> float:
        """This reading or a later one, of the reference state unless waiting for it took too long."""
        while away(reading, self.reference_s) and self._vain_s < self.most_s:
            self._vain_s += reading
            reading = self._read()
        return reading

    def _read(self) -> float:
        self._readings.append(self.probe())
        return self._readings[-1]


@dataclass(frozen=True)
class _Window:
    """Mean `seconds` of `size` executions, and the probe before and after over its reference."""

    seconds: float
    size: int
    before: float
    after: float

    @property
    def counts(self) -> bool:
        return not (away(self.before, 1.0) or away(self.after, 1.0))

    @property
    def steady(self) -> bool:
        return not away(self.before, self.after)

    @property
    def slowdown(self) -> float:
        return math.sqrt(self.before * self.after)

    def corrected(self, sensitivity: float) -> _Window:
        return _Window(self.seconds / min(self.slowdown, MOST) ** sensitivity, self.size, 1.0, 1.0)


def _steadiest(windows: list[_Window]) -> list[_Window]:
    """Those within which the machine kept its state, or all."""
    return [w for w in windows if w.steady] or windows


def _middle(windows: list[_Window]) -> float:
    """The weighted median; of two, their mean. A window that was disturbed between its probes does not move it."""
    windows = sorted(windows, key=lambda w: w.seconds)
    whole = sum(w.size for w in windows)
    if len(windows) < 3:
        return sum(w.seconds * w.size for w in windows) / whole
    done = 0
    for w in windows:
        done += w.size
        if 2 * done >= whole:
            return w.seconds
    return windows[-1].seconds
