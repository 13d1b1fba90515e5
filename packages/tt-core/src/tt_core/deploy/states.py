"""A model's states: inputs that are meant to be given an output of the step before.

Nothing in a file says so, but the names and shapes do: `state` and `stateN`, `h0` and `hn`, `cache_in` and `cache_out`.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tt_core.compiler.arrays import random_array

if TYPE_CHECKING:
    from tt_core.models.model import Arrays, Model

__all__ = ["STEPS", "following", "paired"]

STEPS = 10
"""Steps for which a model with states is followed."""

_MARKS = {
    *("in", "input", "out", "output", "new", "next", "prev", "previous", "past", "present", "cur", "current", "init"),
    *("initial", "final", "last", "old", "updated", "n", "t"),
}
"""Words that tell a state before a step from the one after it."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

Kind = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def paired(inputs: Mapping[str, Kind], outputs: Mapping[str, Kind]) -> dict[str, str]:
    """The inputs that are states, each with the output that is its next value.

    Both have one shape and dtype, and one name once the words are left out that tell before from after: with the
    numbers in it (`cache_in_1` and `cache_out_1`) or, where that finds none, without (`h0` and `hn`). A name that is
    then shared by several is no state.
    """
    found: dict[str, str] = {}
    for numbers in (True, False):
        before, after = ({n: _stem(n, numbers) for n in names} for names in (inputs, outputs))
        many = Counter(before.values()) + Counter(after.values())
        for (name, stem), (other, same) in itertools.product(before.items(), after.items()):
            if stem and stem == same and many[stem] == 2 and inputs[name] == outputs[other]:
                found.setdefault(name, other)
    return found


def _stem(name: str, numbers: bool) -> str:
    """The name's words but for those of `_MARKS`; empty if only numbers are left."""
    words = [w.lower() for w in _WORD.findall(name)]
    kept = [w[:1] if len(w) == 2 and w[1] == "n" else w for w in words if w not in _MARKS]
    letters = [w for w in kept if not w.isdigit()]
    return " ".join(kept if numbers and letters else letters)


def following(model: Model, inputs: Arrays, outputs: Sequence[np.ndarray], rng: np.random.Generator) -> Arrays | None:
    """The inputs of the step after the one with these inputs and outputs: its states, and the rest drawn anew; None for
    a model without states."""
    after = dict(zip(model.outputs, outputs, strict=True))
    kinds = {name: (a.shape, str(a.dtype)) for name, a in inputs.items()}
    fed = paired(kinds, {name: (a.shape, str(a.dtype)) for name, a in after.items()})
    if not fed:
        return None
    drawn = {i.name: random_array(i.shape, i.dtype, rng, i.below) for i in model.inputs if i.name not in fed}
    return {name: after[fed[name]] if name in fed else drawn[name] for name in inputs}
