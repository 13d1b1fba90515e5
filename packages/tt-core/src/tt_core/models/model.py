"""An imported model: its inputs, its program, and who else can compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tt_core.compiler.arrays import INTEGERS_BELOW

if TYPE_CHECKING:
    import tvm

__all__ = ["FLOAT16_NOTE", "Arrays", "Change", "Fixed", "Input", "Model", "Peer", "Roundings", "Value"]

FLOAT16_NOTE = "{} holds float16: computed in float32, its inputs and outputs stay float16"

Arrays = dict[str, np.ndarray]

Value = bool | float | str | Sequence[float] | np.ndarray
"""An input's value, as a number, numbers, an array or text ("16000", "1,2")."""

Fixed = Mapping[str, Value]
"""Values by input name."""


@dataclass(frozen=True)
class Input:
    """One input: name, shape and dtype as numpy writes it.

    Args:
        below: Random integers are drawn from 0 to `below` - 1: what they index has so many rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int = INTEGERS_BELOW


@dataclass(frozen=True)
class Roundings:
    """The effect of a model's roundings on the last places of its floats.

    Args:
        outputs: Positions of the outputs that depend on a rounded float.
        run: From inputs by name to the peer's outputs, once per draw, everything that is rounded being nudged before.
    """

    outputs: frozenset[int]
    run: Callable[[Arrays], list[list[np.ndarray]]]


@dataclass(frozen=True)
class Peer:
    """Another program that computes the model, against which the tuned file is verified.

    Args:
        name: As it stands in the report: "onnxruntime".
        run: From inputs by name to the outputs, once per way in which the peer computes them (optimised, plain): their
            difference is its own doubt. Empty where the peer is not installed.
        roundings: Of a model that rounds floats to few bits; the last way of `run` is then the graph as it is written.
    """

    name: str
    run: Callable[[Arrays], list[list[np.ndarray]]]
    roundings: Roundings | None = None


@dataclass(frozen=True)
class Change:
    """How far an output is from the one in the model's own arithmetic, over that one's largest magnitude.

    Args:
        largest: The largest difference.
        mean: The root of the mean square.
    """

    largest: float
    mean: float


@dataclass(frozen=True)
class Model:
    """An imported model.

    Args:
        name: For file names and people.
        mod: Relax module; constants inside, inputs as parameters of "main".
        peer: What else can compute it.
        notes: What the user should know of the import, a line each.
        precision: The arithmetic of a quantised model: its own, "exact", or "float32".
        change: By how much float32 changes each output, where that is known.
    """

    name: str
    mod: tvm.IRModule
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    peer: Peer | None = None
    notes: tuple[str, ...] = ()
    precision: str = "exact"
    change: Mapping[str, Change] = field(default_factory=dict)
