"""Timing in windows that count: a fixed program on both sides of each tells in which state the machine was."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tt_spec.types import Noise

__all__ = ["SHARE", "Reference", "Seen", "Windows", "state"]

SHARE = 0.15
"""Readings of the probe that differ by no more are of one state: the states of shared cores lie a factor of 1.3 to 2
apart, and a quiet machine's readings within 5 %."""


MOST = 3.0
"""A timing is corrected for a slowdown of so much at most: a probe that takes longer was interrupted."""

SURE = 2.0
"""What is believed of a sensitivity before anything was seen weighs as much as so much covariance of the readings."""

NEAR = 0.1
"""Log of a slowdown at which a window has half the weight of one in the reference state. Half as much and twice as much
served as well on recordings of an Intel Xeon whose cores are shared."""

LOOKS = 3
"""Readings after a long window, of which the smallest counts: the pool's threads may have gone to sleep meanwhile, and
a probe that finds them so, or is interrupted, says nothing of the window."""


@dataclass(frozen=True)
class Seen:
    """The states that one candidate's timing met.

    Args:
        readings: Of the probe, in order, seconds.
        met: Whether any window was in the reference state.
        swing: How the candidate's seconds, and how the probe's, went with the probe's a window earlier: two
            covariances of logs, summed over windows, whose ratio is the sensitivity.
    """

    readings: tuple[float, ...]
    met: bool
    swing: tuple[float, float] = (0.0, 0.0)


class Reference:
    """The state of the machine in which timings count, told by the seconds of a fixed program, the probe.

    Shared machines have states of speed that no load and no stolen time shows: a stranger on the other half of a core,
    two threads that the host put on one core, a lower clock. A probe of 0.1 ms shows them. Timings are comparable
    within one state, so one is the reference: the fastest that makes up at least `least` of the readings, or the most
    frequent. One that is faster and rare is left out like one that is slower, since hardly any candidate would meet
    it. Where fewer than `gone` of the last `recent` candidates met the reference, another one is chosen.

    Args:
        least: Share of the readings that a state must have to be the reference. (default: 0.33)
        gone: Share of the candidates below which the reference is given up. (default: 0.2)
        recent: Candidates that are looked back at. (default: 32)

    Attributes:
        seconds: The probe's seconds in the reference state; None before the first reading.
        scale_s: The same of the first reference, in whose seconds all timings are told, so that those before and after
            a change can be compared.
        changes: How often another state became the reference.
        blind: Whether it is known that nothing tells the machine's state.
    """

    def __init__(self, least: float = 0.33, gone: float = 0.2, recent: int = 32) -> None:
        self.least, self.gone, self.recent = least, gone, recent
        self.seconds: float | None = None
        self.scale_s: float | None = None
        self.changes = 0
        self.blind = False
        self._seen: deque[Seen] = deque(maxlen=recent)
        self._swing: dict[str, tuple[float, float]] = {}

    def look(self, readings: Sequence[float]) -> None:
        """Choose by readings of the probe alone, before any candidate. No readings: there is no probe, ask no more."""
        self.blind = not len(readings)
        if not self.blind:
            self.seconds = self._chosen(readings)
            self.scale_s = self.scale_s or self.seconds

    def tell(self, task_key: str, seen: Seen) -> None:
        """Take down what a candidate of the task met."""
        self._seen.append(seen)
        for key in (task_key, ""):
            before = self._swing.get(key, (0.0, 0.0))
            self._swing[key] = (before[0] + seen.swing[0], before[1] + seen.swing[1])
        if len(self._seen) == self.recent and sum(s.met for s in self._seen) < self.gone * self.recent:
            self.seconds = self._chosen([r for s in self._seen for r in s.readings])
            self.changes += 1
            self._seen.clear()

    def sensitivity(self, task_key: str) -> float:
        """How much the task's programs suffer with the probe: 1 as much, 0 not at all. From what was seen of the task,
        beside that of all tasks, beside 1.

        Readings around a window are not its state where states are short, and a regression on them finds too little.
        So the reading a window earlier is the instrument: how it goes with both is the state's doing alone.
        """
        found = 1.0
        for key in ("", task_key):
            ours, probes = self._swing.get(key, (0.0, 0.0))
            found = min(max((ours + SURE * found) / max(probes + SURE, SURE), 0.0), 1.5)
        return found

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


