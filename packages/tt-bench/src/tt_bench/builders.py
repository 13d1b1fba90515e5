"""The workers of a replayed pool: when each program would have been built."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tt_spec import VirtualClock

__all__ = ["Builders"]

Key = tuple[str, bytes]


class Builders:
    """Workers that build by a virtual clock, as those of the pool do: what is asked now before what is expected,
    nothing while a kernel is timed, and while they make programs for the parent's thinking what is begun waits.

    Whoever advances the clock besides, a parent that thinks, leaves them at work.

    Args:
        workers: How many.
    """

    def __init__(self, clock: VirtualClock, workers: int) -> None:
        self.clock = clock
        self._free = [clock.now()] * workers
        self._waiting: OrderedDict[Key, tuple[float, float]] = OrderedDict()
        self._built: dict[Key, float] = {}

    def expect(self, key: Key, build_s: float) -> None:
        """A program that is built when a worker has nothing else to do."""
        self._work(self.clock.now())
        if key not in self._built and key not in self._waiting:
            self._waiting[key] = build_s, self.clock.now()

    def take(self, keys: Iterable[Key]) -> None:
        """What is not begun of these is expected no more: it is asked when its turn comes."""
        self._work(self.clock.now())
        for key in keys:
            self._waiting.pop(key, None)

    def build(self, key: Key, build_s: float) -> float:
        """When the program is built that is asked now."""
        now = self.clock.now()
        self.take([key])
        return self._built.pop(key) if key in self._built else self._give(now, build_s)

    def quiet(self, at: float) -> float:
        """When the workers are quiet of whom one builds until `at`: the others go on meanwhile, and end what they have
        begun."""
        self._work(at)
        return max(at, *self._free)

    def timed(self) -> None:
        """Until now a kernel was timed: nobody built."""
        self._free = [self.clock.now()] * len(self._free)

    def interrupt(self, seconds: float) -> None:
        """From now on all make programs for so long."""
        now = self.clock.now()
        self._work(now)
        self._built = {key: at + seconds if at > now else at for key, at in self._built.items()}
        self._free = [max(at, now) + seconds for at in self._free]

    def _work(self, until: float) -> None:
        """Begin what is expected wherever a worker is free before `until`."""
        for key, (build_s, since) in list(self._waiting.items()):
            if max(min(self._free), since) >= until:
                return
            del self._waiting[key]
            self._built[key] = self._give(since, build_s)

    def _give(self, at: float, build_s: float) -> float:
        worker = self._free.index(min(self._free))
        self._free[worker] = max(self._free[worker], at) + build_s
        return self._free[worker]
