"""`tt suggest`, from Python: which recipe history and replay speak for, by kind of operator."""

from __future__ import annotations

import getpass
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tt_spec import Task, nearest
from tt_spec.recipe import content_of
from tt_spec.roles import Host
from tt_spec.suggestions import Ground, Suggestion, keep

from tt_history.errors import HistoryError
from tt_history.nearest import distance
from tt_history.sqlite import SqliteStore
from tt_history.suggestion.past_runs import Verdict, judged, reached
from tt_history.suggestion.replays import FEW, Replayed, Replaying
from tt_history.suggestion.study import TooShort
from tt_history.suggestion.wanted import Asked, Wanted

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["Subject", "subject_of", "suggest"]

_NEAR = 16
"""Tasks of the history that speak for one that is asked about."""


@dataclass(frozen=True)
class Subject:
    """What a suggestion is for.

    Args:
        model: Its name.
        device: Of the machine; empty where it is not known.
    """

    model: str
    tasks: tuple[Task, ...]
    device: str = ""


def subject_of(store: SqliteStore, what: str, host: Host | None, target: str = "native") -> Subject:
    """A task of the history, by name or key, or with a host a model as for `tt tune`."""
    known = [
        Task(t["key"], t["name"], t["op"], t["target"], (), t["flops"], t["weight"], b"", t["shapes"], t["workload"])
        for t in store.tasks()
        if t["key"] == what or fnmatchcase(t["name"], what)
    ]
    if known:
        return Subject(what, tuple(known))
    if host is None:
        raise HistoryError(f"{store.name} has no task {what!r} (see tt-history tasks); with tt-core it may be a model")
    ready = host.prepare(what, target=target)
    return Subject(what, tuple(ready.tasks), host.device(ready.target))


def suggest(
    history: str | Path,
    what: str | Subject,
    *,
    host: Host | None = None,
    halt: Callable[[], str | None] = lambda: None,
    say: Callable[[str], None] = lambda text: None,
    **asked: Unpack[Asked],
) -> list[Suggestion]:
    """A suggestion for each kind of operator of a model, heaviest kind first, kept in the history if anything could be
    compared.

    Args:
        history: The database.
        what: A task of the history, by name or key, or with a host a model as for `tt tune`.
        host: The runner (`tt_core.host.Host`), which resolves recipes and assembles runs; replays need one.
        halt: Asked between two plays; a text ends the call with that reason, and the same call goes on later.
        say: Told in one line what happens.
        asked: The fields of `tt_history.suggestion.wanted.Wanted`.

    Raises:
        HistoryError: A history, a study or an option that cannot be used, or `Interrupted` where `halt` gave a reason.
    """
    wanted = Wanted(**asked)
    if not os.path.exists(history):
        raise HistoryError(f"no history {history}: tt tune writes one")
    store = SqliteStore(history)
    try:
        subject = subject_of(store, what, host) if isinstance(what, str) else what
        return _Suggesting(store, subject, wanted, host, Replaying(Path(history), wanted, host, halt, say)).all()
    finally:
        store.close()


@dataclass
class _Evidence:
    """Of one kind of operator."""

    runs: Verdict | None = None
    replayed: Replayed | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> bool:
        """Whether anything was."""
        return self.replayed is not None or (self.runs is not None and self.runs.chosen is not None)

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        found: dict[str, Any] = {"notes": self.notes} if self.notes else {}
        if self.replayed is not None:
            found[self.replayed.ground] = self.replayed.as_dict()
        if self.runs is not None:
            found["runs"] = self.runs.as_dict()
        return found


