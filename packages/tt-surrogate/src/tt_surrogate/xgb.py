"""Gradient-boosted trees over knobs or over statements."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tt_spec.roles import Progress
from tt_spec.types import Group, Prediction, Statements, Task, concat_statements

from tt_surrogate.beforehand import Beforehand, as_bytes, booster_of, check, finite, load, rows_of
from tt_surrogate.pack_sum import program_ids, sum_statements
from tt_surrogate.portable import Portable, all_columns
from tt_surrogate.ranges import Ranges
from tt_surrogate.trees import Growth, KnobRanks, KnobSquares, Programs
from tt_surrogate.weights import WeightsError

__all__ = ["XGB"]

_FEW = 8
"""Measured rows that outweigh what was learned beforehand."""


class XGB:
    """XGBoost as AutoTVM (knobs) and Ansor (statements) use it.

    Source: Chen and Guestrin (2016), XGBoost, arXiv:1603.02754; Chen et al. (2018), Learning to Optimize Tensor
    Programs (AutoTVM), arXiv:1805.08166; Zheng et al. (2020), Ansor, OSDI, arXiv:2006.06762.

    Over knobs a row is one configuration. Over statements a program's score is the sum over its statements of the
    trees' output on each statement's 164 features, to which the operator's 10 are appended unless all are zero;
    regression adds an intercept, refitted with every tree. (Ansor has none; labels being positive, its sums grow with
    the number of statements: programs whose counts differ can be ranked in reverse.)
    Features are not scaled: trees do not change under monotone scaling, and TVM's are log2 values already. A feature
    that is not finite counts as missing, a label that is not finite as a failure.

    `Prediction.mean` is in units of the label `best / seconds` for regression. A rank model's scores have no unit:
    they are mapped per task so that the smallest score in training becomes 0 and the largest 1 (rows beyond either
    stay beyond, so order is kept), because simulated annealing's temperature supposes labels in [0, 1]; a task that
    was not in training borrows the range of all. `std` is 0. Before a fit, and where every label is 0, all is 0.

    Tasks are learned together where their columns mean the same: always over statements; over knobs, where the knobs'
    names and kinds agree (one template, several shapes).

    With `weights` it ranks rows before it has seen one, of the kinds of operator that they know. A fit goes on from
    there: the trees of before stay, brought to the task's labels by a line over knobs, and new ones learn the rest.
    Over knobs only regression has weights, whose columns are those of `tt_surrogate.portable`.

    Args:
        inputs: "knobs" or "statements". (default: "knobs")
        objective: "rank" (only the order of labels within a task counts) or "regression". Over knobs "rank" is
            XGBoost's `rank:pairwise`, and regression squared error; over statements see `tt_surrogate.pack_sum`.
            (default: "regression" on knobs, "rank" on statements, by the figures in the README; AutoTVM: rank;
            Ansor: regression)
        shared: Whether one model serves all tasks. (default: True for statements, False for knobs)
        rounds: Trees. (default: 100 on knobs, 60 on statements)
        max_depth: Of each tree. (default: 3 on knobs, as AutoTVM, 4 on statements; MetaSchedule: 10)
        eta: Learning rate. (default: 0.3, as AutoTVM; MetaSchedule: 0.2)
        gamma: Smallest gain of a split. (default: 1e-4, as AutoTVM; MetaSchedule: 1e-3)
        min_child_weight: Smallest sum of curvature in a leaf. (default: 1, as AutoTVM; MetaSchedule: 0)
        reg_lambda: L2 penalty of leaf values. (default: 1)
        tune_lambda: The same of trees that go on from `weights` over statements: those of few rows would undo what many
            taught. (default: 100, by the figures in studies/atformer)
        least_weight: Over statements, regression weighs a program by max(label, this); Ansor's 0 never learns from
            failures. (default: 0.3)
        partners: "rank" compares each program with about this many others, so that time grows with n and not with
            n^2. (default: 64)
        threads: 0 means all. (default: 1, so that timing on the same machine is not disturbed)
        weights: "shipped", a file of `tt train`, or "none". (default: "none")
    """

    inputs: Literal["knobs", "statements"]
    shared: bool
    objective: Literal["rank", "regression"]

    def __init__(
        self,
        inputs: Literal["knobs", "statements"] = "knobs",
        objective: Literal["rank", "regression"] | None = None,
        shared: bool | None = None,
        rounds: int | None = None,
        max_depth: int | None = None,
        eta: float = 0.3,
        gamma: float = 1e-4,
        min_child_weight: float = 1.0,
        reg_lambda: float = 1.0,
        tune_lambda: float = 100.0,
        least_weight: float = 0.3,
        partners: int = 64,
        threads: int = 1,
        weights: str | Path | None = None,
    ) -> None:
        if inputs not in ("knobs", "statements"):
            raise ValueError(f"inputs must be 'knobs' or 'statements', got {inputs!r}")
        if objective not in (None, "rank", "regression"):
            raise ValueError(f"objective must be 'rank' or 'regression', got {objective!r}")
        if importlib.util.find_spec("xgboost") is None:  # here, not after the first measured batch
            raise ModuleNotFoundError("No module named 'xgboost'", name="xgboost")
        on_knobs = inputs == "knobs"
        self.inputs = inputs
        self.objective = objective or ("regression" if on_knobs else "rank")
        self.shared = not on_knobs if shared is None else shared
        self.least_weight, self.partners, self.threads = least_weight, partners, threads
        self.rounds = (100 if on_knobs else 60) if rounds is None else rounds
        depth = (3 if on_knobs else 4) if max_depth is None else max_depth
        self._grow = Growth(self.rounds, depth, eta, gamma, min_child_weight, reg_lambda, threads)
        self._tune = replace(self._grow, reg_lambda=tune_lambda)
        self.weights = None if weights == "none" else weights
        self._learned: Beforehand | None = None
        self._loaded: tuple[str | Path | None, Beforehand | None] = (None, None)

    def prestart(self) -> None:
        """Load XGBoost beside what is done meanwhile: its first import takes 1.5 s of a core, 10 s from a cold disk."""
        if "xgboost" not in sys.modules:
            threading.Thread(target=importlib.import_module, args=("xgboost",), daemon=True).start()
        if self.weights is not None:
            check(self.weights)

    def foreknows(self, task: Task) -> str | None:
        before = self._before()
        return None if before is None or not before.knows(task) else str(before.card.get("device", "this run"))

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        seed, school = int(rng.integers(2**31)), _clean(groups)
        if self.inputs == "knobs" and self.objective == "rank":
            raise WeightsError("xgb over knobs learns beforehand with objective=regression only")
        school = [g for g in school if g[2].any()]
        if not school:
            return
        if start is not None and "trees" not in start:
            raise WeightsError("this checkpoint is of another model: begin again")
        ops = tuple(sorted({task.op for task, *_ in school}))
        columns = tuple(all_columns(task for task, *_ in school)) if self.inputs == "knobs" else ()
        problem = self._programs(school, seed) if self.inputs == "statements" else _squares(school, columns)
        operator = isinstance(problem, Programs) and problem.operator
        learned = Beforehand(None, self.inputs, self.objective, ops, columns, operator)

        def told(booster: Any, done: int, loss: float) -> bool:
            self._learned = replace(learned, booster=booster)  # with the tasks' columns of the rounds before
            return report(Progress(done, self.rounds, loss, lambda: {"trees": as_bytes(booster)}))

        before = booster_of(start["trees"]) if start is not None else None
        if before is None or told(before, before.num_boosted_rounds(), 0.0):
            self._grow(problem, seed, before, told)
        if self._learned is not None:
            self._learned = replace(self._learned, raw=as_bytes(self._learned.booster))

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        before = self._before()
        if before is None:
            raise WeightsError(f"{path}: nothing was learned that could be written")
        before.save(path, card)

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        seed = int(rng.integers(2**31))
        alike: dict[Hashable, list[Group]] = {}
        for task, X, y in _clean(groups):
            alike.setdefault(self._columns(task, X), []).append((task, X, y))
        self.models_: dict[Hashable, _Model] = {}
        for columns, some in alike.items():
            if any(y.any() for _, _, y in some):
                model = self._fit_knobs(some, seed) if self.inputs == "knobs" else self._fit_statements(some, seed)
                model.ranges = Ranges.of(zip((task.key for task, *_ in some), model.all_raw(some), strict=True))
                self.models_[columns] = model

    def predict(self, task: Task, X: Any) -> Prediction:
        mean, std = np.zeros(len(X)), np.zeros(len(X))
        model = getattr(self, "models_", {}).get(self._columns(task, X))
        if not len(X):
            return Prediction(mean, std)
        if model is None:
            before = self._before()
            return Prediction(mean if before is None else _Model(None, before).raw(task, X), std)
        raw = model.raw(task, X)
        if self.objective == "regression":
            return Prediction(raw, std)
        return Prediction(model.ranges.map(task.key, raw), std)

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def _before(self) -> Beforehand | None:
        """The trees learned beforehand, here or in the file of `weights`."""
        if self._learned is None and self.weights is not None and self.weights != self._loaded[0]:
            self._loaded = self.weights, load(self.weights, self.inputs, self.objective)
        return self._learned or self._loaded[1]

    def _columns(self, task: Task, X: Any) -> Hashable:
        """The meaning of the columns of X; only tasks that agree in it are learned together."""
        if self.inputs == "statements":
            return "statements"
        return np.shape(X)[1], *((k.name, k.kind) for k in task.space.knobs)

    def _fit_knobs(self, groups: list[Group], seed: int) -> _Model:
        X, y = finite(np.concatenate([X for _, X, _ in groups])), np.concatenate([y for *_, y in groups])
        if self.objective == "rank":
            tasks = np.repeat(np.arange(len(groups)), [len(y) for *_, y in groups])
            return _Model(self._grow(KnobRanks(X, y, tasks, self.partners), seed))
        before = self._before()
        if before is None or not any(before.knows(task) for task, *_ in groups):
            return _Model(self._grow(KnobSquares(X, y), seed))
        known = np.concatenate([before.margins(task, X) for task, X, _ in groups])
        line = _line(known, y)
        return _Model(self._grow(KnobSquares(X, y, line[0] + line[1] * known), seed), before, line)

    def _fit_statements(self, groups: list[Group], seed: int) -> _Model:
        before = self._before()
        problem = self._programs(groups, seed, before)
        if not len(problem.ids):
            return _Model(None)
        grow = self._grow if before is None else self._tune
        model = _Model(grow(problem, seed), before, operator=problem.operator)
        model.bias = problem.bias(np.concatenate(model.all_raw(groups)))
        return model

    def _programs(self, groups: list[Group], seed: int, before: Beforehand | None = None) -> Programs:
        X, y = concat_statements([X for _, X, _ in groups]), np.concatenate([y for *_, y in groups])
        return Programs(
            X,
            y,
            [len(y) for *_, y in groups],
            self.objective,
            None if before is None else np.concatenate([before.margins(task, X) for task, X, _ in groups]),
            operator=bool(np.any(X.operator)),
            least_weight=self.least_weight,
            partners=self.partners,
            seed=seed,
        )


@dataclass
class _Model:
    """Trees, and everything else that a score needs.

    Args:
        booster: XGBoost's; None where there was nothing to learn from.
        before: Trees of before, whose scores are added.
        line: What is done to the scores of before over knobs: intercept and slope.
        bias: Added to every program's sum.
        operator: Whether the operator's features follow each statement's.
        ranges: Of raw scores in training.
    """

    booster: Any
    before: Beforehand | None = None
    line: tuple[float, float] = (0.0, 1.0)
    bias: float = 0.0
    operator: bool = False
    ranges: Ranges = field(default_factory=Ranges)

    def raw(self, task: Task, X: Any) -> np.ndarray:
        """Scores `(n,)` in the model's own unit."""
        if isinstance(X, Statements):
            return self.all_raw([(task, X, np.zeros(len(X)))])[0]
        return self._known(task, X) + self._trees(finite(X))

    def all_raw(self, groups: Sequence[Group]) -> list[np.ndarray]:
        """Scores of each group's rows; over statements by one question to the trees for all groups."""
        if not all(isinstance(X, Statements) for _, X, _ in groups):
            return [self.raw(task, X) for task, X, _ in groups]
        f = self._trees(np.concatenate([rows_of(X, self.operator) for _, X, _ in groups]))
        found, start = [], 0
        for task, X, _ in groups:
            mine = self._known(task, X) + f[start : (start := start + len(X.values))]
            found.append(self.bias + sum_statements(mine, program_ids(X.offsets), len(X)))
        return found

    def _known(self, task: Task, X: Any) -> Any:
        """The scores of before, of each row or statement."""
        return 0.0 if self.before is None else self.line[0] + self.line[1] * self.before.margins(task, X)

    def _trees(self, rows: np.ndarray) -> np.ndarray:
        if self.booster is None or not len(rows):
            return np.zeros(len(rows))
        base = None if self.before is None else np.zeros(len(rows))  # else it would add the mean of its margins
        f = self.booster.inplace_predict(rows, predict_type="margin", validate_features=False, base_margin=base)
        return f.astype(np.float64)


def _squares(groups: list[Group], columns: Sequence[str]) -> KnobSquares:
    """All tasks' rows in columns that they share."""
    X = [Portable(task, columns)(finite(X)) for task, X, _ in groups]
    return KnobSquares(np.concatenate(X), np.concatenate([y for *_, y in groups]))


def _clean(groups: Sequence[Group]) -> list[Group]:
    """Groups that have rows, with failures' labels 0."""
    return [
        (task, X, np.nan_to_num(np.asarray(y, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0))
        for task, X, y in groups
        if len(X)
    ]


def _line(known: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Intercept and slope that bring scores of before to the labels: least squares, drawn towards slope 1 as by
    `_FEW` rows that said so, and never below 0."""
    x, spread = known - known.mean(), known.var()
    if spread == 0.0:
        return float(y.mean() - known.mean()), 1.0
    slope = (x @ (y - y.mean()) + _FEW * spread) / (x @ x + _FEW * spread)
    slope = min(max(float(slope), 0.0), 2.0)
    return float(y.mean() - slope * known.mean()), slope
