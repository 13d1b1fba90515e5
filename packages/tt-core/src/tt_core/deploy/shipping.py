"""From the operators' winners to a file: compiled, timed, verified and written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tt_spec import Plugins
from tt_spec.errors import ProgramError
from tt_spec.roles import Judges, RacesModels, RunsModels
from tt_spec.serial import JsonObject

from tt_core.compiler import denormals
from tt_core.compiler.arrays import random_array
from tt_core.compiler.quiet import quiet
from tt_core.compiler.target import threads_of
from tt_core.deploy import library as files
from tt_core.deploy.composing import Composed, Inside, compose
from tt_core.deploy.finalists import Winners, beats
from tt_core.deploy.nudging import Nudged, share
from tt_core.deploy.states import STEPS, following
from tt_core.deploy.untuned import UntunedRuns
from tt_core.deploy.verification import Wanted, telling, verify, wanted
from tt_core.errors import ModelError, VerificationError
from tt_core.stages import LEAST_TIMING_S, Stages, timing_s, untuned_run_s

if TYPE_CHECKING:
    from tt_core.models.model import Input
    from tt_core.prepared import Prepared

__all__ = [
    "Shipment",
    "Shipped",
    "Ships",
    "ship",
    "ship_unseen",
    "write_untuned",
]


class Ships(Judges, RacesModels, RunsModels, Protocol):
    """A measurer that can do all that shipping needs."""


@dataclass(frozen=True)
class Shipped:
    """The written file.

    Args:
        before_s: Median latency of the whole model untuned, seconds; None where it was not run.
        after_s: The same of the file.
        verified: What the file's outputs were compared with.
        untuned: Names of the chosen tasks that ship untuned because that is faster.
    """

    before_s: float | None
    after_s: float | None
    verified: dict[str, str]
    untuned: tuple[str, ...]


@dataclass(frozen=True)
class Shipment:
    """The means to write the file.

    Args:
        untuned: The model's library without any winner; see `write_untuned`.
        measurer: Has `run_model` and `race_models`.
        about: What the sidecar says of the run, e.g. recipe and versions.
        stages: Told of each; their `say` of what else is done.
        inside: For a last race inside the model; None goes by the operators' races alone.
    """

    ready: Prepared
    untuned: Path
    measurer: Ships
    about: JsonObject
    plugins: Plugins
    stages: Stages
    inside: Inside | None = None

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
        "denormals": "flush" if denormals.wanted(ready.target) else "keep",
        **({"change": {name: vars(c) for name, c in ready.model.change.items()}} if ready.model.change else {}),
    }


def ship(shipment: Shipment, winners: Winners, path: Path) -> Shipped:
    """Compile the model with the winners, race it with the untuned one, verify the faster's outputs, and write it: the
    very file that was timed and verified. Where the tuned model cannot be compiled, crashes, hangs or computes
    something else, the untuned one ships, which is verified too.

    Raises `VerificationError` if an output of that differs; nothing is written then.
    """
    stages = shipment.stages
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in shipment.ready.model.inputs}
    lowered = shipment.ready.lowered
    run_s = untuned_run_s(sum(t.weight * t.flops for t in lowered.tasks))
    untuned = UntunedRuns(shipment.untuned, shipment.measurer, inputs, share(lowered.mod), run_s)
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        try:
            chosen = _tuned(shipment, winners, untuned, Path(folder, "tuned.so"))
        except (ModelError, ProgramError, VerificationError) as e:
            stages.say(f"the tuned model cannot ship, so the model ships untuned: {e}")
            chosen = _plain(shipment, untuned)
        sidecar = {**shipment.sidecar(), "latency_before_s": chosen.before_s, "latency_after_s": chosen.after_s}
        sidecar["verified"], sidecar["tasks"] = chosen.verified, _tasks(shipment.ready, chosen.winners)
        with stages.stage("writing"):
            files.write(chosen.file, path, sidecar)
    return Shipped(chosen.before_s, chosen.after_s, chosen.verified, chosen.untuned)


def ship_unseen(
    ready: Prepared, winners: Winners, path: Path, about: JsonObject, plugins: Plugins, stages: Stages
) -> Shipped:
    """Compile the model for a machine that is not this one with winners that were raced and checked there, each alone,
    and write it. The whole model is neither timed nor run: nobody here can.

    Args:
        about: What the sidecar says of the run; `device` is where the winners were judged.
    """
    with stages.stage("compiling", "compiling the model"), quiet():
        try:
            library = files.compile_library(ready.lowered, winners.rows, plugins)
        except ModelError as e:
            stages.say(f"the tuned model cannot ship, so the model ships untuned: {e}")
            winners = Winners({}, winners.seconds)
            library = files.compile_library(ready.lowered, {}, plugins)
    names = tuple(t.name for t in ready.tasks if t.key not in winners.rows)
    verified = {"the untuned operators": f"each of {len(winners.rows)} tuned operators alone, on {about['device']}"}
    sidecar = {**_sidecar(ready), **about, "latency_before_s": None, "latency_after_s": None}
    sidecar["verified"], sidecar["tasks"] = verified, _tasks(ready, winners)
    with stages.stage("writing"):
        files.write(library, path, sidecar)
    return Shipped(None, None, verified, names)


@dataclass(frozen=True)
class _Chosen:
    """A verified library: the fields of `Shipped`, and what is in it."""

    file: Path
    winners: Winners
    before_s: float
    after_s: float
    verified: dict[str, str]
    untuned: tuple[str, ...]


def _tuned(shipment: Shipment, winners: Winners, untuned: UntunedRuns, after: Path) -> _Chosen:
    """The model with the winners, of the operators' races or of the one inside it, or the untuned one: the fastest."""
    stages, began = shipment.stages, shipment.stages.spent_s
    with stages.stage("compiling", "compiling the model"), quiet():
        library = files.compile_library(shipment.ready.lowered, winners.rows, shipment.plugins)
        files.write(library, after, shipment.sidecar())
    composed = compose(shipment, winners, after, untuned.first, stages.spent_s - began)
    alone = Composed(after, winners, 0)
    if composed is not None:
        try:
            return _fastest(shipment, [alone, composed], untuned)
        except (ProgramError, VerificationError) as e:
            stages.say(f"the programs that won inside the model cannot ship, so those that won alone do: {e}")
    return _fastest(shipment, [alone], untuned)


