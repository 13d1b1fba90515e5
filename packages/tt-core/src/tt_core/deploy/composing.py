"""The last race: programs of all operators at once, inside the model.

Alone, an operator finds its inputs where its own last execution left them. In the model the operator before has written
them, each thread its part, and the weights were last read an execution ago: of programs that take as long alone, one
may take 5 % longer there, and a layer norm that two threads share 2.3 times. So a few libraries are compiled, in each
of which every operator has another of its best programs; all of them are timed there, function by function, and the
model is composed of the winners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tt_spec import Measurement, Pipeline, token
from tt_spec.errors import FileError, ProgramError
from tt_spec.roles import Prepares, ProfilesModels

from tt_core.compiler.backend import LEAST_ROUNDS
from tt_core.compiler.quiet import quiet
from tt_core.deploy import library as files
from tt_core.deploy.constants import PACKED
from tt_core.deploy.finalists import Network, Winners, beats, sound
from tt_core.errors import ModelError
from tt_core.stages import LINEUP_S, LONGEST_S, VARIANTS

if TYPE_CHECKING:
    from tt_core.compiler.lower import Lowered
    from tt_core.deploy.shipping import Shipment
    from tt_core.models.model import Arrays

__all__ = ["Composed", "Inside", "choose", "compose", "rivals"]

NEAR, POOL = 1.15, 16
"""How many times the seconds of the best program a rival is expected to take at most, and out of how many of the best
it is taken."""

WORTH = 5e-4
"""Share of the model's seconds that another program has to bring."""

LARGE = 1 << 27
"""Bytes of a library from which on no more than two race: workers hold them all, and so does the disk."""


@dataclass(frozen=True)
class Inside:
    """What the race inside the model needs beside the means to write a file.

    Args:
        pipelines: Know each operator's programs.
        network: What stands around the operators.
        failed: Told of a program that computes something else, crashes or hangs.
        after_s: What timing and verifying the model is expected to take.
    """

    pipelines: Sequence[Pipeline]
    network: Network
    failed: Callable[[Measurement], None]
    after_s: float


@dataclass(frozen=True)
class Composed:
    """A written library of the model.

    Args:
        winners: What is in it.
        others: How many of them did not win alone: 0 in that of the operators' races.
    """

    path: Path
    winners: Winners
    others: int


def compose(shipment: Shipment, winners: Winners, first: Path, inputs: Arrays, each_s: float) -> Composed | None:
    """The model of the programs that win inside it; None where the minutes have no room for that, nothing else wins
    there, or a library cannot be compiled, written or timed.

    Args:
        winners: The programs that won alone.
        first: The library of these.
        inputs: To time on.
        each_s: What compiling and writing that took, seconds.
    """
    inside, stages, measurer = shipment.inside, shipment.stages, shipment.measurer
    if inside is None or not isinstance(measurer, ProfilesModels) or shipment.ready.target.kind.name != "llvm":
        return None  # elsewhere a call that returns has not ended
    model_s = sum(p.task.weight * winners.seconds[p.task.key] for p in inside.pipelines if p.task.key in winners.rows)
    profile_s = max(LINEUP_S, 2 * LEAST_ROUNDS * model_s)  # each execution after one to warm up
    room = (stages.left_s - inside.after_s - each_s - profile_s) / (each_s + profile_s)
    most = 1 if first.stat().st_size > LARGE else VARIANTS
    lineups = [] if model_s > LONGEST_S else _lineups(inside, winners, int(min(most, room)))
    if not lineups:
        return None
    with stages.stage("composing", "racing programs inside the model"):
        try:
            paths = [first, *(_written(shipment, rows, first, i) for i, rows in enumerate(lineups, 1))]
            found = measurer.profile_models([str(p) for p in paths], inputs, profile_s * len(paths))
            better = choose(shipment.ready.lowered, [winners.rows, *lineups], found)
            composed = _sound(shipment, inside, winners, better)
            if not composed:
                return None
            path = _written(shipment, {**winners.rows, **{k: row for k, (row, _) in composed.items()}}, first, 0)
        except (FileError, ModelError, ProgramError) as e:
            stages.say(f"programs could not race inside the model: {e}")
            return None
    seconds = {key: winners.seconds[key] * ratio for key, (_, ratio) in composed.items()}
    rows = {key: row for key, (row, _) in composed.items()}
    return Composed(path, winners.merged(Winners(rows, seconds)), len(rows))


