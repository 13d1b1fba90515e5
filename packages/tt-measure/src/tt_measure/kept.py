"""The programs that a worker goes on holding, so that timing them again costs no build."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

__all__ = ["Kept", "Program"]


@dataclass(frozen=True)
class Program:
    """A built program that was timed.

    Args:
        name: By which it is asked for again.
        candidate: The program.
        seconds: Its timing.
        met: Whether that counts: it met the machine in the state that does.
        reference_s: The probe's seconds in that state, where a probe tells.
    """

    name: int
    candidate: Any
    seconds: float
    met: bool
    reference_s: float | None = None


class Kept:
    """The fastest programs of each task, and the last ones whose timing does not count.

    Args:
        most: Fastest programs of a task. (default: 4)
        doubtful: Programs of a task without a timing that counts. (default: 4)
        within: A program is not kept that took more than so many times the incumbent's seconds. (default: 1.5)
        tasks: Tasks with all of these; the others, that nobody offered to for longest, keep the fastest. (default: 16)
        leaders: Tasks in all, so that most finalists can race without a build; one
            takes about 2 MB. (default: 128)
    """

    def __init__(
        self, most: int = 4, doubtful: int = 4, within: float = 1.5, tasks: int = 16, leaders: int = 128
    ) -> None:
        self.most, self.doubtful, self.within, self.tasks, self.leaders = most, doubtful, within, tasks, leaders
        self._programs: OrderedDict[str, list[Program]] = OrderedDict()
        self._dropped: list[Program] = []

    def offer(self, task: str, program: Program, incumbent_s: float) -> None:
        """Keep a program if it is one to keep; `incumbent_s` is the task's best before."""
        if program.seconds > self.within * incumbent_s:
            return
        every = [*self._programs.pop(task, []), program]
        sure = sorted((p for p in every if p.met), key=lambda p: p.seconds)[: self.most]
        unsure = [p for p in every if not p.met][-self.doubtful :]
        self._programs[task] = [*sure, *unsure]
        self._dropped += [p for p in every if p not in self._programs[task]]
        if len(self._programs) > self.tasks:
            old = list(self._programs)[-self.tasks - 1]
            fastest = min(self._programs[old], key=lambda p: p.seconds)
            self._dropped += [p for p in self._programs[old] if p is not fastest]
            self._programs[old] = [fastest]
        while len(self._programs) > self.leaders:
            self._dropped += self._programs.popitem(last=False)[1]

    def names(self, task: str) -> tuple[int, ...]:
        """The task's programs that are held."""
        return tuple(p.name for p in self._programs.get(task, ()))

    def candidate(self, task: str, name: int) -> Any:
        """The task's program of that name, or None if it is held no more."""
        return next((p.candidate for p in self._programs.get(task, ()) if p.name == name), None)

    def anchor(self, task: str, reference_s: float) -> Program | None:
        """The task's fastest program that was timed in this state."""
        known = [p for p in self._programs.get(task, ()) if p.met and p.reference_s == reference_s]
        return min(known, key=lambda p: p.seconds, default=None)

    def drop(self) -> None:
        """Free what fell out. Call it at a moment when nobody else can be blamed for a crash."""
        self._dropped.clear()
