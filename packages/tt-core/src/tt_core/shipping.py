"""From measured programs to a file: the finalists race, the winners are verified, compiled, timed and written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tt_spec import Pipeline, Plugins

from tt_core import deploy
from tt_core.backend import random_array
from tt_core.errors import VerificationError
from tt_core.quiet import quiet
from tt_core.target import threads_of

if TYPE_CHECKING:
    from tt_core.tuning import Prepared

__all__ = ["Shipped", "Winners", "race", "ship"]


@dataclass(frozen=True)
class Winners:
    """The program of each task that ships, by task key.

    Args:
        rows: `(d,)` each; a task without a valid program is missing and stays untuned.
        seconds: Their latencies, re-timed; inf for a task without one.
    """

    rows: dict[str, np.ndarray]
    seconds: dict[str, float]

    def merged(self, other: Winners) -> Winners:
        """These and the other tasks' programs."""
        return Winners({**self.rows, **other.rows}, {**self.seconds, **other.seconds})


@dataclass(frozen=True)
class Shipped:
    """What was written: median latency of the whole model before and after, seconds, and what it was compared with."""

    before_s: float
    after_s: float
    verified: dict[str, str]


def race(pipelines: Sequence[Pipeline], measurer: Any, keep: int = 4, within: float = 1.1) -> Winners:
    """Time each task's best few again, interleaved, and verify the winner.

    Args:
        measurer: Its workers have the backend's `race` and `check`.
        keep: Finalists of a task, at most.
        within: How many times the best's seconds a finalist may have taken.

    Raises:
        VerificationError: Every finalist of a task computes something else; names the task.
    """
    rows: dict[str, np.ndarray] = {}
    seconds: dict[str, float] = {}
    for p in pipelines:
        top = p.top(keep)
        seconds[p.task.key] = p.best_s
        near = [row for row, s in top if s <= within * p.best_s]
        wrong = None
        while near:
            timed = measurer.call("race", p.task, np.stack(near), exclusive=True)
            medians = [float(np.median(t)) for t in timed]
            winner = int(np.argmin(medians))
            wrong = measurer.call("check", p.task, near[winner], exclusive=True)
            if wrong is None:
                rows[p.task.key], seconds[p.task.key] = near[winner], medians[winner]
                break
            p.disqualify(near.pop(winner))
        if wrong is not None and p.task.key not in rows:
            raise VerificationError(f"operator {p.task.name}: {wrong}; nothing was written")
    return Winners(rows, seconds)


def ship(
    ready: Prepared,
    untuned: Any,
    winners: Winners,
    path: Path,
    measurer: Any,
    about: dict[str, Any],
    plugins: Plugins,
    say: Callable[[str], None],
) -> Shipped:
    """Compile the model with the winners, verify its outputs, time it beside the untuned one, and write it.

    Args:
        untuned: The model's compiled library without any winner.
        measurer: Its workers have the backend's `run_model` and `time_model`.
        about: What the sidecar says of the run, e.g. recipe and versions.

    Raises:
        VerificationError: An output differs; nothing is written.
    """
    sidecar: dict[str, Any] = {
        "inputs": [_input(i) for i in ready.model.inputs],
        "outputs": list(ready.model.outputs),
        "target": str(ready.target),
        "threads": threads_of(ready.target),
        **about,
    }
    rng = np.random.default_rng(0)
    inputs = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in ready.model.inputs}
    say("compiling the model")
    with tempfile.TemporaryDirectory(prefix="tt-") as folder:
        before, after = Path(folder, "untuned.so"), Path(folder, "tuned.so")
        with quiet():
            deploy.write(untuned, before, sidecar)
            library = deploy.compile_library(ready.lowered, winners.rows, plugins)
            deploy.write(library, after, sidecar)
        say("verifying the model")
        got = measurer.call("run_model", None, str(after), inputs, exclusive=True)
        want = measurer.call("run_model", None, str(before), inputs, exclusive=True)
        verified = deploy.verify(ready.model, inputs, got, want, say)
        say("timing the model before and after")
        before_s = float(np.median(measurer.call("time_model", None, str(before), inputs, exclusive=True)))
        after_s = float(np.median(measurer.call("time_model", None, str(after), inputs, exclusive=True)))
    sidecar["latency_before_s"], sidecar["latency_after_s"] = before_s, after_s
    sidecar["verified"] = verified
    sidecar["tasks"] = json.loads(
        json.dumps(
            [
                {
                    "name": t.name,
                    "weight": t.weight,
                    "latency_s": winners.seconds[t.key] if t.key in winners.rows else None,
                    "knobs": t.space.decode(winners.rows[t.key]) if t.key in winners.rows else None,
                }
                for t in ready.lowered.tasks
            ],
            default=str,
        )
    )
    with quiet():
        deploy.write(library, path, sidecar)
    return Shipped(before_s, after_s, verified)


def _input(i: Any) -> dict[str, Any]:
    """An input as the sidecar keeps it; integers with the range from which random ones are drawn."""
    range_ = {"below": i.below} if np.dtype(i.dtype).kind in "iu" else {}
    return {"name": i.name, "shape": list(i.shape), "dtype": i.dtype, **range_}
