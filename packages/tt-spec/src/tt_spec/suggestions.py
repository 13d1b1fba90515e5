"""A suggestion: the recipe that history and replay speak for, on a kind of operator and a device.

A store keeps it as a run of its own, so that it travels wherever runs do: with a merge, an export, an import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tt_spec.recipe import PER_TASK, plainest
from tt_spec.roles import Store
from tt_spec.types import IMPORT

__all__ = ["FORMAT", "Ground", "Suggestion", "joined", "keep", "newest", "suggestions"]

FORMAT = 1
"""Of a suggestion in a store; one of another format is passed over."""

Ground = Literal["runs", "replay", "model"]
"""Grounds of a suggestion: past runs, replayed recordings, or replays over a model fitted to a history's rows."""

_KEY = "suggestion"


@dataclass(frozen=True)
class Suggestion:
    """A recipe for one kind of operator on one device, with the evidence for it.

    Args:
        kind: Of operator, as in `Task.op`.
        better: Whether held-out tasks and seeds showed it to be better than the default. If not, the answer is "keep
            the default", and `recipe` is empty.
        recipe: The content of its TOML file.
        ground: The strongest evidence that decided.
        evidence: Figures by ground: tasks, devices, runs, seeds, gain with interval, held-out gain.
        who: Whose program made it.
        versions: Of the packages that took part.
        at: When, seconds since the epoch.
        id: Of its run in the store.
        file: The file that it was imported from, if it was.
    """

    kind: str
    device: str
    better: bool
    recipe: Mapping[str, Any]
    ground: Ground | None
    evidence: Mapping[str, Any]
    model: str = ""
    who: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0
    id: str = ""
    file: str = ""

    def info(self) -> dict[str, Any]:
        """For `Store.begin_run`."""
        own = {k: v for k, v in vars(self).items() if k not in ("at", "id", "file", "model")}
        return {"model": self.model, _KEY: {"format": FORMAT, **own}}

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> Suggestion | None:
        """The suggestion that a run of a store is; None for any other run, and for one that cannot be read."""
        info = run.get("info")
        about = info.get(_KEY) if isinstance(info, Mapping) else None
        if not isinstance(info, Mapping) or not isinstance(about, Mapping) or about.get("format") != FORMAT:
            return None
        texts = [about.get(k, "") for k in ("kind", "device", "who")]
        maps = [about.get(k, {}) for k in ("recipe", "evidence", "versions")]
        better, ground = about.get("better"), about.get("ground")
        if (
            not all(isinstance(t, str) for t in texts)
            or not all(isinstance(m, Mapping) for m in maps)
            or not isinstance(better, bool)
            or ground not in (None, *get_args(Ground))
        ):
            return None
        kind, device, who = texts
        recipe, evidence, versions = maps
        mark = info.get(IMPORT)
        file = str(mark.get("file", "")) if isinstance(mark, Mapping) else ""
        model, at, name = str(info.get("model", "")), float(run["started"]), str(run["id"])
        return cls(kind, device, better, recipe, ground, evidence, model, who, versions, at, name, file)


def keep(store: Store, suggestion: Suggestion) -> str:
    """Add a suggestion to a store; returns its id."""
    name = store.begin_run(suggestion.info())
    what = "a better recipe" if suggestion.better else "keep the default"
    store.end_run(name, f"suggestion for {suggestion.kind}: {what}")
    return name


def suggestions(runs: Iterable[Mapping[str, Any]]) -> list[Suggestion]:
    """Those among a store's runs, oldest first."""
    found = [s for run in runs if (s := Suggestion.of(run)) is not None]
    return sorted(found, key=lambda s: s.at)


def newest(runs: Iterable[Mapping[str, Any]], kind: str, device: str) -> Suggestion | None:
    """The last word on a kind of operator and a device."""
    return next((s for s in reversed(suggestions(runs)) if (s.kind, s.device) == (kind, device)), None)


def joined(found: Mapping[str, Mapping[str, Any] | None], default: Mapping[str, Any]) -> dict[str, Any]:
    """One recipe for several kinds of operators.

    Args:
        found: Content of each kind's recipe file, None to keep the default; the heaviest kind first.
        default: Content of the default's.

    Returns:
        The content of a recipe file: the first kind decides on what belongs to a run, such as batch, evaluator,
        scheduler and stopper, the others have their own of the pieces in `tt_spec.recipe.PER_TASK`.
    """
    base = next(iter(found.values()), None) or default
    kinds: dict[str, dict[str, Any]] = {}
    for kind, content in found.items():
        own = default if content is None else content
        other = {r: own.get(r, plainest(r)) for r in PER_TASK if own.get(r) != base.get(r)}
        if other:
            kinds[kind] = other
    return {**base, "kind": kinds} if kinds else dict(base)
