"""Evidence of replays: options are chosen on some tasks and seeds, and judged on others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

from tt_spec import Plugins
from tt_spec.recipe import content_of
from tt_spec.roles import Fits, Host, Playable, Replay
from tt_spec.suggestions import Ground

from tt_history.errors import HistoryError
from tt_history.suggestion.paired import Gain
from tt_history.suggestion.plays import Plays, judged, pairs_of
from tt_history.suggestion.study import Found, Limits, Study, opened
from tt_history.suggestion.wanted import Wanted

__all__ = ["FEW", "Interrupted", "Replayed", "Replaying"]

_PIECE = "recordings"
_RECORDINGS = "recordings/*-template.json.gz"

_SEEDS = 3
_JUDGES = 1000
"""Seed of the first play that judges; those that choose begin at 0."""

_JUDGED_BY = 2
"""Workloads at least that judge, so five in all: pairs of one task and many seeds are no independent witnesses, and
their p is that of the task."""

_LEAST_PAIRS = 15
"""Held-out pairs at least: fewer tasks have more seeds."""

FEW = "too few to tell: one task judged, two must; record more of this kind with tt record"

_CHOOSING = 0.8
"""Of the minutes; the rest is for the judging."""


class Interrupted(HistoryError, exit_code=130):
    """It was asked to stop; the study keeps what was tried."""


@dataclass(frozen=True)
class Replayed:
    """What replays came to.

    Args:
        ground: "replay" of recordings, or of a "model" fitted to a history's rows.
        tasks, seeds: That chose.
        held_out_tasks, held_out_seeds: That judged.
        chosen: Seconds of the best over the default's, on the pairs that chose it: flattered.
        held_out: The gain on the others; None where nothing was better than the default.
        judges: Workloads among those that judged. One says nothing of the next one, however many seeds it has.
    """

    ground: Ground
    tasks: tuple[str, ...]
    held_out_tasks: tuple[str, ...]
    devices: tuple[str, ...]
    seeds: int
    held_out_seeds: int
    found: Found
    study: str
    chosen: float
    held_out: Gain | None
    judges: int

    @property
    def better(self) -> bool:
        """Whether held-out tasks agree, more than one."""
        return self.held_out is not None and self.held_out.better and self.judges >= _JUDGED_BY

    @property
    def too_few(self) -> bool:
        """Whether only that more tasks did not judge stands against it."""
        return self.held_out is not None and self.held_out.better and not self.better

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        own = {k: v for k, v in vars(self).items() if k not in ("found", "held_out", "ground")}
        counts = {k: getattr(self.found, k) for k in ("complete", "pruned", "failed", "reason")}
        recipe = {"unchanged": self.found.unchanged, "recipe": self.found.content}
        return {**own, **counts, **recipe, "held_out": None if self.held_out is None else self.held_out.as_dict()}


@dataclass(frozen=True)
class Replaying:
    """Replays for the kinds of a model.

    Args:
        history: The database, beside which the study lies, and over whose rows a model may be fitted.
        halt: A text ends all with `Interrupted`.
    """

    history: Path
    wanted: Wanted
    host: Host | None
    halt: Callable[[], str | None]
    say: Callable[[str], None]

    @property
    def lacking(self) -> str | None:
        """What is to be installed first."""
        if self.host is None:
            return "tt-core"
        return None if _PIECE in Plugins().names("replay") else "tt-bench"

    @property
    def study(self) -> Path:
        """The file of what was tried."""
        if self.wanted.study is not None:
            return Path(self.wanted.study)
        return self.history.with_name(f"{self.history.stem}.suggest.log")

    def playables(self, kind: str, device: str, near: Sequence[str]) -> tuple[Ground, list[Playable]]:
        """Recorded tasks of a kind, of this device if there are enough; where fewer than two are recorded, those of
        the history, `near` by their keys, whose rows a model can be fitted to."""
        replay: Replay = Plugins().build("replay", _PIECE)
        ground: Ground = "replay"
        found = [p for p in replay.playables(self._recordings()) if p.op == kind]
        if len(_groups(found)) < 2 and isinstance(replay, Fits):
            ground, found = "model", replay.fitted(self.history, near, device)
        own = [p for p in found if p.device == device]
        return ground, own if len(_groups(own)) > 2 else found

    def replayed(
        self, about: str, ground: Ground, playables: Sequence[Playable], extra: Mapping[str, Any], ends: float
    ) -> Replayed | None:
        """Choose and judge; None of fewer than two tasks.

        Args:
            about: For people, and the study's name: the kind and the device.
            extra: Recipes' contents by name, to try as they are and around them, beside the wanted ones.
            ends: When the minutes are over, `time.monotonic`.
        """
        if len(_groups(playables)) < 2 or self.host is None:
            return None
        choosing, judging = _split(playables)
        seeds = range(_JUDGES, _JUDGES + max(_SEEDS, -(-_LEAST_PAIRS // len(judging))))
        bases = {**self._bases(), **extra}
        with ExitStack() as stack:
            storage = stack.enter_context(opened(self.study))
            plays = stack.enter_context(Plays(_PIECE, self.host, self.wanted.jobs))
            study = Study(storage, about, bases, pairs_of(choosing, range(_SEEDS)))
            self.say(f"{about}: {len(choosing)} tasks choose, {len(judging)} others judge; {self.wanted.trials} trials")
            last = time.monotonic() + _CHOOSING * (ends - time.monotonic())
            limits = Limits(self.wanted.trials, lambda: self._over(last))
            try:
                found = study.search(plays, limits, self.wanted.seed, self.say)
            finally:
                self._go_on()
            gain = None
            if found.unchanged != self.wanted.against:
                sides = plays.file(found.content), plays.file(bases[self.wanted.against])
                gain = judged(plays, sides, judging, seeds, self._go_on)
        return Replayed(
            ground,
            tuple(f"{p.name} {p.shapes}" for p in choosing),
            tuple(f"{p.name} {p.shapes}" for p in judging),
            tuple(sorted({p.device for p in playables})),
            _SEEDS,
            len(seeds),
            found,
            str(self.study),
            math.exp(found.cost - found.default_cost),
            gain,
            len(_groups(judging)),
        )

    def _over(self, last: float) -> str | None:
        return self.halt() or ("the minutes are over" if time.monotonic() > last else None)

    def _go_on(self) -> None:
        if why := self.halt():
            raise Interrupted(f"{why}; what was tried is in {self.study}, and the same command goes on")

    def _bases(self) -> dict[str, Mapping[str, Any]]:
        """Contents of recipes by name, the default first."""
        assert self.host is not None
        names = dict.fromkeys((self.wanted.against, *self.wanted.recipes))
        return {n: content_of(self.host.recipe(n).describe()) for n in names}

    def _recordings(self) -> list[Path]:
        if self.wanted.recordings is None:
            return [Path(p) for p in sorted(glob(_RECORDINGS))]
        found = []
        for text in self.wanted.recordings:
            some = sorted(glob(text)) if "*" in text else [text]
            if not some:
                raise HistoryError(f"no recording matches {text!r}: tt record makes one")
            found += [Path(p) for p in some]
        return found


def _groups(playables: Sequence[Playable]) -> list[list[Playable]]:
    """The same workload, recorded more than once, is on one side; smallest first."""
    found: dict[str, list[Playable]] = {}
    for p in sorted(playables, key=lambda p: (p.flops, p.shapes, p.path, p.place)):
        found.setdefault(p.shapes, []).append(p)
    return list(found.values())


def _split(playables: Sequence[Playable]) -> tuple[list[Playable], list[Playable]]:
    """Tasks that choose and tasks that judge: of three, by size, the middle one judges."""
    groups = _groups(playables)
    choosing = [p for i, g in enumerate(groups) if i % 3 != 1 for p in g]
    judging = [p for i, g in enumerate(groups) if i % 3 == 1 for p in g]
    return choosing, judging
