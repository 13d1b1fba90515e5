"""A run's stages and the minutes that they share: reading, tuning and finishing together take what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tt_spec import Clock
from tt_spec.roles import ListsRuns, Store

__all__ = ["LEAST_TIMING_S", "Ending", "Stages", "clock_text", "past_endings", "timing_s", "search_s", "untuned_run_s"]

RACE_S = 0.18
"""Re-timing one operator's finalists: ten rounds, a check, and now and then a build. The heaviest come first, and take
most of it."""

MOST_RETIME, CHECK_S = 0.2, 0.06
"""Share of the minutes that re-timing may have where operators are many, and what checking each of them takes at least.
The lightest are not raced then."""

COLD_S = 1.5
"""Building and re-timing the best of each form with weights from memory, for an operator that has several."""

APPLY_S = 0.03
"""Applying an operator's winner before the model is compiled; its space is open."""

MOST_TIMING_S, LEAST_TIMING_S, TIMING_SHARE = 6.0, 2.0, 0.05
"""Seconds for timing the whole model, and their share of the minutes where those are few."""

VARIANTS, LINEUP_S, MOST_INSIDE = 5, 0.8, 0.07
"""Libraries that race inside the model beside the first, at most; seconds for timing the functions of one, and which
share of the minutes compiling and timing them may have. Where that is not enough for two and the model composed of all,
none races."""

LONGEST_S, TUNED = 0.3, 4.0
"""Seconds of a model's execution from which on its programs do not race inside it, and how many times as fast as
untuned it is expected to be."""

MODELS_S = 1.0
"""Loading and running the whole model, and its peer; ending the workers."""

UNTUNED_FLOPS = 1e10
"""How fast the untuned model runs: on two cores of Zen 3 ResNet-18 at 22e9, a transformer encoder at 15e9. It is timed
once, and run plainly and nudged, twice as a rule: while the tuned model is compiled, if that takes as long."""

WEIGHT_S = 4e-8
"""Packing a byte of weights for the tuned programs, and writing it."""

AGAIN = 0.5
"""Compiling the tuned model beside the untuned one, which comes first, while the workers start: 0.29 and 0.56 of its
seconds."""

LEAST_OF_PAST = 0.5
"""Share of the estimate that the ends of earlier runs may reduce it to."""

MOST_OF_PAST = 10.0
"""Times the estimate above which the end of an earlier run tells nothing: its machine slept, or its clock was set."""

LEAST = 1 / 3
"""Share of the minutes that the search gets at least."""

FIRST = 1 / 4
"""Share of the minutes that the search may take longer while an operator was not measured at all. Untuned, ResNet-18
takes three times as long as with the first program of each operator (Zen 3)."""


@dataclass(frozen=True)
class Ending:
    """Seconds that the end of a run is expected to take.

    Args:
        retime_s: Re-timing and checking finalists; what is left over or missing of the time is its own.
        compile_s: Compiling and writing the tuned model.
        models_s: Timing and verifying it.
        inside_s: Compiling other programs into it, and their race inside.
    """

    retime_s: float = 0.0
    compile_s: float = 0.0
    models_s: float = 0.0
    inside_s: float = 0.0

    @classmethod
    def of(
        cls,
        operators: int,
        untuned_s: float,
        flops: float = 0.0,
        size: int = 0,
        past: Sequence[tuple[float, float]] = (),
        several: int = 0,
        minutes: float = math.inf,
    ) -> Ending:
        """The end of a run with so many operators.

        Args:
            untuned_s: What compiling and writing the untuned model took, which every such run does first.
            flops: Of the whole model.
            size: Bytes of the untuned model's file, most of which are weights.
            past: What the ends of earlier runs of this model took, and the minutes of each run. The one that took
                longest by what is estimated for its minutes corrects the estimate, to half of it at least: an end that
                ran out of time says little.
            several: Operators whose programs take weights from memory in several forms.
            minutes: Of the whole run.
        """
        retime_s = min(RACE_S * operators + COLD_S * several, max(60 * MOST_RETIME * minutes, CHECK_S * operators))
        compile_s = AGAIN * untuned_s + APPLY_S * operators + WEIGHT_S * size
        run_s = untuned_run_s(flops)
        parts = retime_s, compile_s, MODELS_S + timing_s(minutes) + run_s + max(0.0, 2 * run_s - compile_s / 2)
        same = operators, untuned_s, flops, size
        parts += (_inside_s(compile_s, run_s, minutes),)
        scales = [s / cls.of(*same, several=several, minutes=its).total_s for s, its in past]
        scales = [s for s in scales if s <= MOST_OF_PAST]
        scale = max(*scales, LEAST_OF_PAST) if scales else 1.0
        return cls(*(scale * p for p in parts))

    @property
    def total_s(self) -> float:
        return self.retime_s + self.compile_s + self.models_s + self.inside_s


