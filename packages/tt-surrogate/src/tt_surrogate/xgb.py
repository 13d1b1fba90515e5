"""Gradient-boosted trees over knobs or over statements."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from tt_spec.types import Group, Prediction, Statements, Task, concat_statements

from tt_surrogate.pack_sum import draw_pairs, pairwise_logistic, program_ids, squared_error, sum_statements

__all__ = ["XGB"]


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
        least_weight: Over statements, regression weighs a program by max(label, this); Ansor's 0 never learns from
            failures. (default: 0.3)
        partners: "rank" compares each program with about this many others, so that time grows with n and not with
            n^2. (default: 64)
        threads: 0 means all. (default: 1, so that timing on the same machine is not disturbed)
    """

    inputs: Literal["knobs", "statements"]
    shared: bool

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
        least_weight: float = 0.3,
        partners: int = 64,
        threads: int = 1,
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
        self.rounds = (100 if on_knobs else 60) if rounds is None else rounds
        self.max_depth = (3 if on_knobs else 4) if max_depth is None else max_depth
        self.eta, self.gamma, self.min_child_weight, self.reg_lambda = eta, gamma, min_child_weight, reg_lambda
        self.least_weight, self.partners, self.threads = least_weight, partners, threads

    def prestart(self) -> None:
        """Load XGBoost beside what is done meanwhile: its first import takes 1.5 s of a core, 10 s from a cold disk."""
        if "xgboost" not in sys.modules:
            threading.Thread(target=importlib.import_module, args=("xgboost",), daemon=True).start()

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        seed = int(rng.integers(2**31))
        alike: dict[Hashable, list[Group]] = {}
        for task, X, y in groups:
            if len(X):
                y = np.nan_to_num(np.asarray(y, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
                alike.setdefault(self._columns(task, X), []).append((task, X, y))
        self.models_: dict[Hashable, _Model] = {}
        for columns, some in alike.items():
            if any(y.any() for _, _, y in some):
                model = self._fit_knobs(some, seed) if self.inputs == "knobs" else self._fit_statements(some, seed)
                model.note_ranges(some)
                self.models_[columns] = model

    def predict(self, task: Task, X: Any) -> Prediction:
        mean, std = np.zeros(len(X)), np.zeros(len(X))
        model = getattr(self, "models_", {}).get(self._columns(task, X))
        if model is None or not len(X):
            return Prediction(mean, std)
        raw = model.raw(X)
        if self.objective == "regression":
            return Prediction(raw, std)
        low, high = model.ranges.get(task.key, model.overall)
        return Prediction((raw - low) / (high - low) if high > low else mean, std)

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def _columns(self, task: Task, X: Any) -> Hashable:
        """The meaning of the columns of X; only tasks that agree in it are learned together."""
        if self.inputs == "statements":
            return "statements"
        return np.shape(X)[1], *((k.name, k.kind) for k in task.space.knobs)

    def _fit_knobs(self, groups: list[Group], seed: int) -> _Model:
        from xgboost import QuantileDMatrix

        X, y = _finite(np.concatenate([X for _, X, _ in groups])), np.concatenate([y for _, _, y in groups])
        if self.objective == "regression":
            return _Model(self._train(QuantileDMatrix(X, y, nthread=self.threads), seed, "reg:squarederror"))
        task = np.repeat(np.arange(len(groups)), [len(y) for _, _, y in groups])
        return _Model(
            self._train(
                QuantileDMatrix(X, y, qid=task, nthread=self.threads),
                seed,
                "rank:pairwise",
                lambdarank_pair_method="mean",  # "topk" never compares failures with middling rows
                lambdarank_num_pair_per_sample=self.partners,
                lambdarank_normalization=False,
            )
        )

    def _fit_statements(self, groups: list[Group], seed: int) -> _Model:
        from xgboost import QuantileDMatrix

        programs, y = concat_statements([X for _, X, _ in groups]), np.concatenate([y for _, _, y in groups])
        sizes = [len(y) for _, _, y in groups]
        n, ids, operator = len(y), program_ids(programs.offsets), bool(np.any(programs.operator))
        if not len(ids):
            return _Model(None)
        rng = np.random.default_rng(seed)
        weight = np.maximum(y, self.least_weight)
        regression = self.objective == "regression"
        # A leaf may move all statements of a program at once, so the sum moves by as many steps: without this factor
        # (it bounds the full Hessian by a diagonal) programs of many statements overshoot and diverge.
        together = np.diff(programs.offsets)

        def bias(F: np.ndarray) -> float:
            return float(np.average(y - F, weights=weight)) if regression else 0.0

        def objective(f: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            F = sum_statements(f, ids, n)
            if regression:
                _, grad, bend = squared_error(F + bias(F), y, weight)
            else:
                better, worse = draw_pairs(y, sizes, self.partners // 2, rng)
                gain = 2.0 ** y[better] - 2.0 ** y[worse]
                _, grad, bend = pairwise_logistic(F, better, worse, gain * (n / max(gain.sum(), 1e-9)))
                bend = 2.0 * bend  # both ends of a pair move: the same bound
            return grad[ids], np.maximum((bend * together)[ids], 1e-6)

        matrix = QuantileDMatrix(_rows(programs, operator), nthread=self.threads)
        model = _Model(self._train(matrix, seed, "reg:squarederror", objective, base_score=0.0), operator=operator)
        model.bias = bias(model.raw(programs))
        return model

    def _train(self, matrix: Any, seed: int, objective: str, custom: Any = None, **more: Any) -> Any:
        import xgboost

        params = {
            "objective": objective,
            "max_depth": self.max_depth,
            "eta": self.eta,
            "gamma": self.gamma,
            "min_child_weight": self.min_child_weight,
            "lambda": self.reg_lambda,
            "tree_method": "hist",
            "seed": seed,
            "nthread": self.threads,
            "verbosity": 0,
            **more,
        }
        return xgboost.train(params, matrix, self.rounds, obj=custom)


@dataclass
class _Model:
    """Trees, and everything else that a score needs.

    Args:
        booster: XGBoost's; None where there was no statement to learn from.
        bias: Added to every program's sum.
        operator: Whether the operator's features follow each statement's.
        ranges: Smallest and largest raw score in training by task key.
        overall: The same of all tasks together.
    """

    booster: Any
    bias: float = 0.0
    operator: bool = False
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    overall: tuple[float, float] = (0.0, 0.0)

    def raw(self, X: Any) -> np.ndarray:
        """Scores `(n,)` in the model's own unit."""
        if not isinstance(X, Statements):
            return self._trees(_finite(X))
        f = self._trees(_rows(X, self.operator))
        return self.bias + sum_statements(f, program_ids(X.offsets), len(X))

    def note_ranges(self, groups: list[Group]) -> None:
        for task, X, _ in groups:
            raw = self.raw(X)
            self.ranges[task.key] = float(raw.min()), float(raw.max())
        self.overall = min(low for low, _ in self.ranges.values()), max(high for _, high in self.ranges.values())

    def _trees(self, rows: np.ndarray) -> np.ndarray:
        if self.booster is None or not len(rows):
            return np.zeros(len(rows))
        f = self.booster.inplace_predict(rows, predict_type="margin", validate_features=False)
        return f.astype(np.float64)


def _rows(X: Statements, operator: bool) -> np.ndarray:
    """Features of each statement, `(total, 164)` or, with the operator's, `(total, 174)` float32."""
    values = _finite(X.values)
    if not operator:
        return values
    return np.concatenate([values, _finite(X.operator)[program_ids(X.offsets)]], axis=1)


def _finite(X: Any) -> np.ndarray:
    """X as float32, with NaN, which XGBoost takes as missing, for everything that is not a finite number."""
    with np.errstate(over="ignore"):
        X = np.asarray(X, dtype=np.float32)
    ok = np.isfinite(X)
    return X if ok.all() else np.where(ok, X, np.float32("nan"))