@dataclass
class _Suggesting:
    """A call of `suggest`."""

    store: SqliteStore
    subject: Subject
    wanted: Wanted
    host: Host | None
    replaying: Replaying

    def all(self) -> list[Suggestion]:
        kinds, device = self._kinds(), self._device()
        ends = time.monotonic() + 60 * self.wanted.minutes
        found = []
        for left, kind in zip(range(len(kinds), 0, -1), kinds, strict=True):
            now = time.monotonic()
            evidence = self._evidence(kind, device, now + (ends - now) / left)
            suggestion = self._decided(kind, device, evidence)
            if evidence.compared:
                suggestion = replace(suggestion, id=keep(self.store, suggestion), at=time.time())
            found.append(suggestion)
        return found

    def _kinds(self) -> list[str]:
        """Heaviest first."""
        work: Counter[str] = Counter()
        for t in self.subject.tasks:
            work[t.op] += round(max(t.flops, 1.0) * t.weight)
        for kind in self.wanted.kinds:
            if kind not in work:
                said = f"{self.subject.model} has no operator of kind {kind!r}"
                raise HistoryError(f"{said}{nearest(kind, sorted(work))}")
        kinds = [k for k, _ in work.most_common() if not self.wanted.kinds or k in self.wanted.kinds]
        if not kinds:
            raise HistoryError(f"{self.subject.model} has no operator to tune")
        return kinds

    def _device(self) -> str:
        if self.wanted.device or self.subject.device:
            return self.wanted.device or self.subject.device
        keys = {t.key for t in self.subject.tasks}
        rows: Counter[str] = Counter()
        for s in self.store.summary():
            if s["task_key"] in keys:
                rows[s["device"]] += s["trials"]
        if not rows:
            raise HistoryError(f"{self.store.name} does not say on which device: give --device")
        return rows.most_common(1)[0][0]

    def _evidence(self, kind: str, device: str, ends: float) -> _Evidence:
        evidence, near, against = _Evidence(), self._near(kind), self.wanted.against
        if self.wanted.by != "replay":
            default = None if self.host is None else content_of(self.host.recipe(against).describe())
            evidence.runs = judged(reached(self.store, near), default, against)
        if self.wanted.by == "runs":
            return evidence
        if (lacking := self.replaying.lacking) is not None:
            if self.wanted.by == "replay":
                raise HistoryError(f"replays need {lacking}: pip install {lacking}")
            evidence.notes.append(f"nothing was replayed: pip install {lacking}")
            return evidence
        ground, playables = self.replaying.playables(kind, device, near)
        extra = {}
        if evidence.runs is not None and evidence.runs.recipe is not None:
            extra = {f"{evidence.runs.name} of past runs": evidence.runs.recipe}
        try:
            evidence.replayed = self.replaying.replayed(f"{kind} on {device}", ground, playables, extra, ends)
        except TooShort as e:
            evidence.notes.append(str(e))
            return evidence
        if evidence.replayed is not None and evidence.replayed.too_few:
            evidence.notes.append(FEW)
        if evidence.replayed is None:
            known = f"{len(playables)} recorded task" if playables else "no recorded task"
            evidence.notes.append(f"nothing was replayed: {known}; one task chooses, another one judges")
        return evidence

    def _near(self, kind: str) -> list[str]:
        """Keys of the kind's tasks and of the nearest ones in the history."""
        known = [t for t in self.store.tasks() if t["op"] == kind]
        found: dict[str, None] = {}
        for task in (t for t in self.subject.tasks if t.op == kind):
            by = sorted(known, key=lambda t: (distance((task.flops, task.shapes), (t["flops"], t["shapes"])), t["key"]))
            found.update(dict.fromkeys([task.key, *(t["key"] for t in by[:_NEAR])]))
        return list(found)

    def _decided(self, kind: str, device: str, evidence: _Evidence) -> Suggestion:
        """A replay's word goes first, then that of past runs; a fitted model is only asked where nothing is recorded,
        and past runs go before it."""
        recipe: Mapping[str, Any] = {}
        ground: Ground | None = None
        replayed, runs = evidence.replayed, evidence.runs
        if replayed is not None and replayed.better and replayed.ground == "replay":
            ground, recipe = "replay", replayed.found.content
        elif runs is not None and runs.better and runs.recipe is not None:
            ground, recipe = "runs", runs.recipe
        elif replayed is not None and replayed.better:
            ground, recipe = replayed.ground, replayed.found.content
        versions = {"tt-history": metadata.version("tt-history")} if self.host is None else self.host.versions()
        told = evidence.as_dict()
        return Suggestion(kind, device, ground is not None, recipe, ground, told, self.subject.model, _who(), versions)


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return ""