def _fastest(shipment: Shipment, made: Sequence[Composed], untuned: UntunedRuns) -> _Chosen:
    """The fastest of some libraries, the first of which has what won alone, or of the untuned one, verified."""
    stages, before = shipment.stages, shipment.untuned
    paths = [str(before), *(str(one.path) for one in made)]
    with stages.stage("timing", "timing the model before and after"):
        plain, *raced = shipment.measurer.race_models(paths, untuned.first, _timing_s(stages))
    ratios = [float(np.median(np.divide(mine, raced[0]))) for mine in raced]
    best = int(np.argmin(ratios))
    before_s, after_s = float(np.median(plain)), float(np.median(raced[best]))
    if beats(plain, raced[best]):
        stages.say("the whole model is faster untuned, so it ships untuned")
        names = tuple(t.name for t in shipment.ready.tasks)
        return _Chosen(before, Winners({}, {}), before_s, before_s, _verified(shipment, before, untuned), names)
    path, winners, others = made[best].path, made[best].winners, made[best].others
    verified = _verified(shipment, path, untuned)
    if others:
        share = f"{others} of {len(winners.rows)} programs that ship"
        stages.say(f"{share} are not the fastest alone, but inside the model")
    return _Chosen(path, winners, before_s, after_s, verified, winners.untuned(shipment.ready.tasks))


def _plain(shipment: Shipment, untuned: UntunedRuns) -> _Chosen:
    """The untuned model."""
    before, stages = shipment.untuned, shipment.stages
    with stages.stage("timing", "timing the model untuned"):
        (timed,) = shipment.measurer.race_models([str(before)], untuned.first, _timing_s(stages))
    seconds, names = float(np.median(timed)), tuple(t.name for t in shipment.ready.tasks)
    return _Chosen(before, Winners({}, {}), seconds, seconds, _verified(shipment, before, untuned), names)


def _verified(shipment: Shipment, library: Path, untuned: UntunedRuns) -> dict[str, str]:
    """The programs that a library's outputs agree with; of a model with states over `STEPS` steps, in each of which all
    get the states that the library has computed."""
    model, stages, rng, done = shipment.ready.model, shipment.stages, np.random.default_rng(1), 1
    tuned = None if library == shipment.untuned else partial(shipment.measurer.run_model, str(library))
    with stages.stage("verifying", "verifying the model"):
        want = telling(model, untuned.first, untuned.run, stages.say, tuned)
        got, said = _agrees(shipment, library, want, untuned)
        while done < STEPS and (after := following(model, want.inputs, got, rng)) is not None:
            done, want = done + 1, wanted(model, after, untuned.run(after))
            try:
                got, _ = _agrees(shipment, library, want, untuned)
            except VerificationError as e:
                raise VerificationError(f"{e}, in step {done} with its states fed back") from e
    return {peer: f"{text}, over {done} steps" if done > 1 else text for peer, text in said.items()}


def _agrees(
    shipment: Shipment, library: Path, want: Wanted, untuned: UntunedRuns
) -> tuple[list[np.ndarray], dict[str, str]]:
    """A library's outputs, and the programs that they agree with; raises `VerificationError`."""
    if library == shipment.untuned:
        return want.untuned, verify(want, want.untuned)
    got, runs = want.tuned or shipment.measurer.run_model(str(library), want.inputs), untuned.nudged(want.inputs)
    return got, verify(want, got, None if runs is None else Nudged(want.untuned, runs))


def _timing_s(stages: Stages) -> float:
    """Seconds for timing the whole model: less where the run's minutes are over."""
    return min(timing_s(stages.minutes), max(LEAST_TIMING_S, stages.left_s / 2))


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
