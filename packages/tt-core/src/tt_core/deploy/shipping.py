"""From measured programs to a file: the finalists race, the winners are verified, compiled, timed and written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tt_spec import Measurement, Pipeline, Plugins, Task
from tt_spec.roles import Checks, Races, RacesModels, RunsModels
from tt_spec.serial import JsonObject

from tt_core.compiler.arrays import random_array
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import threads_of
from tt_core.deploy import library as files
from tt_core.deploy.verification import verify
from tt_core.errors import VerificationError
from tt_core.shares import heavy, shares
from tt_core.stages import Stages

if TYPE_CHECKING:
    from tt_core.models.model import Input
    from tt_core.prepared import Prepared

__all__ = ["Shipment", "Shipped", "Ships", "Winners", "beats", "leaders", "race", "ship", "write_untuned"]

ROUNDS, ROUND_MS = 10, 10.0

KEEP, WITHIN = 4, 1.1
"""Finalists of a task at most, and how many times the best's seconds one may have taken."""


class Ships(Races, Checks, RacesModels, RunsModels, Protocol):
    """A measurer that can do all that shipping needs."""


@dataclass(frozen=True)
class Winners:
    """The program of each task that ships, by task key.

    Args:
        rows: `(d,)` each; a task is missing and stays untuned that has no valid program, or is faster so.
        seconds: Latencies of what ships, re-timed; inf for a task without a valid program.
    """

    rows: dict[str, np.ndarray]
    seconds: dict[str, float]

    def merged(self, other: Winners) -> Winners:
        """These and the other tasks' programs."""
        return Winners({**self.rows, **other.rows}, {**self.seconds, **other.seconds})

    def untuned(self, tasks: Sequence[Task]) -> tuple[str, ...]:
        """Names of the tasks whose untuned program won."""
        return tuple(t.name for t in tasks if t.key not in self.rows and np.isfinite(self.seconds[t.key]))


@dataclass(frozen=True)
class Shipped:
    """The written file.

    Args:
        before_s: Median latency of the whole model untuned, seconds.
        after_s: The same of the file.
        verified: What the file's outputs were compared with.
        untuned: Names of the chosen tasks that ship untuned because that is faster.
    """

    before_s: float
    after_s: float
    verified: dict[str, str]
    untuned: tuple[str, ...]


def leaders(pipelines: Sequence[Pipeline]) -> Winners:
    """The best of each task as measured while tuning."""
    found = {p.task.key: p.top(1) for p in pipelines}
    return Winners({k: top[0][0] for k, top in found.items() if top}, {p.task.key: p.best_s for p in pipelines})


def race(
    pipelines: Sequence[Pipeline],
    measurer: Ships,
    wrong: Callable[[Measurement], None],
    enough: Callable[[], bool] = lambda: False,
) -> Winners:
    """Time each task's finalists again, interleaved with its untuned program, and verify the winner.

    The heaviest tasks come first, and only those that hold 95 % of the latency have several finalists: among the others
    nothing is at stake. A finalist that computes something else loses its time in the pipeline.

    Args:
        measurer: Has `race` and `check`.
        wrong: Told of each such finalist.
        enough: Asked before each task whether time is up; the rest are verified and ship as they were measured.

    Raises:
        VerificationError: Every finalist of a task computes something else; names the task.
    """
    rows: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    tasks = [p.task for p in pipelines]
    matters = heavy(shares(tasks, [p.best_s for p in pipelines])) if tasks else []
    order = sorted(zip(pipelines, matters, strict=True), key=lambda pm: -_latency_s(pm[0]))
    for p, many in order:
        row, seconds[p.task.key] = _winner(p, measurer, wrong, KEEP if many else 1, not enough())
        if row is not None:
            rows[p.task.key] = row
    return Winners(rows, seconds)


def _latency_s(p: Pipeline) -> float:
    return p.task.weight * p.best_s if np.isfinite(p.best_s) else 0.0


def _winner(
    p: Pipeline, measurer: Ships, wrong: Callable[[Measurement], None], keep: int, timed: bool
) -> tuple[np.ndarray | None, float]:
    """The row that ships, None for the untuned program, and its seconds.

    Args:
        keep: Finalists, at most.
        timed: Whether they race; else the best that computes the right result ships.
    """
    near = [(row, s) for row, s in p.top(KEEP) if s <= WITHIN * p.best_s]
    seconds, why = p.best_s, None
    while near:
        medians = [s for _, s in near]
        winner = 0
        if timed:
            rows = np.stack([row for row, _ in near[:keep]])
            *times, untuned = measurer.race(p.task, rows, ROUNDS, ROUND_MS, True)
            medians = [float(np.median(t)) for t in times]
            winner = int(np.argmin(medians))
            if beats(untuned, times[winner]):
                return None, float(np.median(untuned))
        why = measurer.check(p.task, near[winner][0])
        if why is None:
            return near[winner][0], medians[winner]
        found = _wrong(p.task, near.pop(winner)[0], why)
        p.restore([found])
        wrong(found)
    if why is not None:
        raise VerificationError(f"operator {p.task.name}: {why}; nothing was written")
    return None, seconds


