"""A task's cost models: what they learn from, and what they say of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from tt_spec.faults import blame, checked_prediction, checked_scores
from tt_spec.guidance import Guidance, Which
from tt_spec.rng import rng_for
from tt_spec.roles import Foreknows, ProgramSource, Surrogate
from tt_spec.space import tokens
from tt_spec.statements import KeptStatements
from tt_spec.told import Told
from tt_spec.types import Foreign, Group, Prediction, Statements, Task, labels

__all__ = ["CostModels"]


class CostModels:
    """The surrogate of one task, its draft and the foreign models beside them, fitted on what the task was told.

    Args:
        surrogate: Cost model; `inputs` says what it reads.
        draft: A cheap cost model over knobs, or None.
        told: The task's rows and what they did.
        programs: Makes the statements of rows; may be None where no model reads them.
        guidance: Lets rows of other tasks and devices have a say, or None.
        peers: Those of the run's tasks, this one's among them: a `shared` surrogate learns from all.
        seed: Root of all randomness.
    """

    FEATURE_CACHE, ALL_FEATURES = 4096, 16384
    """Rows of a task, and of all tasks of a run, whose statements are kept: 10 to 20 kB each."""

    OUTGROWN, OWN_LEAST = 1 / 8, 16
    """A surrogate that serves many tasks is fitted again once it could know so many times more rows, or so many times
    more of the task that asks, `OWN_LEAST` at least: all rows are learned anew, and those of a long run take longer
    than a batch of quick programs."""

    FIT_ROWS = 2000
    LEAST = 2
    """Rows from which on a task can teach: labels are shares of the task's best, and a single row's is always 1."""

    SETTLED = 32
    """Rows of the task from which on the surrogate ranks what a draft chose that learned beforehand: with fewer it adds
    nothing to such a draft, and its statements cost a tenth of a minute."""

    JUDGED = 128
    """Rows of the task by which a foreign model is judged."""

    def __init__(
        self,
        task: Task,
        surrogate: Surrogate,
        draft: Surrogate | None,
        told: Told,
        *,
        programs: ProgramSource | None,
        guidance: Guidance | None,
        peers: Callable[[], Sequence[CostModels]],
        seed: int,
    ) -> None:
        if programs is None and surrogate.inputs == "statements":
            raise ValueError("a surrogate that reads statements needs `programs` to make them: pass a measurer")
        if draft is not None and draft.inputs != "knobs":
            raise ValueError(f"a draft model must read knobs, this one reads {draft.inputs}")
        self.task, self.space, self.told = task, task.space, told
        self.surrogate, self.draft, self.programs, self.guidance = surrogate, draft, programs, guidance
        self.seed, self.kept = seed, KeptStatements(self.FEATURE_CACHE)
        self._peers, self._asked = peers, 0
        self.forget()

    def forget(self) -> None:
        """Fit all models again when they are next asked for: what was told means something else now."""
        self._fitted_at = self._fitted_own = self._drafted_at = -1

    @property
    def has_valid(self) -> bool:
        """Whether a row of the task has run."""
        return math.isfinite(self.told.best_s)

    @property
    def ranks(self) -> bool:
        """Whether the surrogate is asked to tell the task's rows apart: by what it learned beforehand or elsewhere, or
        by rows of the task, if it is better at that than the draft."""
        if self.guidance is not None and self.guidance.ready:
            return True
        if self._foreknows(self.surrogate):
            return True
        return len(self.told.usable) >= (self.SETTLED if self._foreknows(self.draft) else self.LEAST)

    @property
    def fitted(self) -> bool:
        """Whether any model has learned something that a score could come from."""
        return max(self._fitted_at, self._drafted_at) >= 0 or (self.guidance is not None and self.guidance.ready)

    def _foreknows(self, model: Surrogate | None) -> bool:
        """Whether the model learned something beforehand that concerns the task."""
        if not isinstance(model, Foreknows):
            return False
        with blame("surrogate", model):
            return model.foreknows(self.task) is not None

    # -- learning -----------------------------------------------------------------------------------------------

    def fit(self, turn: int) -> None:
        """Fit the models that are asked and have outgrown what they know."""
        sources = self._peers() if self.surrogate.shared else [self]
        known = sum(len(p.told) for p in sources)
        if (self.draft is None or self.ranks) and self._outgrown(known):
            rng = rng_for(self.seed, self.task.key, "surrogate", turn)
            groups = [g for p in sources if (g := p.group(self.surrogate.inputs)) is not None]
            with blame("surrogate", self.surrogate):
                self.surrogate.fit(groups, rng)
            for p in sources:
                p._fitted_at, p._fitted_own = known, len(p.told)
        if self.draft is not None and self._drafted_at != len(self.told):
            own = self.group("knobs")
            with blame("surrogate", self.draft):
                self.draft.fit([own] if own else [], rng_for(self.seed, self.task.key, "draft", turn))
            self._drafted_at = len(self.told)

    def _outgrown(self, known: int) -> bool:
        """Whether the surrogate wants to be fitted again, now that it could learn from so many rows: one that serves
        many tasks not for each few rows of one of them."""
        if self._fitted_at < 0 or not self.surrogate.shared:
            return known != self._fitted_at
        own, new = len(self.told) - self._fitted_own, known - self._fitted_at
        enough = max(self.OWN_LEAST, self.OUTGROWN * self._fitted_own)
        return new > 0 and (own >= enough or new >= self.OUTGROWN * self._fitted_at)

    def group(self, inputs: str) -> Group | None:
        """Training data of this task: the best and the newest rows, `LEAST` to `FIT_ROWS` of them, or None."""
        usable = self.told.usable
        if not self.has_valid or len(usable) < self.LEAST:
            return None
        if len(usable) > self.FIT_ROWS:
            best = self.told.best(self.FIT_ROWS // 2, usable)
            usable = np.union1d(best, usable[-self.FIT_ROWS // 2 :])
        y = labels(self.told.expected)[usable]
        codes = self.told.rows[usable]
        if inputs == "knobs":
            return self.task, self.space.encode(codes), y
        statements, ok = self._statements(codes)
        return (self.task, statements, y[ok]) if ok.any() else None

    def guide(self) -> Guidance | None:
        """The foreign models, fitted and judged, if they have a say in the next batch."""
        if self.guidance is None:
            return None
        self.guidance.learn(self.told.trials, self._others, self._foreign_statements, self.surrogate.shared)
        usable = self.told.usable[: self.JUDGED]
        for which in ("surrogate", "draft"):
            model = self.guidance.model(which)
            if model is not None and self.guidance.judges(which, len(usable)):
                y = labels(self.told.expected)[usable]
                self.guidance.judge(which, self.by(model, self.told.rows[usable]).mean, y)
        return self.guidance if self.guidance.ready else None

    def lent(self) -> Foreign | None:
        """The rows measured of this task, for other tasks; None before the first valid result."""
        if not self.has_valid:
            return None
        usable = self.told.usable
        return Foreign(self.task, self.told.rows[usable], self.told.seconds[usable], "model")

    def _others(self) -> list[Foreign]:
        """The rows measured of this run's other tasks of the kind."""
        others = [p for p in self._peers() if p is not self and p.task.op == self.task.op]
        return [found for p in others if (found := p.lent()) is not None]

    # -- saying -------------------------------------------------------------------------------------------------

    def predict(self, model: Surrogate, codes: np.ndarray) -> Prediction:
        """The model's prediction, mixed with the foreign one's."""
        which: Which = "draft" if model is self.draft else "surrogate"
        foreign = None if self.guidance is None else self.guidance.heard(which, alone=not self.has_valid)
        if self.guidance is None or foreign is None:
            return self.by(model, codes)
        read = self._read(model, codes)  # once: both come from the same part of the recipe
        own = self._of(model, *read) if self.has_valid else None
        return self.guidance.mixed(which, own, self._of(foreign, *read))

    def score(self, model: Surrogate, codes: np.ndarray) -> np.ndarray:
        """The model's scores of rows, `(n,)`, by that prediction."""
        prediction = self.predict(model, codes)
        with blame("surrogate", model):
            return checked_scores(model.score(prediction, 1.0), len(codes))

    def by(self, model: Surrogate, codes: np.ndarray) -> Prediction:
        """The prediction of this model alone."""
        return self._of(model, *self._read(model, codes))

    def _read(self, model: Surrogate, codes: np.ndarray) -> tuple[np.ndarray | Statements, np.ndarray]:
        """What the model reads of these rows, and which of them have it: `X` has a row for each of those."""
        codes = np.asarray(codes, dtype=np.int64)
        if model.inputs == "knobs" or not len(codes):
            return self.space.encode(codes), np.ones(len(codes), dtype=bool)
        return self._statements(codes)

    def _of(self, model: Surrogate, X: np.ndarray | Statements, ok: np.ndarray) -> Prediction:
        """The model's prediction of what was read; a row without it is below all others."""
        mean, std = np.zeros(len(ok)), np.zeros(len(ok))
        if ok.any():
            with blame("surrogate", model):
                p = checked_prediction(model.predict(self.task, X), int(ok.sum()))
            mean[ok], std[ok] = p.mean, p.std
            mean[~ok] = p.mean.min() - 1.0
        return Prediction(mean, std)

    # -- statements ---------------------------------------------------------------------------------------------

    def asked(self, turn: int) -> None:
        """The task is asked for a batch: of all tasks, its statements are the last to be given up."""
        self._asked = turn

    def _statements(self, codes: np.ndarray) -> tuple[Statements, np.ndarray]:
        """Statements of these rows, kept within bounds: those of tasks that were asked for longest ago are made again
        if need be."""
        assert self.programs is not None
        with blame("measurer", self.programs):
            found = self.kept.of(tokens(codes), codes, partial(self.programs.features, self.task))
        peers = self._peers()
        kept = sum(len(p.kept) for p in peers)
        for p in sorted((p for p in peers if p is not self), key=lambda p: p._asked):
            if kept <= self.ALL_FEATURES:
                break
            kept -= len(p.kept)
            p.kept.clear()
        return found

    def _foreign_statements(self, task: Task, rows: np.ndarray) -> tuple[Statements, np.ndarray]:
        """Statements of another task's rows; a task of this run has most of its own already."""
        for p in self._peers():
            if (p.task.key, p.space.key) == (task.key, task.space.key):
                return p._statements(rows)
        assert self.programs is not None
        return self.programs.features(task, rows)
