"""Evidence of past runs: how soon each recipe came within 2 % of the best known on its device."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from tt_spec.recipe import content_of
from tt_spec.types import IMPORT

from tt_history.raw import NOISE
from tt_history.sqlite import SqliteStore
from tt_history.suggestion.paired import Gain, compared
from tt_history.version2 import BEST_OF_PLACE, Version2

__all__ = ["Reached", "Verdict", "judged", "reached"]

WITHIN = 1.02
"""Of the best known seconds: there."""

_NO_TRIAL = ("again", "finalist")
"""Origins of later timings of a row."""

_LATE = 2.0
"""A run that never arrived counts as if it had taken so many times as long, where one of an equal budget did arrive."""

_EQUAL = 1.1
"""Two runs whose trials on a task differ by less had an equal budget."""

_LEAST = 2
"""Tasks on which a recipe must have met the default before it is chosen."""


@dataclass(frozen=True)
class Reached:
    """What a run came to on one task, from nothing.

    Args:
        name: What the recipe was called.
        recipe: Its pieces and options as text: equal texts, equal recipes.
        trials: Measured rows of the task, all of the run.
        to: Trials and seconds of building and timing until within 2 % of the best known; None if it never was.
    """

    task: str
    device: str
    run: str
    name: str
    recipe: str
    trials: int
    to: tuple[int, float] | None
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What past runs say of a kind of operator.

    Args:
        recipe: The content of the best recipe's file; None where the default is the best of those that ran.
        name: What it was called.
        chosen, held_out: Its gain over the default on the tasks that chose it, and on the others; None where they did
            not meet.
    """

    runs: int
    tasks: tuple[str, ...]
    devices: tuple[str, ...]
    recipes: int
    recipe: dict[str, Any] | None = None
    name: str = ""
    chosen: Gain | None = None
    held_out: Gain | None = None

    @property
    def better(self) -> bool:
        """Whether held-out tasks agree."""
        return self.recipe is not None and self.held_out is not None and self.held_out.better

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        gains = {"chosen": self.chosen, "held_out": self.held_out}
        return {**vars(self), **{k: None if g is None else g.as_dict() for k, g in gains.items()}}


def reached(store: SqliteStore, task_keys: Sequence[str]) -> list[Reached]:
    """Every run that began a task from nothing: what an earlier run of the same history had measured helps a later
    one."""
    with store.reading() as (db, layout):
        if not isinstance(layout, Version2):
            return []
        runs = {str(i): (float(at), _parsed(info)) for i, at, info in db.execute("SELECT id, started, info FROM runs")}
        contexts = {i: tuple(about) for i, *about in db.execute("SELECT id, origin, run_id, costs FROM contexts")}
        found: list[Reached] = []
        for key in dict.fromkeys(task_keys):
            for device, places in _places(db, key).items():
                found += _of_task(db, key, device, places, runs, contexts)
    return found