def _wrong(task: Task, row: np.ndarray, why: str) -> Measurement:
    config, knobs = tuple(map(int, row)), task.space.decode(row)
    return Measurement(task.key, task.space.key, config, knobs, error="wrong-result", why=why, origin="finalist")


def beats(seconds: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the first of two programs that raced is faster beyond noise: in nine of ten rounds, which two equal ones
    do in 1 % of all races."""
    return len(seconds) == len(other) and float(np.mean(np.less(seconds, other))) >= 0.9


@dataclass(frozen=True)
class Shipment:
    """The means to write the file.

    Args:
        untuned: The model's library without any winner; see `write_untuned`.
        measurer: Has `run_model` and `race_models`.
        about: What the sidecar says of the run, e.g. recipe and versions.
        stages: Told of each; their `say` of what else is done.
    """

    ready: Prepared
    untuned: Path
    measurer: Ships
    about: JsonObject
    plugins: Plugins
    stages: Stages

    def sidecar(self) -> JsonObject:
        """The part of the sidecar that does not depend on what ships."""
        return {**_sidecar(self.ready), **self.about}


def write_untuned(ready: Prepared, path: Path, plugins: Plugins) -> None:
    """Compile the model as it is, to compare with; raises `ModelError` for one that cannot be deployed."""
    with quiet():
        files.write(files.compile_library(ready.lowered, {}, plugins), path, _sidecar(ready))


def _sidecar(ready: Prepared) -> JsonObject:
    return {
        "inputs": [_input(i) for i in ready.model.inputs],
        "outputs": list(ready.model.outputs),
        "target": str(ready.target),
        "threads": threads_of(ready.target),
        "precision": ready.model.precision,
        **({"change": {name: vars(c) for name, c in ready.model.change.items()}} if ready.model.change else {}),
    }


def ship(shipment: Shipment, winners: Winners, path: Path) -> Shipped:
    """Compile the model with the winners, race it with the untuned one, verify the faster's outputs, and write it: the
    very file that was timed and verified.

    Raises `VerificationError` if an output differs; nothing is written then.
    """
    ready, measurer, stages = shipment.ready, shipment.measurer, shipment.stages
    sidecar = shipment.sidecar()
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in ready.model.inputs}
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        before, after = shipment.untuned, Path(folder, "tuned.so")
        with stages.stage("compiling", "compiling the model"), quiet():
            files.write(files.compile_library(ready.lowered, winners.rows, shipment.plugins), after, sidecar)
        with stages.stage("timing", "timing the model before and after"):
            timed = measurer.race_models([str(before), str(after)], inputs, _models_s(stages))
        before_s, after_s = (float(np.median(t)) for t in timed)
        names = winners.untuned(ready.tasks)
        if beats(*timed):
            stages.say("the whole model is faster untuned, so it ships untuned")
            after, after_s, winners = before, before_s, Winners({}, {})
            names = tuple(t.name for t in ready.tasks)
        with stages.stage("verifying", "verifying the model"):
            want = measurer.run_model(str(before), inputs)
            got = want if after == before else measurer.run_model(str(after), inputs)
            verified = verify(ready.model, inputs, got, want, stages.say)
        sidecar["latency_before_s"], sidecar["latency_after_s"] = before_s, after_s
        sidecar["verified"], sidecar["tasks"] = verified, _tasks(ready, winners)
        with stages.stage("writing"):
            files.write(after, path, sidecar)
    return Shipped(before_s, after_s, verified, names)


def _models_s(stages: Stages) -> float:
    """Seconds for timing the whole model: 6, or 2 where the run's minutes are over."""
    return min(6.0, max(2.0, stages.left_s / 2))


def _tasks(ready: Prepared, winners: Winners) -> list[JsonObject]:
    """The model's tasks as the sidecar keeps them: plain JSON."""
    listed = [
        {
            "name": t.name,
            "weight": t.weight,
            "latency_s": winners.seconds[t.key] if t.key in winners.rows else None,
            "knobs": t.space.decode(winners.rows[t.key]) if t.key in winners.rows else None,
        }
        for t in ready.lowered.tasks
    ]
    return json.loads(json.dumps(listed, default=str))


def _input(i: Input) -> JsonObject:
    """An input as the sidecar keeps it; integers with the range from which random ones are drawn."""
    range_ = {"below": i.below} if np.dtype(i.dtype).kind in "iu" else {}
    return {"name": i.name, "shape": list(i.shape), "dtype": i.dtype, **range_}
