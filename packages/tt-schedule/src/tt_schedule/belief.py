"""The belief about an operator's future: a curve's posterior by Markov chain Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tt_schedule.curves import FAMILIES, Family
from tt_schedule.stretch import stretch

__all__ = ["Belief", "Curve", "improvement", "last_segment"]

BURN = 100
"""The most steps until the walkers have forgotten where they began (the paper's appendix B)."""
NOISE = (0.005, 0.5)
"""Bounds of the residuals' standard deviation, relative to the incumbent: a curve never meets steps exactly."""
ACCEPTED = (0.1, 0.9)
"""Acceptance outside this range says that the chain does not explore the posterior."""
POINTS = 256
"""The most points that are fitted; longer segments are thinned evenly."""


@dataclass(frozen=True)
class Curve:
    """A fitted curve and how it was found.

    Args:
        thetas: Posterior samples of the curve's parameters, `(n, p)`; one row where least squares had to do.
        since: Trials before the fitted segment.
        best: The incumbent's performance.
        acceptance: Mean share of accepted moves; None where no chain ran.
        autocorrelation: Mean integrated autocorrelation time, steps.
        fallback: Why this is the least-squares fit alone, or "".
    """

    family: str
    thetas: np.ndarray
    since: int
    best: float
    acceptance: float | None = None
    autocorrelation: float | None = None
    fallback: str = ""

    def at(self, trial: float) -> np.ndarray:
        """Performance after that many trials by each sample, `(n,)`."""
        return FAMILIES[self.family].f(np.array([max(1.0, trial - self.since)]), self.thetas)[:, 0]

    def improvement(self, trial: float) -> float:
        """Expected positive improvement over the incumbent after that many trials."""
        y = self.at(trial)
        return improvement(float(y.mean()), float(y.std()), self.best)


class Belief:
    """Fits a curve to an operator's best performance so far and samples the curves that are as likely.

    The posterior is that of Gaussian residuals of unknown size under a uniform prior: parameters in a box, no
    prediction under the incumbent, none above what the device can do. The walkers start around the least-squares fit,
    spread as Laplace's approximation says; a chain whose acceptance is outside 0.1 to 0.9 is not used.

    The paper has 10 walkers make 500 steps. 100 walkers that make 30 to 50 hold the truth as often and take a fifth of
    the time, because steps are Python's and walkers are numpy's. pow4, whose four parameters make up for each other,
    needs 1000 all the same.

    Source: Zhang et al. (2021), DynaTune, section 4.3; Goodman and Weare (2010), Ensemble samplers with affine
    invariance; Foreman-Mackey et al. (2013), emcee.

    Args:
        curve: One of `FAMILIES`. (default: "log_power")
        walkers: Of the ensemble, at least twice as many as the curve has parameters, and two. (default: 100)
        steps: Of each walker. (default: 50; log_power 30, pow4 1000)
        samples: Drawn evenly from the chain after its first 100 steps or, if those are fewer, the first half.
            (default: 200)
        jump: A gain of more than this share begins a new segment. (default: 0.2)
    """

    def __init__(
        self,
        curve: str = "log_power",
        walkers: int = 100,
        steps: int | None = None,
        samples: int = 200,
        jump: float = 0.2,
    ) -> None:
        self.curve, self.walkers, self.samples, self.jump = curve, walkers, samples, jump
        self.steps = FAMILIES[curve].steps if steps is None else steps

    def fit(
        self,
        gains: Sequence[tuple[int, float]],
        trials: int,
        ahead: float,
        ceiling: float,
        rng: np.random.Generator,
    ) -> Curve:
        """The belief after `trials`.

        Args:
            gains: `(trial, performance)` of each incumbent, both increasing, the last at most at `trials`.
            trials: Trials so far.
            ahead: The later trial at which predictions must not lie under the incumbent.
            ceiling: The most that any performance may be.
        """
        since, x, y = last_segment(gains, trials, self.jump)
        if self.steps < 2:
            raise ValueError(f"steps must be at least 2, of which the first half is thrown away, got {self.steps}")
        posterior = _Posterior(FAMILIES[self.curve], x, y, ahead - since, max(ceiling, y[-1]))
        mode, slopes = posterior.mode()
        best = float(y[-1])
        plain = Curve(self.curve, mode[None, :-1], since, best, fallback="least squares alone")
        start = posterior.around(mode, slopes, self.walkers, rng)
        if start is None:
            return _because(plain, "no walker could start near the least-squares fit")
        chain, acceptance, autocorrelation = self._sample(posterior, start, rng)
        if not ACCEPTED[0] <= acceptance <= ACCEPTED[1]:
            return _because(plain, f"acceptance was {acceptance:.2f}", acceptance, autocorrelation)
        chosen = np.linspace(0, len(chain) - 1, self.samples).round().astype(int)
        return Curve(self.curve, chain[chosen, :-1], since, best, acceptance, autocorrelation)

    def _sample(
        self, posterior: _Posterior, start: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, float, float | None]:
        from emcee.autocorr import integrated_time

        random = np.random.RandomState(int(rng.integers(2**32)))
        chain, acceptance = stretch(posterior.log, start, self.steps, random)
        chain = chain[min(BURN, self.steps // 2) :]
        with np.errstate(invalid="ignore"):  # a parameter that never moved has none
            tau = integrated_time(chain[:, :10], tol=0, quiet=True)  # of all: 3 ms more
        tau = tau[np.isfinite(tau)]
        mean = float(tau.mean()) if len(tau) else None
        return chain.reshape(-1, start.shape[1]), acceptance, mean


class _Posterior:
    """Of a curve's parameters and, last, the logarithm of the residuals' standard deviation."""

    def __init__(self, family: Family, x: np.ndarray, y: np.ndarray, ahead: float, ceiling: float) -> None:
        self.family, self.y, self.m, self.ceiling = family, y, len(x), ceiling
        self.x = np.append(x, ahead)
        high = np.where(np.isinf(family.high), ceiling, family.high)
        noise = np.log(np.array(NOISE) * y[-1])
        self.low, self.high = np.append(family.low, noise[0]), np.append(high, noise[1])

    def log(self, theta: np.ndarray) -> np.ndarray:
        """Logarithm of the density, `(w,)`, of `(w, p + 1)` parameters; -inf outside the prior."""
        inside = ((theta >= self.low) & (theta <= self.high)).all(axis=1)
        with np.errstate(all="ignore"):
            y = self.family.f(self.x, theta[:, :-1])
            inside &= (y[:, -1] >= self.y[-1]) & (y[:, -1] <= self.ceiling)
            squares = ((y[:, :-1] - self.y) ** 2).sum(axis=1)
            found = -0.5 * squares * np.exp(-2 * theta[:, -1]) - self.m * theta[:, -1]
        return np.where(inside & np.isfinite(found), found, -np.inf)

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """The least-squares fit whose prediction is not under the incumbent, and the logarithm of its residuals' size,
        `(p + 1,)`; how much each point's prediction changes with the parameters, in units of that size, `(m, p)`."""
        from scipy.optimize import least_squares

        low, high = self.low[:-1], self.high[:-1]
        inner = 1e-6 * (high - low)
        guess = np.clip(self.family.guess(float(self.y[0]), float(self.y[-1])), low + inner, high - inner)

        def residuals(theta: np.ndarray) -> np.ndarray:
            y = self.family.f(self.x, theta)
            under = 1e2 * np.maximum(0.0, (1 + 1e-6) * self.y[-1] - y[..., -1:])
            left = np.concatenate([y[..., :-1] - self.y, under], axis=-1)
            return np.nan_to_num(left, nan=1e3, posinf=1e3, neginf=-1e3)

        def jacobian(theta: np.ndarray) -> np.ndarray:
            """By differences, all parameters in one call."""
            h = 1e-7 * np.maximum(1.0, np.abs(theta))
            h = np.where(theta + h > high, -h, h)
            return ((residuals(theta + np.diag(h)) - residuals(theta)) / h[:, None]).T

        fit = least_squares(residuals, guess, jacobian, bounds=(low, high), x_scale="jac", ftol=1e-4, max_nfev=60)
        spread = max(float(np.sqrt((fit.fun[:-1] ** 2).mean())), np.finfo(float).tiny)
        noise = np.clip(math.log(spread), self.low[-1], self.high[-1])
        return np.append(fit.x, noise), np.exp(-noise) * fit.jac[:-1]

    def around(self, mode: np.ndarray, slopes: np.ndarray, walkers: int, rng: np.random.Generator) -> np.ndarray | None:
        """Points of the prior, `(walkers, p + 1)`, distributed about as the posterior is by Laplace's approximation;
        the fewer of those are possible, the nearer to the mode; None without any."""
        width = self.high - self.low
        slopes = slopes * width[:-1]  # in units of the prior's widths, of which 1 / 12 is a uniform variable's variance
        curvature = 12.0 * np.eye(len(mode))
        curvature[:-1, :-1] += slopes.T @ slopes
        curvature[-1, -1] += 2 * self.m * width[-1] ** 2
        steep, axes = np.linalg.eigh(curvature)
        root = width[:, None] * axes / np.sqrt(np.maximum(steep, 12.0))  # rounding may leave less than the prior
        found = np.empty((0, len(mode)))
        for scale, many in ((1.0, 4), (0.5, 40), (0.1, 40)):
            ball = mode + scale * rng.standard_normal((many * walkers, len(mode))) @ root.T
            ball = self.low + np.abs(ball - self.low)
            ball = self.high - np.abs(self.high - ball)
            found = np.concatenate([found, ball[np.isfinite(self.log(ball))]])
            if len(found) >= walkers:
                return found[:walkers]
        return None


def last_segment(gains: Sequence[tuple[int, float]], trials: int, jump: float) -> tuple[int, np.ndarray, np.ndarray]:
    """Trials before the last jump; since then trials from 1 on, `(m,)`, and the best performance so far, `(m,)`."""
    values = np.array([v for _, v in gains])
    at = np.array([t for t, _ in gains])
    first = int(np.max(np.flatnonzero(values[1:] > (1.0 + jump) * values[:-1]) + 1, initial=0))
    since = int(at[first]) - 1
    x = np.arange(since + 1, max(trials, int(at[-1])) + 1)
    if len(x) > POINTS:
        x = x[np.linspace(0, len(x) - 1, POINTS).round().astype(int)]
    y = values[np.searchsorted(at, x, side="right") - 1]
    return since, (x - since).astype(float), y


def improvement(mean: float, std: float, best: float) -> float:
    """Expected positive improvement of a normal variable over `best`. Source: Brochu et al. (2010), section 2.3.1."""
    if std <= 0:
        return max(0.0, mean - best)
    z = (mean - best) / std
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return std * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density)


def _because(curve: Curve, why: str, acceptance: float | None = None, autocorrelation: float | None = None) -> Curve:
    return Curve(curve.family, curve.thetas, curve.since, curve.best, acceptance, autocorrelation, why)