def _parsed(info: str) -> dict[str, Any]:
    try:
        found = json.loads(info)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _places(db: sqlite3.Connection, key: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for i, device in db.execute("SELECT id, device FROM places WHERE task_key = ?", (key,)):
        found[device].append(i)
    return found


def _of_task(
    db: sqlite3.Connection,
    key: str,
    device: str,
    places: list[int],
    runs: Mapping[str, tuple[float, dict[str, Any]]],
    contexts: Mapping[int, tuple[str, str, str]],
) -> list[Reached]:
    rows = db.execute(
        "SELECT context, median_s, error IS 'invalid', cost FROM records"
        f" WHERE place IN ({', '.join(map(str, places))}) ORDER BY id"
    ).fetchall()
    if not rows:
        return []
    context = np.array([r[0] for r in rows])
    seconds = np.array([math.inf if r[1] is None else r[1] for r in rows])
    best = _best(db, places)
    if not math.isfinite(best):
        return []
    trial = ~np.array([bool(r[2]) for r in rows])
    trial &= ~np.isin(context, [i for i, (origin, _, _) in contexts.items() if _origin(origin) in _NO_TRIAL])
    by_run: dict[str, list[int]] = defaultdict(list)
    for i in np.unique(context):
        by_run[contexts[int(i)][1]].append(int(i))
    found = []
    for run in _from_nothing([r for r in by_run if r in runs], runs):
        own = np.flatnonzero(np.isin(context, by_run[run]) & trial)
        recipe = runs[run][1].get("recipe")
        if not len(own) or not isinstance(recipe, dict):
            continue
        spent = np.cumsum(_spent([rows[i][3] for i in own], [contexts[int(i)][2] for i in context[own]]))
        at = np.flatnonzero(seconds[own] <= WITHIN * best)
        to = (int(at[0]) + 1, float(spent[at[0]])) if len(at) else None
        text = json.dumps(content_of(recipe), sort_keys=True)
        found.append(Reached(key, device, run, str(recipe.get("name", "")), text, len(own), to, float(spent[-1])))
    return found


def _best(db: sqlite3.Connection, places: Iterable[int]) -> float:
    """Of the latest verdicts."""
    found = [row[1] for p in places if (row := db.execute(BEST_OF_PLACE, (p,)).fetchone()) is not None]
    return min(found, default=math.inf)


def _origin(origin: str) -> str:
    """Who proposed a row, before it was imported too."""
    words = origin.split(" ", 1)
    return words[1].split(",")[0] if words[0] == IMPORT and len(words) > 1 else words[0]


def _from_nothing(names: list[str], runs: Mapping[str, tuple[float, dict[str, Any]]]) -> list[str]:
    """Of each history's runs that measured the task, the first: it is known by the path that its options name."""
    found: dict[str, str] = {}
    for name in sorted(names, key=lambda r: runs[r][0]):
        options = runs[name][1].get("options")
        mark = runs[name][1].get(IMPORT)
        file = mark.get("file") if isinstance(mark, dict) else ""
        where = options.get("history") if isinstance(options, dict) else None
        found.setdefault(json.dumps([file, where, name if where == "None" else ""]), name)
    return list(found.values())


def _spent(costs: Sequence[object], names: Sequence[str]) -> np.ndarray:
    """Seconds that each record cost, `(n,)`."""
    if len(set(names)) == 1 and all(isinstance(c, bytes) for c in costs) and len({len(c) for c in costs}) == 1:  # type: ignore[arg-type]
        known = np.frombuffer(b"".join(costs), dtype="<f8").reshape(len(costs), -1)  # type: ignore[arg-type]
        each = known[:, list(_seconds(names[0]))].sum(axis=1)
    else:
        each = np.array([_one(c, n) for c, n in zip(costs, names, strict=True)])
    return np.where(np.isfinite(each), each, 0.0)


def _one(cost: object, names: str) -> float:
    if not isinstance(cost, bytes):
        return 0.0
    known = struct.unpack(f"<{len(cost) // 8}d", cost)
    return sum(known[i] for i in _seconds(names) if i < len(known))


@lru_cache(maxsize=256)
def _seconds(names: str) -> tuple[int, ...]:
    """Places of seconds among what a record keeps beside its timings."""
    return tuple(i for i, n in enumerate(json.loads(names or "[]")) if not n.startswith(NOISE))


# -- judging ----------------------------------------------------------------------------------------------------------


def judged(found: Sequence[Reached], default: Mapping[str, Any] | None, name: str) -> Verdict:
    """The best recipe on half of the tasks, and what the other half says of it.

    Args:
        default: The content of the default recipe's file. Without it, and where it never ran as it is now, the default
            is what ran most under its name.
        name: Of the default recipe.
    """
    text = _default(found, default, name)
    every = sorted({(r.task, r.device) for r in found})
    about = Verdict(
        len({r.run for r in found}),
        tuple(sorted({t for t, _ in every})),
        tuple(sorted({d for _, d in every})),
        len({r.recipe for r in found}),
    )
    if text is None:
        return about
    tasks = list(about.tasks)
    choosing, judging = set(tasks[::2]), set(tasks[1::2])
    ranked = []
    for recipe in {r.recipe for r in found} - {text}:
        gain = _gain(found, recipe, text, choosing)
        if gain is not None and gain.tasks >= _LEAST and gain.ratio < 1:
            ranked.append((gain.ratio, gain.trials, recipe, gain))
    if not ranked:
        return about
    _, _, recipe, chosen = min(ranked, key=lambda x: x[:3])
    held_out = _gain(found, recipe, text, judging)
    called = next(r.name for r in found if r.recipe == recipe)
    return replace(about, recipe=json.loads(recipe), name=called, chosen=chosen, held_out=held_out)


def _default(found: Sequence[Reached], default: Mapping[str, Any] | None, name: str) -> str | None:
    text = None if default is None else json.dumps(default, sort_keys=True)
    if any(r.recipe == text for r in found):
        return text
    named = Counter(r.recipe for r in found if r.name == name)
    return named.most_common(1)[0][0] if named else None


def _gain(found: Sequence[Reached], recipe: str, default: str, tasks: set[str]) -> Gain | None:
    """Over tasks and devices where both ran; see `_ratios`."""
    seconds, trials, met = [], [], set()
    for place in sorted({(r.task, r.device) for r in found if r.task in tasks}):
        here = [r for r in found if (r.task, r.device) == place]
        ratios = _ratios([r for r in here if r.recipe == recipe], [r for r in here if r.recipe == default])
        if ratios is not None:
            trials.append(ratios[0])
            seconds.append(ratios[1])
            met.add(place[0])
    return compared(seconds, trials, len(met)) if seconds else None


def _ratios(ours: Sequence[Reached], theirs: Sequence[Reached]) -> tuple[float, float] | None:
    """Logs of the ratios of trials and seconds, medians over runs; None where there is nothing to compare: nobody
    arrived, or one did with another budget."""
    if not ours or not theirs:
        return None
    a, b = [r for r in ours if r.to is not None], [r for r in theirs if r.to is not None]
    if not a and not b:
        return None
    if not a or not b:
        budgets = [float(np.median([r.trials for r in side])) for side in (ours, theirs)]
        if max(budgets) > _EQUAL * min(budgets):
            return None
    return _log_of(a or ours, 0) - _log_of(b or theirs, 0), _log_of(a or ours, 1) - _log_of(b or theirs, 1)


def _log_of(side: Sequence[Reached], figure: int) -> float:
    late = [(_LATE * r.trials, _LATE * r.seconds) for r in side]
    values = [r.to[figure] if r.to is not None else late[i][figure] for i, r in enumerate(side)]
    return math.log(max(float(np.median(values)), 1e-9))
