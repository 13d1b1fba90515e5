"""Training data of XGBoost: rows of knobs, or statements whose outputs add up to a program's score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from tt_spec.types import Statements

from tt_surrogate.beforehand import rows_of
from tt_surrogate.pack_sum import draw_pairs, pairwise_logistic, program_ids, squared_error, sum_statements

__all__ = ["Growth", "KnobRanks", "KnobSquares", "Problem", "Programs"]

Told = Callable[[Any, int, float], bool]
"""The booster so far, its trees, its loss; False ends the training."""


class Problem(ABC):
    """Rows, labels and loss."""

    params: ClassVar[dict[str, Any]]
    """XGBoost's, beside those of `Growth`."""

    more: Mapping[str, Any] = MappingProxyType({})
    """Parameters of this problem."""

    loss: float | None = None
    """Of the last round, where `gradient` is ours."""

    @abstractmethod
    def matrix(self, threads: int) -> Any:
        """XGBoost's `QuantileDMatrix`."""

    @property
    def gradient(self) -> Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray]] | None:
        """XGBoost's custom objective; None where `params` name one."""
        return None

    def skip(self, rounds: int) -> None:
        """Draw what so many rounds would have drawn."""
        return None


@dataclass(frozen=True)
class Growth:
    """How trees grow; parameters are XGBoost's."""

    rounds: int
    max_depth: int
    eta: float
    gamma: float
    min_child_weight: float
    reg_lambda: float
    threads: int

    def __call__(self, problem: Problem, seed: int, start: Any = None, told: Told | None = None) -> Any:
        """The booster; `told` is called after every tree, those of `start` not counted again."""
        import xgboost
        from xgboost.callback import TrainingCallback

        params = {
            "max_depth": self.max_depth,
            "eta": self.eta,
            "gamma": self.gamma,
            "min_child_weight": self.min_child_weight,
            "lambda": self.reg_lambda,
            "tree_method": "hist",
            "seed": seed,
            "nthread": self.threads,
            "verbosity": 0,
            **problem.params,
            **problem.more,
        }

        class Tell(TrainingCallback):
            def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
                loss = evals_log["train"]["rmse"][-1] if problem.loss is None else problem.loss
                return not told(model, model.num_boosted_rounds(), float(loss)) if told else False

        matrix, done = problem.matrix(self.threads), 0 if start is None else start.num_boosted_rounds()
        problem.skip(done)
        return xgboost.train(
            params,
            matrix,
            self.rounds - done,
            obj=problem.gradient,
            xgb_model=start,
            evals=[(matrix, "train")] if told and problem.gradient is None else [],
            callbacks=[Tell()] if told else [],
            verbose_eval=False,
        )


class KnobSquares(Problem):
    """Squared error of labels.

    Args:
        X: `(n, p)` float32.
        margin: What is known beforehand, in the labels' unit, `(n,)`.
    """

    params = {"objective": "reg:squarederror"}

    def __init__(self, X: np.ndarray, y: np.ndarray, margin: np.ndarray | None = None) -> None:
        self.X, self.y, self.margin = X, y, margin

    def matrix(self, threads: int) -> Any:
        from xgboost import QuantileDMatrix

        return QuantileDMatrix(self.X, self.y, nthread=threads, base_margin=self.margin)


class KnobRanks(Problem):
    """Pairs of rows of one task.

    Args:
        tasks: Number of each row's task, ascending.
        partners: Rows that each is compared with.
    """

    params = {
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "mean",  # "topk" never compares failures with middling rows
        "lambdarank_normalization": False,
    }

    def __init__(self, X: np.ndarray, y: np.ndarray, tasks: np.ndarray, partners: int) -> None:
        self.X, self.y, self.tasks = X, y, tasks
        self.more = {"lambdarank_num_pair_per_sample": partners}

    def matrix(self, threads: int) -> Any:
        from xgboost import QuantileDMatrix

        return QuantileDMatrix(self.X, self.y, qid=self.tasks, nthread=threads)


class Programs(Problem):
    """Programs whose score is a sum over their statements, see `tt_surrogate.pack_sum`.

    Args:
        X: All tasks' programs, one task after the other; at least one statement.
        y: Labels `(n,)`.
        sizes: Programs of each task.
        margin: Scores of the statements that are known beforehand, `(total,)`.
        least_weight: Of a program in regression.
        partners: Programs that each is compared with.
    """

    params = {"objective": "reg:squarederror", "base_score": 0.0}

    def __init__(
        self,
        X: Statements,
        y: np.ndarray,
        sizes: Sequence[int],
        objective: Literal["rank", "regression"],
        margin: np.ndarray | None = None,
        *,
        operator: bool,
        least_weight: float,
        partners: int,
        seed: int,
    ) -> None:
        self.X, self.y, self.sizes, self.margin, self.operator = X, y, sizes, margin, operator
        self.regression, self.partners = objective == "regression", partners
        self.weight, self.power = np.maximum(y, least_weight), 2.0**y
        self.ids, self.rng = program_ids(X.offsets), np.random.default_rng(seed)
        # A leaf may move all statements of a program at once, so the sum moves by as many steps: without this factor
        # (it bounds the full Hessian by a diagonal) programs of many statements overshoot and diverge.
        self.together = np.diff(X.offsets)
        self._all: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def matrix(self, threads: int) -> Any:
        from xgboost import QuantileDMatrix

        return QuantileDMatrix(rows_of(self.X, self.operator), nthread=threads, base_margin=self.margin)

    def bias(self, F: np.ndarray) -> float:
        """The intercept that goes with sums `(n,)`."""
        return float(np.average(self.y - F, weights=self.weight)) if self.regression else 0.0

    @property
    def gradient(self) -> Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray]]:
        return self._gradient

    def _gradient(self, f: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
        F = sum_statements(f, self.ids, len(self.y))
        if self.regression:
            loss, grad, bend = squared_error(F + self.bias(F), self.y, self.weight)
        else:
            loss, grad, bend = pairwise_logistic(F, *self._pairs())
            bend = 2.0 * bend  # both ends of a pair move: the same bound
        self.loss = loss / max(len(self.y), 1)
        return grad[self.ids], np.maximum((bend * self.together)[self.ids], 1e-6)

    def skip(self, rounds: int) -> None:
        for _ in range(0 if self.regression else rounds):
            self._pairs()

    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Better and worse programs, and the weight of each pair: drawn in each round anew where a task has too many
        programs for all of its pairs."""
        if self._all is None or any(n > 2 * (self.partners // 2) for n in self.sizes):
            better, worse = draw_pairs(self.y, self.sizes, self.partners // 2, self.rng)
            gain = self.power[better] - self.power[worse]
            self._all = better, worse, gain * (len(self.y) / max(gain.sum(), 1e-9))
        return self._all
