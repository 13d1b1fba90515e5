"""The joint through which rows of other tasks and devices guide a task's search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from tt_spec.faults import blame, checked_foreign_rows
from tt_spec.rng import rng_for
from tt_spec.roles import Surrogate, Transfer
from tt_spec.space import tokens
from tt_spec.statements import KeptStatements
from tt_spec.types import Foreign, Group, Prediction, Statements, Task, concat_statements, labels

__all__ = ["Guidance", "Which"]

Which = Literal["surrogate", "draft"]

Read = Callable[[Task, np.ndarray], tuple[Statements, np.ndarray]]
"""The statements of a task's rows that have a program, and which those are, `(n,)` bool."""


class Guidance:
    """Foreign models of one task, fitted once on what others measured and mixed into the task's own predictions.

    Foreign rows never reach the pipeline's rows: they are no trials, no measurements and no best. A model that does not
    help is dropped; why is in `info`.

    Source: Chen et al. (2018), AutoTVM, arXiv:1805.08166, section 4 (transfer), whose base model's margin fades too.

    Args:
        piece: Chooses foreign rows, says how they fade and when they are useless.
        lent: Rows from the history, nearest first; asked once, when the task is first asked.
        models: Makes a fresh model of the recipe; None where the recipe has no draft.
        kept: Statements that were made before; shared by the guidances of a run.
    """

    LEAST_SAY = 1 / 16
    """Of a mixed prediction: below it the foreign model is not asked."""

    def __init__(
        self,
        piece: Transfer,
        task: Task,
        lent: Callable[[], Sequence[Foreign]],
        models: Callable[[Which], Surrogate | None],
        *,
        seed: int = 0,
        kept: KeptStatements | None = None,
    ) -> None:
        self.piece, self.task, self.seed = piece, task, seed
        self.info: dict[str, Any] = {}
        self._lent, self._make = lent, models
        self._kept = KeptStatements() if kept is None else kept
        self._known: list[Foreign] | None = None
        self._models: dict[Which, Surrogate] = {}
        self._learned: dict[Which, int] = {}
        self._judged: dict[Which, int] = {}
        self._trust: dict[Which, float] = {}
        self._weight = 0.0

    @property
    def ready(self) -> bool:
        """Whether a foreign model has a say."""
        return self._weight > 0.0 and bool(self._models)

    @property
    def random_share(self) -> float:
        """Share of random rows in a batch before the task has a program of its own."""
        return self.piece.random_share if self.ready else 0.0

    def model(self, which: Which) -> Surrogate | None:
        """The foreign model that stands beside the task's own, None without one."""
        return self._models.get(which) if self._weight > 0.0 else None

    def heard(self, which: Which, alone: bool) -> Surrogate | None:
        """The foreign model where its say in a mixed prediction is worth asking for: asking costs as much as the task's
        own model does.

        Args:
            alone: Whether the task has no valid row yet, so that nothing is mixed.
        """
        return self.model(which) if alone or self._say(which) >= self.LEAST_SAY else None

    def learn(self, trials: int, others: Callable[[], Sequence[Foreign]], read: Read, shared: bool) -> None:
        """Weigh the foreign models after so many trials of the task, and fit them if they have something new.

        Args:
            others: Rows of other tasks of this run.
            read: Reads other tasks' rows for a model of statements.
            shared: Whether the task's own surrogate learns from those by itself.
        """
        with blame("transfer", self.piece):
            self._weight = float(self.piece.weight(trials))
            if not 0.0 <= self._weight <= 1.0:
                raise ValueError(f"weight must be in [0, 1], got {self._weight}")
        self.info = {k: v for k, v in self.info.items() if k in ("dropped", "trust")} | {"weight": self._weight}
        if self._weight == 0.0:
            self._models = {}
            return
        if self._known is None:
            self._known = list(self._lent())
        peers = others()
        known = _without(self._known, peers)
        for which in ("surrogate", "draft"):
            found = [*([] if shared and which == "surrogate" else peers), *known]
            many = sum(len(f.rows) for f in found)
            if which not in self.info.get("dropped", {}) and many >= 2 * max(1, self._learned.get(which, 0)):
                self._learned[which] = many
                self._fit(which, found, read)

    def rows(self) -> np.ndarray:
        """Rows of the task that its neighbours' best suggest, `(n, d)`."""
        rng = rng_for(self.seed, self.task.key, "transfer", 0)
        with blame("transfer", self.piece):
            return checked_foreign_rows(self.piece.rows(self.task, self._known or [], rng), self.task.space)

    def mixed(self, which: Which, own: Prediction | None, foreign: Prediction) -> Prediction:
        """Both models' prediction; `own` is None before the task has a valid row."""
        if own is None:
            return foreign
        w = self._say(which)
        return Prediction(w * foreign.mean + (1 - w) * own.mean, w * foreign.std + (1 - w) * own.std)

    def judges(self, which: Which, rows: int) -> bool:
        """Whether a model can be judged by more of the task's rows than before."""
        return rows > self._judged.get(which, 0)

    def judge(self, which: Which, predicted: np.ndarray, y: np.ndarray) -> None:
        """Trust a foreign model as far as it ranks the task's own rows, and drop one that does not.

        Args:
            predicted: Means of the foreign model for the task's first rows, `(n,)`.
            y: Their labels, `(n,)`.
        """
        self._judged[which] = len(y)
        with blame("transfer", self.piece):
            self._trust[which] = float(self.piece.trust(predicted, y))
            if not 0.0 <= self._trust[which] <= 1.0:
                raise ValueError(f"trust must be in [0, 1], got {self._trust[which]}")
            why = self.piece.useless(predicted, y)
        self.info["trust"] = dict(self._trust)
        if why is not None:
            self._models.pop(which, None)
            self.info["dropped"] = {**self.info.get("dropped", {}), which: why}

    # -- inside -------------------------------------------------------------------------------------------------

    def _say(self, which: Which) -> float:
        return self._weight * self._trust.get(which, 1.0)

    def _fit(self, which: Which, found: Sequence[Foreign], read: Read) -> None:
        model = self._make(which)
        if model is None:
            return
        with blame("transfer", self.piece):
            chosen = list(self.piece.choose(self.task, found, model.inputs))
        groups: list[Group] = []
        for f in chosen:
            group = self._knobs(f) if model.inputs == "knobs" else self._programs(f, read)
            if group is not None:
                groups.append(group)
        if not groups:
            return
        self.info["tasks"] = {f"{f.task.name} ({f.source})": len(f.rows) for f in chosen}
        self.info["rows"] = sum(len(y) for *_, y in groups)
        with blame("surrogate", model):
            model.fit(groups if model.shared else [_merged(self.task, groups)], self._rng(which))
        self._models[which] = model
        self._judged.pop(which, None)

    def _rng(self, which: Which) -> np.random.Generator:
        return rng_for(self.seed, self.task.key, f"transfer {which}", self._learned[which])

    def _knobs(self, f: Foreign) -> Group | None:
        with blame("transfer", self.piece):
            found = self.piece.encode(self.task, f)
        if found is None:
            return None
        X, joined = found
        return (_as_if(f.task, self.task), X, labels(f.seconds)[joined]) if len(X) else None

    def _programs(self, f: Foreign, read: Read) -> Group | None:
        """The statements of foreign rows, those known before not made again; None if there are none."""
        names = [(f.task.key, f.task.space.key, name) for name in tokens(f.rows)]
        try:
            statements, ok = self._kept.of(names, f.rows, partial(read, f.task))
        except Exception as e:  # an old row's program is welcome, not needed
            self.info.setdefault("failed", {})[f.task.name] = f"{type(e).__name__}: {e}"[:200]
            return None
        return (f.task, statements, labels(f.seconds)[ok]) if ok.any() else None


def _without(lent: Sequence[Foreign], peers: Sequence[Foreign]) -> list[Foreign]:
    """What is lent but for the peers' rows: a history that this run writes to lends them, too."""
    own: dict[tuple[str, str], set[bytes]] = {}
    for f in peers:
        own.setdefault((f.task.key, f.task.space.key), set()).update(tokens(f.rows))
    left = []
    for f in lent:
        names = own.get((f.task.key, f.task.space.key), set())
        keep = np.array([name not in names for name in tokens(f.rows)], dtype=bool)
        if keep.any():
            left.append(Foreign(f.task, f.rows[keep], f.seconds[keep], f.source))
    return left


def _as_if(foreign: Task, task: Task) -> Task:
    """The foreign task with the columns of `task`."""
    return Task(foreign.key, foreign.name, foreign.op, foreign.target, task.spaces, foreign.flops, foreign.weight)


def _merged(task: Task, groups: Sequence[Group]) -> Group:
    """All rows as the task's own, for a model that knows one task; labels stay relative to each group's best."""
    y = np.concatenate([y for *_, y in groups])
    if isinstance(groups[0][1], Statements):
        return task, concat_statements([X for _, X, _ in groups]), y
    return task, np.concatenate([X for _, X, _ in groups]), y
