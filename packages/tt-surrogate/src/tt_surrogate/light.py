"""LightGBM over statements."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from tt_spec.roles import Progress
from tt_spec.types import Group, Prediction, Statements, Task, concat_statements

from tt_surrogate import weights as files
from tt_surrogate.pack_sum import draw_pairs, pairwise_logistic, program_ids, sum_statements
from tt_surrogate.programs import usable
from tt_surrogate.ranges import Ranges
from tt_surrogate.weights import Weights, WeightsError

__all__ = ["LightGBM"]


class LightGBM:
    """Gradient-boosted trees, grown leaf by leaf, over statements; a program's score is the sum of its statements'.

    Source: Ke et al. (2017), LightGBM, NeurIPS; parameters: Bai et al. (2023), ATFormer, EMNLP, Table 13.

    A baseline of ATFormer's. Programs of one task are compared in pairs, weighted by 2^y_i - 2^y_j, as `XGB` does over
    statements; scores are mapped by `tt_surrogate.ranges`, `std` is 0. `fit` goes on from the trees that `pretrain`
    grew, or from none.

    Args:
        weights: A file that `tt train` wrote. (default: None)
        rounds: Trees that `pretrain` grows. (default: 300, as TenSet's XGBoost)
        tune_rounds: Trees that `fit` adds to those. (default: 20)
        fit_rounds: Trees that `fit` grows from nothing. (default: 60, as `xgb`)
        leaves: (default: 72, as the paper)
        rate: (default: 0.16, as the paper)
        min_sum_leaf: Smallest sum of curvature in a leaf. (default: 4, as the paper)
        columns: Share of columns that a tree sees. (default: 0.84, as the paper)
        rows: Share of statements that it sees. (default: 0.89, as the paper, drawn anew every 4 trees)
        partners: Each program is compared with about this many others of its task. (default: 64)
        threads: 0 means all. (default: 1, so that timing on the same machine is not disturbed)
    """

    name: ClassVar[str] = "lightgbm"
    inputs: ClassVar[Literal["statements"]] = "statements"
    shared: ClassVar[bool] = True

    def __init__(
        self,
        weights: str | Path | None = None,
        rounds: int = 300,
        tune_rounds: int = 20,
        fit_rounds: int = 60,
        leaves: int = 72,
        rate: float = 0.16,
        min_sum_leaf: float = 4.0,
        columns: float = 0.84,
        rows: float = 0.89,
        partners: int = 64,
        threads: int = 1,
    ) -> None:
        if importlib.util.find_spec("lightgbm") is None:  # here, not after the first measured batch
            raise ModuleNotFoundError("No module named 'lightgbm'", name="lightgbm")
        self.weights = weights
        self.rounds, self.tune_rounds, self.fit_rounds = rounds, tune_rounds, fit_rounds
        self.leaves, self.rate, self.min_sum_leaf = leaves, rate, min_sum_leaf
        self.columns, self.rows, self.partners, self.threads = columns, rows, partners, threads

    def prestart(self) -> None:
        """Read the weights: a file that cannot be used ends a run before anything is measured."""
        self._base()

    def foreknows(self, task: Task) -> str | None:
        base = self._base()
        return base.where if base is not None and task.op in base.ops else None

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        base, seed, groups = self._base(), int(rng.integers(2**31)), usable(groups)
        self.fitted_ = base
        if groups:
            rounds = self.fit_rounds if base is None else self.tune_rounds
            self.fitted_ = self._ranged(self._grow(groups, seed, rounds, base), groups)

    def predict(self, task: Task, X: Any) -> Prediction:
        trees = getattr(self, "fitted_", None) or self._base()
        std = np.zeros(len(X))
        return Prediction(std if trees is None else trees.ranges.map(task.key, trees.raw(X)), std.copy())

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return prediction.mean

    def pretrain(
        self,
        groups: Sequence[Group],
        rng: np.random.Generator,
        report: Callable[[Progress], bool],
        start: Mapping[str, np.ndarray] | None = None,
        every: int = 10,
    ) -> None:
        """See `tt_spec.roles.Pretrains`; a round is one of `every` trees."""
        seed, groups = int(rng.integers(2**31)), usable(groups)
        self.weights, self.base_, self.fitted_ = None, None, None
        if not groups:
            return
        total, done, trees, loss = max(1, -(-self.rounds // every)), 0, None, 0.0
        if start is not None:
            trees, done, loss = self._restored(start)
        while True:
            if trees is not None:
                self.base_ = self._ranged(trees, groups)
                now = trees

                def state(now: _Trees = now, at: int = done, value: float = loss) -> dict[str, np.ndarray]:
                    return {"trees": files.from_bytes(now.text.encode()), "at": np.array([at]), "loss": np.array(value)}

                if not report(Progress(done, total, loss, state)):
                    return
            if done >= total:
                return
            trees, done = self._grow(groups, seed + done, every, trees), done + 1
            loss = _pair_loss(trees, groups)

    def save(self, path: Path, card: Mapping[str, Any]) -> None:
        base = self._base()
        if base is None:
            raise WeightsError(f"{path}: {self.name!r} has learned nothing yet: tt train, with rows of some task")
        tensors = {"trees": files.from_bytes(base.text.encode()), "range": np.array(base.ranges.overall)}
        files.write(path, Weights(self.name, {"ops": sorted(base.ops)}, tensors, dict(card)))

    def _grow(self, groups: list[Group], seed: int, rounds: int, before: _Trees | None) -> _Trees:
        """Trees beside those before, which stay as they are."""
        import lightgbm

        programs, y = concat_statements([X for _, X, _ in groups]), np.concatenate([y for _, _, y in groups])
        ids, rng = program_ids(programs.offsets), np.random.default_rng(seed)
        features = _rows(programs)
        if not len(ids) or not (features != features[0]).any():  # LightGBM ends the training with an error
            return before or _Trees("")
        together = np.diff(programs.offsets)
        known = np.zeros(len(ids)) if before is None else before.each(programs)

        def objective(f: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:
            F = sum_statements(f, ids, len(y))
            better, worse = draw_pairs(y, [len(y) for _, _, y in groups], self.partners // 2, rng)
            gain = 2.0 ** y[better] - 2.0 ** y[worse]
            _, grad, bend = pairwise_logistic(F, better, worse, gain * (len(y) / max(gain.sum(), 1e-9)))
            return grad[ids], np.maximum((2.0 * bend * together)[ids], 1e-6)  # the bounds: see `XGB`

        rows = lightgbm.Dataset(features, init_score=known, params={"verbosity": -1, "feature_pre_filter": False})
        booster = lightgbm.train({**self._params(seed), "objective": objective}, rows, rounds)
        return _Trees.joined(before, booster.model_to_string())

    def _params(self, seed: int) -> dict[str, Any]:
        return {
            "num_leaves": self.leaves,
            "learning_rate": self.rate,
            "min_sum_hessian_in_leaf": self.min_sum_leaf,
            "min_data_in_leaf": 1,
            "feature_pre_filter": False,
            "feature_fraction": self.columns,
            "bagging_fraction": self.rows,
            "bagging_freq": 4,
            "seed": seed,
            "num_threads": self.threads,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }

    def _ranged(self, trees: _Trees, groups: list[Group]) -> _Trees:
        ranges = Ranges.of((task.key, trees.raw(X)) for task, X, _ in groups)
        return replace(trees, ranges=ranges, ops=trees.ops | {task.op for task, _, _ in groups})

    def _base(self) -> _Trees | None:
        if getattr(self, "base_", None) is None and self.weights is not None:
            found = files.read(self.weights, self.name)
            if {k: v.dtype.kind for k, v in found.tensors.items()} != {"trees": "u", "range": "f"}:
                raise WeightsError(f"weights {self.weights} hold no trees: train them again")
            low, high = (float(v) for v in found.tensors["range"])
            text = found.tensors["trees"].tobytes().decode(errors="replace")
            ops = frozenset(map(str, found.options.get("ops", ())))
            where = str(found.card.get("device", self.weights))
            self.base_ = _Trees(text, Ranges({}, (low, high)), ops, where).checked(self.weights)
        return getattr(self, "base_", None)

    def _restored(self, start: Mapping[str, np.ndarray]) -> tuple[_Trees, int, float]:
        if not {"trees", "at", "loss"} <= set(start):
            raise WeightsError("this checkpoint is of another model: delete it to begin anew")
        text = np.asarray(start["trees"]).tobytes().decode(errors="replace")
        return _Trees(text).checked("of this checkpoint"), int(start["at"][0]), float(start["loss"])


SEPARATOR = "\n=== tt: next booster ===\n"


@dataclass
class _Trees:
    """Boosters whose sum is the model: LightGBM's own texts, one after the other.

    Args:
        text: Empty for no tree.
        ranges: Of the scores in training.
        ops: Kinds of operator that it learned from.
        where: The CPU on which those were measured.
    """

    text: str
    ranges: Ranges = field(default_factory=Ranges)
    ops: frozenset[str] = frozenset()
    where: str = "this run"
    boosters_: list[Any] | None = field(default=None, repr=False)

    @classmethod
    def joined(cls, before: _Trees | None, text: str) -> _Trees:
        return cls(text if before is None or not before.text else before.text + SEPARATOR + text)

    def raw(self, X: Statements) -> np.ndarray:
        """Scores `(n,)` in the model's own unit."""
        return sum_statements(self.each(X), program_ids(X.offsets), len(X))

    def each(self, X: Statements) -> np.ndarray:
        """Scores of statements `(total,)`."""
        rows, total = _rows(X), np.zeros(len(X.values))
        for booster in self._boosters() if len(rows) else ():
            total += booster.predict(rows, raw_score=True, num_threads=1)
        return total

    def checked(self, where: object) -> _Trees:
        """Itself, or `WeightsError` where LightGBM cannot read the text."""
        try:
            self._boosters()
            return self
        except Exception as e:  # LightGBMError, and whatever its parser meets
            raise WeightsError(f"weights {where}: LightGBM cannot read their trees: train them again") from e

    def _boosters(self) -> list[Any]:
        if self.boosters_ is None:
            import lightgbm

            texts = self.text.split(SEPARATOR) if self.text else []
            self.boosters_ = [lightgbm.Booster(model_str=t) for t in texts]
        return self.boosters_

    def __deepcopy__(self, memo: dict[int, Any]) -> _Trees:
        return _Trees(self.text, Ranges(dict(self.ranges.tasks), self.ranges.overall), self.ops, self.where)


def _pair_loss(trees: _Trees, groups: list[Group]) -> float:
    """Mean logistic loss of pairs."""
    F, y = np.concatenate([trees.raw(X) for _, X, _ in groups]), np.concatenate([y for _, _, y in groups])
    better, worse = draw_pairs(y, [len(y) for _, _, y in groups], 8, np.random.default_rng(0))
    return pairwise_logistic(F, better, worse, np.full(len(better), 1.0 / max(1, len(better))))[0]


def _rows(X: Statements) -> np.ndarray:
    """Features of each statement with its operator's, `(total, 174)` float32, NaN for what is not finite."""
    rows = np.concatenate([X.values, np.asarray(X.operator)[program_ids(X.offsets)]], axis=1)
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    return np.where(np.isfinite(rows), rows, np.float32("nan"))
