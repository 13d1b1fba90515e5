"""Recipes played on pairs of task and seed, here or in other processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tt_spec import Plugins
from tt_spec.roles import Host, Playable, Played, Replay

from tt_history.suggestion.paired import Gain, compared
from tt_history.suggestion.toml import written

__all__ = ["GOAL", "TRIALS", "Pair", "Plays", "Score", "judged", "pairs_of"]

GOAL = 0.98
"""Of the best known speed: there."""

TRIALS = 128
"""Measured rows of a play. What needs more is taken for never."""

_LATE = 2.0
"""A play that never arrives counts as so many times all of its trials."""

_LENGTH = 0.1
"""Weight of a play's whole length beside its way to the goal, where the recipe's stopper is what is tried."""


@dataclass(frozen=True)
class Pair:
    """A task and a seed."""

    playable: Playable
    seed: int


@dataclass(frozen=True)
class Score:
    """What a play came to.

    Args:
        trials, seconds: Until it was there; finite also where it never was.
        length_s: Of the whole play.
    """

    trials: float
    seconds: float
    length_s: float
    there: bool

    @classmethod
    def of(cls, played: Played, trial_s: float) -> Score:
        """The score of a play, in whose task a trial costs `trial_s` on average."""
        late, late_s = _LATE * TRIALS, _LATE * TRIALS * trial_s
        length = played.t[-1] if played.t else late_s
        at = next((i for i, q in enumerate(played.quality) if q >= GOAL - 1e-12), None)
        if at is None:
            return cls(late, late_s, length, False)
        return cls(at + 1, min(max(played.t[at], 1e-3), late_s), length, True)

    def cost(self, whole: bool) -> float:
        """What a study makes small; `whole`: the length counts a little too."""
        return math.log(self.seconds) + (_LENGTH * math.log(max(self.length_s, 1e-3)) if whole else 0.0)


def pairs_of(playables: Sequence[Playable], seeds: Sequence[int]) -> list[Pair]:
    """Every task once, then every task with the next seed: a bad recipe is known by its first few."""
    return [Pair(p, s) for s in seeds for p in playables]


class Plays:
    """Plays recipes; a context manager.

    Args:
        replay: Name of the replay piece.
        jobs: Processes; 1 plays in this one.
    """

    def __init__(self, replay: str, host: Host, jobs: int = 1) -> None:
        self.replay, self.host, self.jobs = replay, host, jobs

    def __enter__(self) -> Plays:
        self._folder = tempfile.TemporaryDirectory(prefix="tt-suggest-")
        self._n = 0
        self._pool: ProcessPoolExecutor | None = None
        if self.jobs > 1:
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                os.environ.setdefault(name, "1")
            self._pool = ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _end_with_parent)
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._folder.cleanup()

    def file(self, content: Mapping[str, Any]) -> str:
        """A recipe's file, as `--out` would write it."""
        self._n += 1
        path = Path(self._folder.name) / f"candidate{self._n}.toml"
        path.write_text(written(content), encoding="utf-8")
        return str(path)

    def scores(self, recipe: str, pairs: Sequence[Pair], goal: float = GOAL) -> Iterator[Score]:
        """The pairs' scores, in order; a few that nobody may ask for are under way in other processes."""
        if self._pool is None:
            for pair in pairs:
                yield _score(self.replay, self.host, pair, recipe, goal)
            return
        waiting: deque[Future[Score]] = deque()
        left = iter(pairs)
        try:
            while True:
                while len(waiting) < self.jobs and (pair := next(left, None)) is not None:
                    waiting.append(self._pool.submit(_score, self.replay, self.host, pair, recipe, goal))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for w in waiting:
                w.cancel()


def judged(
    plays: Plays,
    sides: tuple[str, str],
    tasks: Sequence[Playable],
    seeds: Sequence[int],
    between: Callable[[], None] = lambda: None,
) -> Gain:
    """The gain of the first recipe over the second, files both, on every task with every seed.

    Args:
        between: Called after each play; may raise.
    """
    both: list[list[Score]] = []
    for recipe in sides:
        both.append([])
        for score in plays.scores(recipe, pairs_of(tasks, seeds)):
            both[-1].append(score)
            between()
    pairs = list(zip(*both, strict=True))
    seconds = [math.log(a.seconds) - math.log(b.seconds) for a, b in pairs]
    trials = [math.log(a.trials) - math.log(b.trials) for a, b in pairs]
    return compared(seconds, trials, len(tasks))


_BUILT: dict[str, Replay] = {}


def _score(replay: str, host: Host, pair: Pair, recipe: str, goal: float) -> Score:
    """The score of one pair; a process builds a replay once."""
    if replay not in _BUILT:
        _BUILT[replay] = Plugins().build("replay", replay)
    played = _BUILT[replay].play(host, pair.playable, recipe, pair.seed, trials=TRIALS, goal=goal)
    return Score.of(played, pair.playable.trial_s)


def _end_with_parent() -> None:
    """A process whose parent was killed would wait for its next play for ever. Ctrl-C is the parent's to hear."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
