"""A simulated machine with two states of speed, for tests and studies of timing: no time passes but its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["TwoStates"]


class TwoStates:
    """A machine that is fast or slow by a Markov chain in continuous time.

    Args:
        fast_s, slow_s: Mean seconds that a state lasts.
        factor: How much longer everything takes in the slow state.
        jitter: Standard deviation of the log of a run's seconds, beside the states.
        rng: Draws the states.

    Attributes:
        now: The machine's time, seconds.
    """

    PROBE_S = 1e-4

    def __init__(
        self, rng: np.random.Generator, fast_s: float, slow_s: float, factor: float = 1.9, jitter: float = 0.005
    ) -> None:
        self.rng, self.lasts, self.factor, self.jitter = rng, (fast_s, slow_s), factor, jitter
        self.now = 0.0
        self._slow = bool(rng.random() < slow_s / (fast_s + slow_s))
        self._until = rng.exponential(self.lasts[self._slow])

    def work(self, seconds: float, sensitivity: float = 1.0) -> float:
        """Let a program run that takes `seconds` in the fast state; how long it took.

        Args:
            sensitivity: The slow state multiplies by `factor ** sensitivity`: 1 is bound by arithmetic like the
                probe, 0 waits for memory whatever the core does.
        """
        began, left = self.now, seconds * float(np.exp(self.jitter * self.rng.standard_normal()))
        while left > 0:
            rate = self.factor**sensitivity if self._slow else 1.0
            step = min(left * rate, self._until - self.now)
            self.now += step
            left -= step / rate
            if left > 1e-15 or self.now >= self._until:
                self._slow = not self._slow
                self._until = self.now + self.rng.exponential(self.lasts[self._slow])
        return self.now - began

    def probe(self) -> float:
        """Seconds of the probe, now."""
        return self.work(self.PROBE_S)

    def candidate(self, seconds: float, sensitivity: float = 1.0) -> Callable[[int], float]:
        """`run` of a program that takes `seconds` in the fast state."""
        return lambda n: sum(self.work(seconds, sensitivity) for _ in range(n)) / n

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        while self.now + seconds >= self._until:
            seconds -= self._until - self.now
            self.now = self._until
            self._slow = not self._slow
            self._until = self.now + self.rng.exponential(self.lasts[self._slow])
        self.now += seconds