class Windows:
    """`run` of a candidate, cut into short windows, each told by a probe right before and after it.

    Given `scale_s`, seconds are told as the machine would take them in that state: a window's are divided by how much
    longer the probe took around it, `MOST` at most, to the power of `sensitivity`. A timing is the weighted median of
    its windows, and those in the reference state weigh most (`NEAR`): the further a state is from it, the less the
    probe knows of what another program suffers. If a reading differs from the reference by more than `SHARE`, the
    window does not count and is made again, and no window begins before the probe is as ever. That goes on until
    `most_s` were spent on probes and windows in vain, over all calls; a candidate that met no window that counts by
    then is judged by the others.

    Windows grow while they count, up to `longest_s`, so that a steady machine spends little on probes, and shrink when
    they do not. Of a longer window, one execution that takes so long, a probe of 0.1 ms says less: it is corrected only
    if the probe found the same state before and after it.

    Args:
        run: Executes n times and returns the mean seconds, as in `tt_spec.roles.Candidate`.
        probe: The fixed program's seconds, now.
        reference_s: Those in the state that counts.
        scale_s: Those in the state in whose seconds timings are told; None tells them as they come.
        sensitivity: See `Reference.sensitivity`.
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
        scale_s: float | None = None,
        sensitivity: float = 1.0,
        most_s: float = 0.03,
        longest_s: float = 4e-3,
    ) -> None:
        self.run, self.probe, self.reference_s = run, probe, reference_s
        self.scale_s, self.sensitivity = scale_s, sensitivity
        self.most_s, self.longest_s = most_s, longest_s
        self.wasted = 0
        self._readings: list[float] = []
        self._good: list[_Window] = []
        self._rest: list[_Window] = []
        self._all: list[_Window] = []
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
            self._all.append(window)
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
        self.wasted += sum(w.size for w in [*good, *rest]) - n
        return _middle([self._told(w) for w in [*good, *rest]])

    def noise(self) -> Noise:
        """The machine's state while the candidate was timed."""
        used, left_out = (self._good, len(self._rest)) if self._good else (self._rest, 0)
        slowdown = float(np.median([w.slowdown for w in used])) if used else 1.0
        return Noise(len(used), left_out, slowdown, self._vain_s)

    def seen(self) -> Seen:
        """The states that were met."""
        return Seen(tuple(self._readings), bool(self._good), self._swing())

    def _swing(self) -> tuple[float, float]:
        short = [w for w in self._all if not self._long(w.seconds * w.size)]
        if len(short) < 4:
            return 0.0, 0.0
        seconds, around, before = np.log([(w.seconds, w.slowdown, w.before) for w in short]).T
        bound = math.log(MOST)  # of what was interrupted
        seconds = np.clip(seconds - np.median(seconds), -bound, bound)[1:]
        around, before = np.clip(around, -bound, bound)[1:], np.clip(before, -bound, bound)[:-1]
        before -= before.mean()
        return float(before @ (seconds - seconds.mean())), float(before @ (around - around.mean()))

    def _long(self, seconds: float) -> bool:
        return seconds > self.longest_s

    def _told(self, w: _Window) -> tuple[float, float]:
        """A window's seconds, in the state of `scale_s` if that is given, and its weight."""
        weight = w.size / (1 + (math.log(w.slowdown) / NEAR) ** 2)
        if self.scale_s is None:
            return w.seconds, weight
        suffered = 1.0 if self._long(w.seconds * w.size) and not w.steady else min(w.slowdown, MOST)
        return w.seconds / (suffered * self.reference_s / self.scale_s) ** self.sensitivity, weight

    def _settled(self, reading: float) -> float:
        """This reading or a later one, of the reference state unless waiting for it took too long."""
        while abs(math.log(reading / self.reference_s)) > math.log1p(SHARE) and self._vain_s < self.most_s:
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
        return max(abs(math.log(self.before)), abs(math.log(self.after))) <= math.log1p(SHARE)

    @property
    def steady(self) -> bool:
        return abs(math.log(self.before / self.after)) <= math.log1p(SHARE)

    @property
    def slowdown(self) -> float:
        return math.sqrt(self.before * self.after)


def _middle(told: list[tuple[float, float]]) -> float:
    """The weighted median of seconds; of two, their mean. A window that was disturbed between its probes does not move
    it."""
    told = sorted(told)
    whole = sum(weight for _, weight in told)
    if len(told) < 3:
        return sum(seconds * weight for seconds, weight in told) / whole
    done = 0.0
    for seconds, weight in told:
        done += weight
        if 2 * done >= whole:
            return seconds
    return told[-1][0]
