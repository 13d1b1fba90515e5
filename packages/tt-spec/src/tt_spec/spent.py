"""Where a run's wall clock goes, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tt_spec.types import Batch, Measurement, TaskState

__all__ = ["BUSY", "IDLE", "Span", "Spent"]

BUSY = ("run", "build")
"""Parts in which something is timed or built."""

IDLE = ("think", "wait")
"""Parts in which nothing is."""


@dataclass(frozen=True)
class Span:
    """One batch: it ends at `at`, by the run's clock, and its parts, in seconds, fill the time since the one before."""

    at: float
    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


@dataclass
class Spent:
    """Seconds of the loop's wall clock by part: `run` (candidates are timed, or timed again), `build`, `think` (rows
    are asked for: cost models, searching, and making programs for both), `wait` (all else).

    Args:
        workers: Processes that build at once, by which the seconds of builds are divided.
    """

    workers: int = 1
    spans: list[Span] = field(default_factory=list)
    before: float | None = None

    def start(self, at: float) -> None:
        """The loop begins; without this the first batch begins with its first result."""
        self.before = at

    def add(self, state: TaskState, batch: Batch, results: Sequence[Measurement]) -> None:
        """A batch was measured, which the state's curve ends with."""
        if not state.curve:
            return
        at = state.curve[-1][1]
        began = min((m.at for m in results), default=at) if self.before is None else self.before
        wall = max(at - began, 0.0)
        again = sum(a["run_s"] for a in batch.info.get("again", ()))
        run = min(sum(m.cost.get("run", 0.0) for m in results) + again, wall)
        builds = sum(m.cost.get("apply", 0.0) + m.cost.get("build", 0.0) for m in results)
        build = min(builds / self.workers, wall - run)
        slot = batch.info.get("slot", {})
        asked = float(slot.get("asked_s") or 0.0)
        think = min(asked, wall - run - build)
        if slot.get("ahead"):  # asked and built while another batch was waited for
            self._before("build", builds / self.workers - build)
            self._before("think", asked - think)
        parts = {"think": think, "build": build, "run": run, "wait": wall - run - build - think}
        self.spans.append(Span(at, parts))
        self.before = at

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
    def total_s(self) -> float:
        return sum(s.seconds for s in self.spans)

    @property
    def idle(self) -> float:
        """Share of the time in which nothing was built or timed."""
        parts = self.parts
        return sum(parts[p] for p in IDLE) / self.total_s if self.total_s > 0 else 0.0
