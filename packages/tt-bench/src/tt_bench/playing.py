"""Recordings as `tt suggest` plays recipes on them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tt_spec import Plugins
from tt_spec.roles import Host, Playable, Played

from tt_bench.errors import BenchError
from tt_bench.files import load
from tt_bench.fitted import digest, parts_of
from tt_bench.recording import Recorded
from tt_bench.replay import Unrecorded
from tt_bench.runs import tune
from tt_bench.stats import quality

__all__ = ["Player"]

_WARM_UP = 48
"""Trials before the first play of a recipe in a process: libraries load before thinking is timed."""

_RUN_S = 0.03
"""Executions of a trial, about."""

_WARM: set[tuple[str, ...]] = set()
"""Pieces that this process has loaded."""

_READ: dict[tuple[str, bool], tuple[tuple[str, ...], tuple[str, ...]]] = {}
"""Pieces and overrides of a recipe, by its name and whether a fitted model plays it."""


class Player:
    """Plays recipes on recordings of `tt record`, and on histories that are none.

    Thinking is charged as it takes, in CPU time: the rows of a seed are the same each time, its seconds nearly.
    """

    def playables(self, paths: Sequence[Path]) -> list[Playable]:
        """Every task with more than one valid row."""
        found = []
        for path in paths:
            recording = load(path)
            for i, part in enumerate(recording.parts):
                if np.isfinite(part.latency).sum() > 1:
                    found.append(_playable(part, path, (str(i),), recording.device))
        return found

    def fitted(self, history: Path, task_keys: Sequence[str], device: str) -> list[Playable]:
        return [
            _playable(part, history, (part.whole.key, device), device, fitted=True)
            for part in parts_of(history, task_keys, device)
        ]

    def play(self, host: Host, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        part = _part(playable.path, playable.place)
        key = (recipe, playable.fitted)
        if key not in _READ:
            _READ[key] = _read(host, recipe, playable.fitted)
        pieces, sets = _READ[key]
        policy: Unrecorded = "refuse" if _complete(playable.path, playable.place) or playable.fitted else "nearest"
        options: Any = {"unrecorded": policy, "fitted": playable.fitted}
        if pieces not in _WARM:
            tune(host, [part], recipe, sets, seed, min(trials, _WARM_UP), **options)
            _WARM.add(pieces)
        run = tune(host, [part], recipe, sets, seed, trials, goal=goal, **options)
        held = np.minimum(quality(run, float(part.task.weight * part.best_s)), 1.0)
        return Played(tuple(run.t), tuple(held.tolist()), run.lacking)


def _playable(part: Recorded, path: Path, place: tuple[str, ...], device: str, fitted: bool = False) -> Playable:
    task = part.whole
    spent = [m.cost.get("apply", 0.0) + m.cost.get("build", 0.0) for m in part.measured]
    trial_s = float(np.mean(spent)) / part.pace.workers + part.pace.engine_s + part.pace.realise_s + _RUN_S
    return Playable(
        task.name,
        task.key,
        task.op,
        task.shapes,
        task.flops,
        device,
        digest(part),
        str(path),
        place,
        len(part.rows),
        trial_s,
        fitted,
    )


@lru_cache(maxsize=64)
def _complete(path: str, place: tuple[str, ...]) -> bool:
    """Whether every row is recorded, which takes as long as a play to find out."""
    return _part(path, place).complete


@lru_cache(maxsize=64)
def _part(path: str, place: tuple[str, ...]) -> Recorded:
    """A process loads a file once."""
    if len(place) == 1:
        return _parts(path)[int(place[0])]
    found = parts_of(Path(path), [place[0]], place[1])
    if not found:
        raise BenchError(f"{path}: the rows of task {place[0]} on {place[1]} are gone")
    return found[0]


@lru_cache(maxsize=32)
def _parts(path: str) -> tuple[Recorded, ...]:
    return load(path).parts


def _read(host: Host, recipe: str, fitted: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a recipe's pieces, and what to set so that it can be played."""
    about = host.recipe(recipe).describe()
    names = tuple(sorted(f"{r} {p['piece']}" for r, p in about.items() if isinstance(p, dict)))
    return names, _without_statements(about) if fitted else ()


def _without_statements(about: Mapping[str, Any]) -> tuple[str, ...]:
    """What to set so that a recipe's model learns from knobs: a history holds no program's statements."""
    plugins, found = Plugins(), []
    for role in ("surrogate", "draft"):
        if role not in about:
            continue
        piece = about[role]["piece"]
        parameters = inspect.signature(plugins.factory("surrogate", piece)).parameters
        if "inputs" in parameters:
            found.append(f"{role}.inputs=knobs")
        elif getattr(plugins.build("surrogate", piece), "inputs", "knobs") != "knobs":
            raise BenchError(f"surrogate {piece!r} reads programs, of which a history that is no recording has none")
    return tuple(found)
