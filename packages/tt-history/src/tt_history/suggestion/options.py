"""The options of a recipe that may be tried, by the ranges that its pieces declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tt_spec import Plugins
from tt_spec.ranges import BATCH, Choice, Integer, Range

__all__ = ["ROLES", "Option", "Tries", "options_of", "tried"]

ROLES = ("surrogate", "searcher", "sampler", "stopper", "evaluator")
"""Whose options are tried, beside the recipe's `batch`."""


class Tries(Protocol):
    """Optuna's trial, as far as it is needed."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float: ...
    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True)
class Option:
    """One option of a recipe.

    Args:
        piece: Whose it is; empty for the recipe's own.
        value: What the recipe says; None where it says nothing.
    """

    role: str
    piece: str
    name: str
    range: Range
    value: Any = None

    @property
    def key(self) -> str:
        """Its name in a study: the same option of two recipes is one parameter."""
        return f"{self.role}.{self.piece}.{self.name}" if self.piece else self.name

    def drawn(self, trial: Tries) -> Any:
        """A value that the study wants to see, in four digits."""
        r = self.range
        if isinstance(r, Choice):
            return trial.suggest_categorical(self.key, list(r.values))
        if isinstance(r, Integer):
            return trial.suggest_int(self.key, r.low, r.high, log=r.log)
        value = trial.suggest_float(self.key, r.low, r.high, log=r.log)
        return min(max(float(f"{value:.4g}"), r.low), r.high)


def options_of(content: Mapping[str, Any], plugins: Plugins) -> list[Option]:
    """Of a recipe's content: those with a range."""
    found = [Option("", "", "batch", BATCH, content.get("batch"))]
    for role in ROLES:
        about = content.get(role)
        if not isinstance(about, Mapping):
            continue
        piece = about["piece"]
        ranges = plugins.find(role, piece).entry.ranges
        found += [Option(role, piece, name, r, about.get(name)) for name, r in sorted(ranges.items())]
    return found


def tried(content: Mapping[str, Any], options: list[Option], trial: Tries) -> dict[str, Any]:
    """The content with every option as the study wants to see it."""
    made = {k: dict(v) if isinstance(v, Mapping) else v for k, v in content.items()}
    for option in options:
        (made[option.role] if option.role else made)[option.name] = option.drawn(trial)
    return made
