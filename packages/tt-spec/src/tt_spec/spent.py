"""Where a run's wall clock goes, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tt_spec.types import Batch, Measurement, TaskState

__all__ = ["BUSY", "IDLE", "OWN", "PART_OF", "Did", "Span", "Spent", "did", "shared"]

BUSY = ("run", "build")
"""Parts in which something is timed or built."""

IDLE = ("think", "wait")
"""Parts in which nothing is."""

OWN = -1
"""The number of tt's own process among the workers of a trace."""

PART_OF = {
    **dict.fromkeys(("time", "retime", "gauge", "race", "race_models", "profile_models", "check", "run_model"), "run"),
    "build": "build",
    **dict.fromkeys(("realise", "features", "ask", "decide"), "think"),
}
"""The part of the wall clock that work of a kind is; of other kinds, `wait`."""


@dataclass(frozen=True)
class Did:
    """A piece of work, by the run's clock.

    Args:
        who: A worker's number, or `OWN`.
        what: Its kind: a key of `PART_OF`, or another word.
        began: Seconds, by the run's clock.
    """

    who: int
    what: str
    began: float
    seconds: float

    @property
    def part(self) -> str:
        return PART_OF.get(self.what, "wait")

    @property
    def ended(self) -> float:
        return self.began + self.seconds


def did(batch_info: dict[str, Any]) -> list[Did]:
    """The work that a batch's remarks tell, `work`; none in older logs."""
    found = batch_info.get("work") or ()
    return [Did(int(who), str(what), float(began), float(seconds)) for who, what, began, seconds in found]


@dataclass(frozen=True)
class Span:
    """One batch: it ends at `at`, by the run's clock, and its parts, in seconds, fill the time since the one before.

    Args:
        hidden: Seconds of thinking beside building or timing, which are in the parts of those.
        lone: Seconds in which something is built, nothing timed, and a worker has nothing to build.
    """

    at: float
    parts: dict[str, float]
    hidden: float = 0.0
    lone: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass
class Spent:
    """Seconds of the loop's wall clock by part: `run` (candidates are timed, or timed again), `build`, `think` (rows
    are asked for: cost models, searching, and making programs for both), `wait` (all else).

    Where the measurer traces its workers (`tt_spec.roles.Traces`), this is what they did; else it is estimated from
    what each measurement cost.

    Args:
        workers: Processes that build at once, by which the seconds of builds are divided.
        work: All that was traced.
    """

    workers: int = 1
    spans: list[Span] = field(default_factory=list)
    before: float | None = None
    work: list[Did] = field(default_factory=list)

    def start(self, at: float) -> None:
        """The loop begins; without this the first batch begins with its first result."""
        self.before = at

    def add(self, state: TaskState, batch: Batch, results: Sequence[Measurement]) -> None:
        """A batch was measured, which the state's curve ends with."""
        if not state.curve:
            return
        at = state.curve[-1][1]
        traced = did(batch.info)
        if self.before is None:
            known = [m.at for m in results] if not traced else [d.began for d in traced]
            self.before = min(known, default=at)
        if traced:
            self.work += traced
            self.spans.append(shared(traced, self.before, at, self.workers))
        else:
            self.spans.append(Span(at, self._estimated(at - self.before, batch, results)))
        self.before = at

    def _estimated(self, wall: float, batch: Batch, results: Sequence[Measurement]) -> dict[str, float]:
        """A batch's parts, by what its measurements cost."""
        wall = max(wall, 0.0)
        again = sum(a["run_s"] for a in batch.info.get("again", ()))
        run = min(sum(m.cost.get("run", 0.0) for m in results) + again, wall)
        builds = sum(m.cost.get("apply", 0.0) + m.cost.get("build", 0.0) for m in results)
        build = min(builds / self.workers, wall - run)
        slot = batch.info.get("slot", {})
        asked = float(slot.get("asked_s") or 0.0)
        think = 0.0 if slot.get("beside") else min(asked, wall - run - build)  # beside: in the span before
        if slot.get("ahead"):  # asked and built while another batch was waited for
            self._before("build", builds / self.workers - build)
            self._before("think", asked - think)
        return {"think": think, "build": build, "run": run, "wait": wall - run - build - think}

    def _before(self, part: str, seconds: float) -> None:
        """Call so many seconds of waiting in earlier spans `part`, the latest first."""
        for span in reversed(self.spans):
            taken = min(seconds, span.parts["wait"])
            if taken > 0:
                span.parts["wait"] -= taken
                span.parts[part] += taken
                seconds -= taken

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part so far."""
        return {p: sum(s.parts[p] for s in self.spans) for p in (*IDLE[:1], "build", "run", *IDLE[1:])}

    @property
    def hidden_s(self) -> float:
        """Seconds of thinking beside building or timing; 0 where nothing was traced."""
        return sum(s.hidden for s in self.spans)

    @property
    def lone_s(self) -> float:
        """Seconds in which some workers built and others had nothing to build; 0 where nothing was traced."""
        return sum(s.lone for s in self.spans)

    @property
    def total_s(self) -> float:
        return sum(s.seconds for s in self.spans)

    @property
    def idle(self) -> float:
        """Share of the time in which nothing was built or timed."""
        parts = self.parts
        return sum(parts[p] for p in IDLE) / self.total_s if self.total_s > 0 else 0.0


def shared(work: Iterable[Did], began: float, at: float, workers: int = 1) -> Span:
    """The time from `began` to `at` by what was done in it: timing counts before building, and both before thinking."""
    edges: list[tuple[float, int, str]] = []
    for d in work:
        start, end = max(d.began, began), min(d.ended, at)
        if end > start and d.part != "wait":
            edges += [(start, 1, d.part), (end, -1, d.part)]
    parts: dict[str, float] = dict.fromkeys(("think", "build", "run", "wait"), 0.0)
    busy: dict[str, int] = dict.fromkeys(("think", "build", "run"), 0)
    hidden = lone = 0.0
    now = began
    for moment, change, part in [*sorted(edges), (max(at, began), 0, "run")]:
        seconds = moment - now
        doing = next((p for p in ("run", "build", "think") if busy[p]), "wait")
        parts[doing] += seconds
        hidden += seconds if busy["think"] and doing in BUSY else 0.0
        lone += seconds if doing == "build" and busy["build"] + busy["think"] < workers else 0.0
        busy[part] += change
        now = moment
    return Span(at, parts, hidden, lone)