def _inside_s(compile_s: float, run_s: float, minutes: float) -> float:
    """For as many libraries as the minutes have room for, the composed one included, each compiled as the first is.

    Args:
        run_s: An execution of the untuned model.
    """
    each_s = compile_s + LINEUP_S
    libraries = min(VARIANTS + 1, 60 * MOST_INSIDE * minutes / each_s)
    return int(libraries) * each_s if libraries >= 3 and run_s <= TUNED * LONGEST_S else 0.0


def untuned_run_s(flops: float) -> float:
    """What a run of the untuned model may take, seconds."""
    return flops / UNTUNED_FLOPS


def timing_s(minutes: float | None) -> float:
    """Seconds for timing the whole model in a run of so many minutes; None is without a limit."""
    return MOST_TIMING_S if minutes is None else min(MOST_TIMING_S, max(LEAST_TIMING_S, 60.0 * TIMING_SHARE * minutes))


def search_s(minutes: float, before_s: float, ending: Ending) -> float:
    """Seconds for the search: what is left of the minutes, but at least `LEAST` of them."""
    whole = 60.0 * minutes
    return max(whole - before_s - ending.total_s, LEAST * whole)


def past_endings(
    store: Store, model: str, device: str, last: Mapping[str, float], most: int = 3
) -> list[tuple[float, float]]:
    """Seconds from the last measurement to the end, and the minutes of the run, inf without a limit; of the latest runs
    that wrote this model on this device.

    Args:
        last: When each run measured last, by its id.
    """
    if not isinstance(store, ListsRuns):
        return []
    found: list[tuple[float, float]] = []
    for run in reversed(store.runs()):
        info, ended = run.get("info") or {}, run.get("ended")
        same = (info.get("model"), info.get("device")) == (model, device)
        options = info.get("options") or {}
        if same and options.get("out") and run["id"] in last and ended is not None:
            found.append((max(0.0, ended - last[run["id"]]), options.get("minutes") or math.inf))
    return found[:most]


class Stages:
    """Tells each stage of a run as it begins, with what remains of its minutes, and how long it took when it ends.

    Args:
        minutes: Of the whole run; None where only trials bound it.
        say: Told one line a stage.
        began: When the minutes began to count, by the clock; None is now.

    Attributes:
        said: The lines so far, for a log that opens later.
    """

    def __init__(
        self, clock: Clock, minutes: float | None, say: Callable[[str], None], began: float | None = None
    ) -> None:
        self.clock, self.minutes, self.say = clock, minutes, say
        self.began = clock.now() if began is None else began
        self.done: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.heard: Callable[..., None] = lambda **stage: None

    def hear(self, heard: Callable[..., None]) -> None:
        """Tell `heard(name=, began=, seconds=)` of every stage, those before included."""
        self.heard = heard
        for stage in self.done:
            heard(**stage)

    @property
    def spent_s(self) -> float:
        """Seconds since the run began."""
        return self.clock.now() - self.began

    @property
    def left_s(self) -> float:
        """Seconds left of the minutes, negative once they are over; inf without."""
        return math.inf if self.minutes is None else 60.0 * self.minutes - self.spent_s

    def apart_s(self, ending: Ending) -> float:
        """Seconds of the minutes that a search which begins now may not have."""
        return 0.0 if self.minutes is None else 60.0 * self.minutes - search_s(self.minutes, self.spent_s, ending)

    @property
    def first_s(self) -> float:
        """Seconds that the search may take longer for operators that were not measured at all."""
        return 0.0 if self.minutes is None else 60.0 * FIRST * self.minutes

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time that is nobody's: the minutes begin so much later."""
        began = self.clock.now()
        try:
            yield
        finally:
            self.began += self.clock.now() - began

    @contextmanager
    def stage(self, name: str, text: str = "") -> Iterator[None]:
        """A stage of that name; `text` is said of it with what remains."""
        if text:
            self.said.append(f"{text}{self.remaining()}")
            self.say(self.said[-1])
        began = self.clock.now()
        try:
            yield
        finally:
            stage = {"name": name, "began": began, "seconds": self.clock.now() - began}
            self.done.append(stage)
            self.heard(**stage)

    def remaining(self) -> str:
        """The time that remains, to be put behind a text."""
        return "" if math.isinf(self.left_s) else f" ({clock_text(self.left_s)} left)"


def clock_text(seconds: float) -> str:
    """Seconds as 4:05."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
