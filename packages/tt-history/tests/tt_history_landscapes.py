"""Recipes whose worth is a formula: a host and a replay for tests of suggestions, without a compiler."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tt_spec import Choice, Entry, Float, Integer, Plugins, hookimpl
from tt_spec.pieces.random_searcher import RandomSearcher
from tt_spec.roles import Playable, Played

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TT = {"name": "tt", "batch": 16, "searcher": {"piece": "hill", "steps": 64}, "store": {"piece": "sqlite"}}


class Hill(RandomSearcher):
    """A searcher with options."""

    def __init__(self, steps: int = 64, heat: float = 1.0, way: str = "up") -> None:
        self.steps, self.heat, self.way = steps, heat, way


class Landscape:
    """Seconds by the recipe's options. `kind` is how: "helps", "noise" (options do not matter), "misleads" (what helps
    the tasks that choose harms those that judge), "few" (helps, and four tasks are recorded), "dies" (the process is
    killed in play `at`)."""

    plays = 0
    at = -1

    def __init__(self, kind: str = "helps") -> None:
        self.kind = kind

    def playables(self, paths: Any) -> list[Playable]:
        if self.kind == "unrecorded":
            return []
        names = [f"task{i}" for i in range(4 if self.kind == "few" else 9)]
        return [Playable(n, n, "conv2d", n, 2.0**i, "xeon", n, "f", (n,), 100, 0.1) for i, n in enumerate(names)]

    def play(self, host: Any, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        type(self).plays += 1
        if type(self).plays == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        about = host.recipe(recipe).describe()["searcher"]
        name = f"{playable.name} {seed} {sorted(about.items())}"
        rng = np.random.default_rng(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
        off = abs(math.log2(about.get("steps", 64) / 8))
        if self.kind == "noise":
            off = 0.0
        if self.kind == "misleads" and int(playable.name[4:]) % 3 == 1:
            off = 3 - off
        n = int(np.clip(10 * 1.4**off * math.exp(0.2 * rng.standard_normal()), 1, trials))
        t = tuple(0.1 * (i + 1) for i in range(n))
        return Played(t, (0.5,) * (n - 1) + (1.0,))


class Fitting(Landscape):
    """A replay that also plays over a model of a history's rows, where options help whatever the recordings say."""

    def fitted(self, history: Path, task_keys: Any, device: str) -> list[Playable]:
        return [replace(p, fitted=True) for p in Landscape("helps").playables(())]

    def play(self, host: Any, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        by = Landscape("helps" if playable.fitted else self.kind)
        return by.play(host, playable, recipe, seed, trials=trials, goal=goal)


class Pieces:
    """Hooks of a plug-in."""

    kind = "helps"
    replay: type[Landscape] = Landscape

    @hookimpl
    def tt_searchers(self) -> list[Entry]:
        ranges = {"steps": Integer(1, 256, log=True), "heat": Float(0.1, 10.0, log=True), "way": Choice(("up", "down"))}
        return [Entry("hill", Hill, ranges=ranges)]

    @hookimpl
    def tt_replays(self) -> list[Entry]:
        return [Entry("recordings", lambda: self.replay(self.kind))]


class Host:
    """Resolves recipes, as far as they are described."""

    def recipe(self, name: str, sets: Any = (), plugins: Any = None) -> Any:
        if name == "tt":
            return SimpleNamespace(describe=lambda: TT)
        about = {"name": Path(name).stem, **tomllib.loads(Path(name).read_text())}
        return SimpleNamespace(describe=lambda: about)

    def versions(self) -> dict[str, str]:
        return {"python": "3"}


@contextmanager
def pieces(kind: str, replay: type[Landscape] = Landscape):
    """tt-history's modules find these pieces, and no installed ones."""
    from tt_history.suggestion import plays, replays, study

    mine = Pieces()
    mine.kind, mine.replay = kind, replay

    def found(*args: Any, **options: Any) -> Plugins:
        return Plugins([("landscapes", mine)], installed=False)

    before = [(m, m.Plugins) for m in (plays, replays, study)]
    for module, _ in before:
        module.Plugins = found  # type: ignore[misc]
    plays._BUILT.clear()
    try:
        yield
    finally:
        for module, own in before:
            module.Plugins = own  # type: ignore[misc]
        plays._BUILT.clear()


if __name__ == "__main__":
    from tt_history import suggest

    Landscape.at = int(sys.argv[2])
    with pieces("helps"):
        suggest(sys.argv[1], "conv", host=Host(), by="replay", trials=6)  # type: ignore[arg-type]