def _lineups(inside: Inside, winners: Winners, count: int) -> list[dict[str, np.ndarray]]:
    """So many times other programs of the operators, by task key; one that has no more of them keeps its winner."""
    if count < 1:
        return []
    network = inside.network.with_best(inside.pipelines)
    each = {
        p.task.key: rivals([(row, s) for row, _, s in network.ranked(p)], winners.rows[p.task.key], count)
        for p in inside.pipelines
        if p.task.key in winners.rows
    }
    longest = max((len(rows) for rows in each.values()), default=0)
    return [{k: rows[i] if i < len(rows) else winners.rows[k] for k, rows in each.items()} for i in range(longest)]


def rivals(ranked: Sequence[tuple[np.ndarray, float]], winner: np.ndarray, count: int) -> list[np.ndarray]:
    """Of the best programs those that resemble the winner and each other least, by the number of knobs that differ:
    programs that differ in one knob gain and lose in the model alike.

    Args:
        ranked: Rows `(d,)` with their seconds, best first.
    """
    if not ranked:
        return []
    near = [row for row, s in ranked[: POOL + 1] if s <= NEAR * ranked[0][1] and token(row) != token(winner)][:POOL]
    chosen = [winner]
    while near and len(chosen) <= count:
        apart = [min(int(np.sum(row != other)) for other in chosen) for row in near]
        chosen.append(near.pop(int(np.argmax(apart))))
    return chosen[1:]


def choose(
    lowered: Lowered, lineups: Sequence[Mapping[str, np.ndarray]], found: Sequence[Mapping[str, Sequence[float]]]
) -> dict[str, tuple[np.ndarray, float]]:
    """The operators of which another program than the first line-up's is faster inside the model beyond noise, and for
    more than nothing: its row, and its seconds by the first's.

    Args:
        found: For each line-up the seconds of every function in each round (`ProfilesModels`).
    """
    total = sum(float(np.median(s)) for s in found[0].values())
    better: dict[str, tuple[np.ndarray, float]] = {}
    for key, names in lowered.functions.items():
        if key not in lineups[0]:
            continue
        took = [_rounds(names, one) for one in found]
        if not took[0]:
            continue  # a step of a loop is no function that the model calls
        base, least = float(np.median(took[0])), float(np.median(took[0])) - WORTH * total
        for rows, seconds in zip(lineups[1:], took[1:], strict=True):
            if seconds and float(np.median(seconds)) < least and beats(seconds, took[0]):
                least = float(np.median(seconds))
                better[key] = rows[key], least / base
    return better


def _rounds(names: Sequence[str], found: Mapping[str, Sequence[float]]) -> list[float]:
    """The seconds of functions together, in each round."""
    each = [found[n] for name in names for n in (name, name + PACKED) if n in found]
    return [sum(seconds) for seconds in zip(*each, strict=True)]


def _sound(
    shipment: Shipment, inside: Inside, winners: Winners, better: Mapping[str, tuple[np.ndarray, float]]
) -> dict[str, tuple[np.ndarray, float]]:
    """Those that compute the right result."""
    measurer = shipment.measurer
    mine = [(p, better[p.task.key][0]) for p in inside.pipelines if p.task.key in better]
    if isinstance(measurer, Prepares):
        measurer.prepare([(p.task, row[None]) for p, row in mine])
    right = {p.task.key for p, row in mine if sound(p, row, measurer, inside.failed)}
    if isinstance(measurer, Prepares):
        measurer.prepare(())
    return {key: one for key, one in better.items() if key in right}


def _written(shipment: Shipment, rows: Mapping[str, np.ndarray], first: Path, number: int) -> Path:
    path = first.with_name(f"inside-{number}.so")
    with quiet():
        files.write(files.compile_library(shipment.ready.lowered, rows, shipment.plugins), path, shipment.sidecar())
    return path
