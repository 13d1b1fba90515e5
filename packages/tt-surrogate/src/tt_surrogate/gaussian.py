"""A Gaussian process over knobs: the uncertainty estimator that AdaTune compares its forest with."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tt_spec.types import Group, Prediction, Task

from tt_surrogate.improvement import expected_improvement

__all__ = ["GaussianProcess"]


class GaussianProcess:
    """Gaussian process over standardised knob features, scored by expected improvement.

    Source: Li et al. (2020), AdaTune, appendix B.1 (NeurIPS 2020), which leaves the kernel open; Rasmussen and
    Williams (2006), Gaussian Processes for Machine Learning; Matérn 5/2 by Snoek et al. (2012), arXiv:1206.2944.

    The kernel is c^2 Matérn(5/2) + white noise, one length for all columns; its parameters maximise the marginal
    likelihood. `std` is the deviation of the function, without the noise.

    Args:
        rows: Most rows that are learned from, half of them the best and half drawn from the others: time grows with
            their cube. (default: 400)
        steps: Steps of the search for the kernel's parameters, each a factorisation. (default: 20)
    """

    inputs: Literal["knobs", "statements"] = "knobs"
    shared = False

    def __init__(self, rows: int = 400, steps: int = 20) -> None:
        if importlib.util.find_spec("sklearn") is None:  # here, not after the first measured batch
            raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
        self.rows, self.steps = rows, steps

    def fit(self, groups: Sequence[Group], rng: np.random.Generator) -> None:
        self.models_: dict[str, _Process] = {}
        for task, X, y in groups:
            if len(X):
                X, y = np.asarray(X, dtype=np.float64), np.nan_to_num(np.asarray(y, dtype=np.float64))
                kept = _kept(y, self.rows, rng)
                self.models_[task.key] = _Process.fit(X[kept], y[kept], self.steps)

    def predict(self, task: Task, X: Any) -> Prediction:
        model = getattr(self, "models_", {}).get(task.key)
        if model is None or not len(X):
            return Prediction(np.zeros(len(X)), np.zeros(len(X)))
        return Prediction(*model.predict(np.asarray(X, dtype=np.float64)))

    def score(self, prediction: Prediction, best: float) -> np.ndarray:
        return expected_improvement(prediction.mean, prediction.std, best)


@dataclass
class _Process:
    """A fitted process, and the centre and width by which columns were standardised, `(p,)` each."""

    process: Any
    centre: np.ndarray
    width: np.ndarray

    @classmethod
    def fit(cls, X: np.ndarray, y: np.ndarray, steps: int) -> _Process:
        from scipy.optimize import minimize
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        def search(objective: Any, start: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, float]:
            found = minimize(objective, start, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxfun": steps})
            return found.x, found.fun

        width = X.std(axis=0)
        width[width == 0] = 1.0
        kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(np.sqrt(X.shape[1]), (1e-1, 1e3), nu=2.5)
        process = GaussianProcessRegressor(
            kernel + WhiteKernel(1e-2, (1e-6, 1.0)), normalize_y=True, optimizer=search, random_state=0
        )
        made = cls(process, X.mean(axis=0), width)
        with warnings.catch_warnings():  # a parameter at its bound is not a defect: labels may be constant
            warnings.simplefilter("ignore")
            process.fit((X - made.centre) / width, y)
        return made

    def predict(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation `(n,)` of the function."""
        with warnings.catch_warnings():  # a variance that rounding made negative is 0
            warnings.simplefilter("ignore")
            mean, std = self.process.predict((X - self.centre) / self.width, return_std=True)
        noise = self.process.kernel_.k2.noise_level * self.process._y_train_std**2
        return mean, np.sqrt(np.maximum(std**2 - noise, 0.0))


def _kept(y: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of the rows that are learned from, at most `most`, `(m,)`."""
    if len(y) <= most:
        return np.arange(len(y))
    order = np.argsort(-y, kind="stable")
    best, rest = order[: most // 2], order[most // 2 :]
    return np.concatenate([best, rng.choice(rest, most - len(best), replace=False)])
