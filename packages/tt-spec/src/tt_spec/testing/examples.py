"""Small tasks and contexts on which contracts judge pieces."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tt_spec.clock import VirtualClock
from tt_spec.pieces.synthetic import SyntheticMeasurer, synthetic_task
from tt_spec.rng import draw
from tt_spec.serial import to_json
from tt_spec.space import Knob, Limit, Space, tokens
from tt_spec.types import Context, Prediction, Statements, Task, labels

__all__ = [
    "check_info",
    "context",
    "mixed_space",
    "mixed_task",
    "statements",
    "tiny_task",
    "wide_task",
    "within",
]

_TILES = ((1, 1, 16), (1, 2, 8), (1, 4, 4), (2, 2, 4), (2, 4, 2), (4, 4, 1), (8, 2, 1), (16, 1, 1))


def mixed_space() -> Space:
    """Tiles, ordered, unordered and conditional knobs (one of them nested), and a limit."""
    return Space(
        (
            Knob("sketch", "choice", ("plain", "packed", "cached")),
            Knob("tile", "tile", _TILES),
            Knob("lanes", "choice", (4, 8, 16), active_if=(0, (1,))),
            Knob("inner", "tile", _TILES, active_if=(0, (1, 2))),
            Knob("cache_at", "location", (0, 1, 2, 3), active_if=(0, (2,))),
            Knob("deep", "choice", ("yes", "no"), active_if=(4, (2, 3))),
            Knob("unroll", "choice", (0, 16, 64, 512)),
            Knob("only", "choice", ("one",)),
        ),
        limits=(Limit(((1, 2), (3, 2)), 64, "the inner body is too large"),),
        name="mixed",
    )


def mixed_task() -> Task:
    """Over `mixed_space`: what real spaces look like."""
    return Task("contract-mixed", "mixed", "synthetic", "none", (mixed_space(),), flops=1e6)


def wide_task() -> Task:
    """4096 rows of four ordered knobs."""
    return synthetic_task("wide")


def tiny_task() -> Task:
    """Six rows."""
    space = Space((Knob("a", "choice", (1, 2, 4)), Knob("b", "choice", ("x", "y"))), name="tiny")
    return Task("contract-tiny", "tiny", "synthetic", "none", (space,), flops=1e6)


def context(
    task: Task, rows: np.ndarray | int = 0, *, seed: int = 0, fitted: bool = False, fail: bool = False, pending: int = 0
) -> Context:
    """The context that the pipeline would show after `rows` (a matrix, or how many to draw) were measured.

    The model, if `fitted`, knows the truth up to a little noise; `fail` makes every row a failed build.
    """
    space, truth = task.space, SyntheticMeasurer()
    rng = np.random.default_rng([seed, 1])
    if isinstance(rows, int):
        rows = draw(space, set(), rows, rng)
    waiting = draw(space, set(tokens(rows)), pending, rng)
    seconds = np.full(len(rows), np.inf) if fail else truth.seconds(task, rows)
    if len(rows) > 3:
        seconds[1] = np.inf
    scale = float(seconds.min()) if len(rows) and np.isfinite(seconds).any() else 1e-3

    def predict(codes: np.ndarray) -> Prediction:
        return Prediction(scale / truth.seconds(task, np.asarray(codes)), np.full(len(codes), 0.05))

    def score(codes: np.ndarray) -> np.ndarray:
        return predict(codes).mean if fitted else np.zeros(len(codes))

    return Context(
        task=task,
        space=space,
        rows=rows,
        y=labels(seconds),
        errors=[None if np.isfinite(s) else "build" for s in seconds],
        pending=waiting,
        best_s=float(seconds.min(initial=np.inf)),
        predict=predict,
        score=score,
        rng=np.random.default_rng([seed, 2]),
        clock=VirtualClock(),
        fitted=fitted,
        seen=frozenset([*tokens(rows), *tokens(waiting)]),
    )


def statements(n: int, rng: np.random.Generator) -> Statements:
    """Ragged features of `n` programs with one to five statements each."""
    lengths = rng.integers(1, 6, size=n)
    values = rng.exponential(2.0, size=(int(lengths.sum()), 164))
    return Statements(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), rng.random((n, 10)))


def check_info(info: dict[str, Any]) -> None:
    """Remarks go into the event log, so they must serialise."""
    assert isinstance(info, dict), f"info must be a dict, got {type(info).__name__}"
    try:
        to_json(info)
    except ValueError as e:
        raise AssertionError(f"info must be numbers, text, lists or dicts of them: {e}") from e


def within(seconds: float, what: str, call: Callable[[], Any]) -> Any:
    """The call's result; fails the test if it takes longer."""
    out: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            out.append(call())
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not out:
        pytest.fail(f"{what} did not end within {seconds:g} s")
    return out[0]


@contextlib.contextmanager
def untouched(**arrays: np.ndarray) -> Any:
    """Fails the test if an argument changed."""
    before = {k: v.copy() for k, v in arrays.items()}
    yield
    for name, array in arrays.items():
        assert np.array_equal(array, before[name]), f"{name} is an argument and must not be changed"
