"""Choosing rows: surrogates, searchers, samplers, transfer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from tt_spec.types import Context, Foreign, Group, Prediction, Proposal, Selection, Task

__all__ = [
    "Foreknows",
    "Learns",
    "Pretrains",
    "Progress",
    "Sampler",
    "Saves",
    "Searcher",
    "Surrogate",
    "Transfer",
]


@runtime_checkable
class Surrogate(Protocol):
    """A model of labels (`best / seconds`, failures 0)."""

    inputs: Literal["knobs", "statements"]
    shared: bool
    """Whether one model serves all tasks; else each task has its own."""

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None: ...

    def predict(self, task: Task, X: Any) -> Prediction: ...

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        """Acquisition `(n,)`, higher is better; `best` is the best label so far."""
        ...


@dataclass(frozen=True)
class Progress:
    """Where a pre-training stands.

    Args:
        done, total: Rounds that are over, and in all: epochs, or trees.
        loss: Mean over what the last round learned from, in the model's own unit.
        state: Everything that is needed to go on from here, as arrays by name, without object arrays; made when called.
    """

    done: int
    total: int
    loss: float
    state: Callable[[], dict[str, np.ndarray]]


@runtime_checkable
class Pretrains(Protocol):
    """A cost model that learns from many tasks beforehand, so that it can rank a task's rows before it has seen any;
    `fit` then goes on from there."""

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Learn from one group per task and device; programs are compared within a group only.

        Args:
            report: Called after every round, when `predict` answers as learned so far; False ends the training.
            start: A `state` of a training with the same groups, options and seed of `rng`: the model is as it was
                then, that round is reported again, and training goes on as if it had never stopped.

        Raises `UserError` where the model's options exclude it, e.g. over knobs whose columns differ from task to task,
        and for a `start` of another model.
        """
        ...


@runtime_checkable
class Saves(Protocol):
    """A cost model that keeps in a file what it learned beforehand."""

    weights: str | Path | None
    """A file that `save` wrote: an option of the constructor, read at `prestart` or when first needed, which raises
    `UserError` where it cannot be used. None learns from nothing."""

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        """Write what `pretrain` learned, whole or not at all; `fit` does not change it.

        Args:
            card: Plain data that goes with it: what it learned from, and how well.
        """
        ...


@runtime_checkable
class Foreknows(Protocol):
    """A cost model that may rank a task's rows before it has seen one of them, because it learned beforehand."""

    def foreknows(self, task: Task) -> str | None:
        """Where it learned, the machines with ", " between them, if it can rank the task's rows before its first `fit`;
        else None. Raises `UserError` where what it should know cannot be read."""
        ...


@runtime_checkable
class Searcher(Protocol):
    """Proposes configurations."""

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Distinct, canonical rows that are `ctx.fresh`: `n` or a small multiple, so that the sampler has a choice;
        fewer when the space is exhausted."""
        ...


@runtime_checkable
class Learns(Protocol):
    """A searcher that learns from results."""

    def tell(self, ctx: Context, rows: np.ndarray, y: np.ndarray) -> None:
        """Rows `(n, d)` of a batch that were measured, and their labels `(n,)`."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Picks which proposed rows to measure."""

    def select(self, ctx: Context, proposal: Proposal, n: int) -> Selection:
        """Up to `n` distinct rows that are `ctx.fresh`; `complete=True` where fewer are meant to be the whole batch."""
        ...


@runtime_checkable
class Transfer(Protocol):
    """Lets rows of other tasks and devices guide a task's search. One per task; holds nothing that is learned.

    A second model of the recipe's kind learns from what it chooses, and has a say beside the task's own as long as it
    weighs something (`tt_spec.Guidance`).
    """

    most: int
    """Rows asked of a store, at most."""
    random_share: float
    """Share of random rows in the task's batches before it has a program of its own."""

    def choose(self, task: Task, lent: Sequence[Foreign], inputs: Literal["knobs", "statements"]) -> list[Foreign]:
        """The data that a model which reads `inputs` learns from: some of `lent`, or parts of their rows."""
        ...

    def encode(self, task: Task, foreign: Foreign) -> tuple[np.ndarray, np.ndarray] | None:
        """Foreign rows in the columns of `task.space.encode`: features `(m, p)`, and which of the rows `(n,)` bool
        have them; None where the spaces have nothing in common."""
        ...

    def rows(self, task: Task, lent: Sequence[Foreign], rng: np.random.Generator) -> np.ndarray:
        """Rows of the task's space to measure first `(n, d)`, canonical and allowed; may be none."""
        ...

    def weight(self, trials: int) -> float:
        """The foreign model's weight in [0, 1], after so many trials of the task; never grows with them."""
        ...

    def trust(self, predicted: np.ndarray, y: np.ndarray) -> float:
        """The share of its weight that a foreign model deserves, in [0, 1], from its means for the task's first rows
        `(n,)` and their labels `(n,)`."""
        ...

    def useless(self, predicted: np.ndarray, y: np.ndarray) -> str | None:
        """Why the foreign model is dropped, from its means for the task's first rows `(n,)` and their labels `(n,)`;
        None keeps it."""
        ...
