"""Requests for a suggestion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, get_args

from tt_history.errors import HistoryError

__all__ = ["DEFAULT", "Asked", "By", "Wanted"]

DEFAULT = "tt"
"""The recipe that `tt tune` takes by itself."""

By = Literal["runs", "replay", "both"]


class Asked(TypedDict, total=False):
    """The keywords of `suggest`: the fields of `Wanted`."""

    by: By
    minutes: float
    trials: int
    jobs: int
    seed: int
    recipes: Sequence[str]
    against: str
    recordings: Sequence[str] | None
    kinds: Sequence[str]
    device: str | None
    study: str | Path | None


@dataclass(frozen=True)
class Wanted:
    """What is asked of a suggestion.

    Args:
        by: "runs" asks past runs, "replay" plays recipes over what was measured, "both" does both.
        minutes: Of the replays, about.
        trials: Of options that a study of one kind of operator tries, those of earlier calls among them.
        jobs: Processes that play; 1 is this one.
        recipes: Whose options are tried, beside those of `against`.
        against: The recipe with which everything is compared, and which stays where nothing is better.
        recordings: Files or patterns; None are those of `recordings/`, as far as there are any.
        kinds: Of operators; empty is all of the model's.
        device: For which the suggestion is; None is this machine, or the one that the history knows best.
        study: The file of what was tried; None lies beside the history.
    """

    by: By = "both"
    minutes: float = 20.0
    trials: int = 100
    jobs: int = 1
    seed: int = 0
    recipes: Sequence[str] = ()
    against: str = DEFAULT
    recordings: Sequence[str] | None = None
    kinds: Sequence[str] = ()
    device: str | None = None
    study: str | Path | None = None

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise HistoryError(f"--by is {', '.join(get_args(By))}, got {self.by!r}")
        if not 0 < self.minutes <= 10_000 or self.trials < 1 or self.jobs < 1 or self.seed < 0:
            raise HistoryError(
                "minutes must be above 0 and at most 10000, trials and jobs at least 1, the seed at least 0;"
                f" got {self.minutes:g}, {self.trials}, {self.jobs} and {self.seed}"
            )
