"""Random search on formulas, as a replay: for tests and examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tt_spec.errors import FormatError
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.rng import draw
from tt_spec.roles import Host, Playable, Played

__all__ = ["SyntheticReplay"]


class SyntheticReplay:
    """Plays random search, whatever the recipe, on synthetic tasks: a recording is a text file with a name a line.

    Args:
        trial_s: What a trial costs, seconds. (default: 0.1)
    """

    def __init__(self, trial_s: float = 0.1) -> None:
        self.trial_s = trial_s

    def playables(self, paths: Sequence[Path]) -> list[Playable]:
        found = []
        for path in paths:
            try:
                names = path.read_text(encoding="utf-8").split()
            except (OSError, UnicodeDecodeError) as e:
                raise FormatError(f"{path}: {e}") from e
            for name in names:
                task = synthetic_task(name)
                rows = task.space.size
                found.append(
                    Playable(
                        name, task.key, task.op, name, task.flops, "none", name, str(path), (name,), rows, self.trial_s
                    )
                )
        return found

    def play(self, host: Host, playable: Playable, recipe: str, seed: int, *, trials: int, goal: float = 1.0) -> Played:
        task, machine = synthetic_task(playable.place[0]), SyntheticMeasurer()
        rows = draw(task.space, set(), trials, np.random.default_rng(seed))
        best = machine.seconds(task, machine.optimum(task)[None])[0]
        quality = (best / np.minimum.accumulate(machine.seconds(task, rows))).tolist()
        n = next((i + 1 for i, q in enumerate(quality) if q >= goal), len(quality))
        return Played(tuple(self.trial_s * (i + 1) for i in range(n)), tuple(quality[:n]))
