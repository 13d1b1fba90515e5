"""Playing recipes over what was measured before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tt_spec.roles.run import Host

__all__ = [
    "Fits",
    "Playable",
    "Played",
    "Replay",
]


@dataclass(frozen=True)
class Playable:
    """One task on which recipes can be replayed.

    Args:
        name: For people.
        digest: Of its rows: equal digests, equal rows.
        path: The file that holds it.
        place: Where in the file it is.
        rows: How many are known.
        trial_s: What a trial costs on average by the replay's clock, seconds.
        fitted: Whether rows that were never measured are answered by a model fitted to those that were.
    """

    name: str
    task_key: str
    op: str
    shapes: str
    flops: float
    device: str
    digest: str
    path: str
    place: tuple[str, ...]
    rows: int
    trial_s: float
    fitted: bool = False


@dataclass(frozen=True)
class Played:
    """A replayed run, trial by trial.

    Args:
        t: Seconds by the replay's clock since the run began; they never fall.
        quality: `best known / latency` of what the run would ship then, in [0, 1].
        lacking: Share of the rows asked for that nobody has measured.
    """

    t: tuple[float, ...]
    quality: tuple[float, ...]
    lacking: float = 0.0


@runtime_checkable
class Replay(Protocol):
    """Plays recipes over what was measured before. Picklable, and a playable is: plays may run in other processes."""

    def playables(self, paths: Sequence[Path]) -> list[Playable]:
        """The tasks that these recordings hold and that can tell recipes apart. A file that cannot be read is a
        `UserError` of one line that names it."""
        ...

    def play(self, host: Host, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        """Run a recipe, a name or a TOML file, until `trials` rows are measured or `goal` of the best quality is held.
        The same seed draws the same rows."""
        ...


@runtime_checkable
class Fits(Protocol):
    """A replay that can also play over a history which is no recording: a model fitted to its rows answers for those
    that it lacks."""

    def fitted(self, history: Path, task_keys: Sequence[str], device: str) -> list[Playable]:
        """Those of these tasks of which a device has rows enough; `Playable.fitted` says what they are."""
        ...
