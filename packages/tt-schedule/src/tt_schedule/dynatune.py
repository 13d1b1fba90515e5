"""DynaTune's scheduler."""

from __future__ import annotations

import importlib.util
import math
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
from tt_spec.clock import Clock
from tt_spec.errors import PieceError
from tt_spec.rng import rng_for
from tt_spec.types import Slot, TaskState

from tt_schedule.actions import epsilon_greedy, softmax, ucb
from tt_schedule.belief import Belief, Curve
from tt_schedule.curves import FAMILIES
from tt_schedule.similar import similar_s
from tt_schedule.warmup import first_slot, rest_of_warm_up, valid, warm_up

__all__ = ["DynaTune"]

AUTO = 0.02
"""C of "auto"."""
HEADROOM = 1.25
"""Gain that may remain near the peak and above it: Winograd needs fewer multiplications than are counted."""


class DynaTune:
    """Gives the slot to the operator that is believed to shorten the model's latency most.

    Every operator first gets slots until it has a valid result, up to `warmup`. Then a Bayesian belief about its best
    performance so far (`Belief`), in fractions of the device's peak, says what its next slot would bring: y is the
    incumbent plus the expected improvement, and the gain `weight * (flops / incumbent - flops / y)`. The action
    function chooses among gains; an operator that nothing works for has gain 0. Only the belief of the operator that
    was just tuned is renewed.

    A curve knows nothing of what comes by a jump, say when Winograd's algorithm is found; other operators of the kind
    do. So, as in Ansor, one that reaches less than 1 / `beta` of the best FLOP rate among them is expected to catch
    up, after n slots with the chance 1 / (n + 1) (Laplace's rule of succession; the first slot could not try). The
    gain is the larger of the two.

    Source: Zhang et al. (2021), DynaTune: Dynamic Tensor Program Optimization in Deep Neural Network Compilation
    (ICLR 2021), algorithm 1; Zheng et al. (2020), Ansor, section 6 and appendix A, for similar operators.

    Args:
        trials: Measured rows per slot; a belief takes 0.015 s of a core. No slot is longer than what the operator has
            had, or `first`: early gains are the largest, and a curve is not believed beyond twice its length.
            (default: 32)
        first: Measured rows per first slot. (default: 16)
        seconds: Length of a slot instead, once all operators are warm. (default: None)
        action: "ucb", "epsilon-greedy" or "softmax". (default: "ucb")
        c: Exploration of UCB: a number, for gains in milliseconds; "paper", 2, or 0.2 while the model takes less than
            1 ms; or "auto", 0.02 for gains in units of the geometric mean of what the operator and what the average
            operator takes: no operator can gain more than it takes, so the bonus suits any latency, and where little
            is expected slots fall about in proportion to that. (default: "auto")
        epsilon: Share of random slots of "epsilon-greedy". (default: 0.05)
        temperature: Of "softmax", in units of the mean gain. (default: 1)
        curve: Family of the belief: log_power, pow2, pow4, loglinear, logloglinear. (default: "log_power")
        walkers, steps, samples, jump: See `Belief`.
        beta: Trust in similar operators; infinite: none, as in the paper. (default: 2)
        warmup: The most first slots for an operator without a valid result. (default: 4)
        light: An operator with less than this share of the model's FLOP warms up with a quarter of a slot, so that the
            model is whole sooner. (default: 0.01)
        peak_gflops: Of the device; None: what the runner measured, else the best rate of any operator so far.
        seed: Of chains and of random slots. (default: 0)
    """

    def __init__(
        self,
        trials: int = 32,
        first: int = 16,
        seconds: float | None = None,
        action: str = "ucb",
        c: float | str = "auto",
        epsilon: float = 0.05,
        temperature: float = 1.0,
        curve: str = "log_power",
        walkers: int = 100,
        steps: int | None = None,
        samples: int = 200,
        jump: float = 0.2,
        beta: float = 2.0,
        warmup: int = 4,
        light: float = 0.01,
        peak_gflops: float | None = None,
        seed: int = 0,
    ) -> None:
        self.trials, self.first, self.seconds, self.action, self.c = trials, first, seconds, action, c
        self.epsilon, self.temperature, self.curve = epsilon, temperature, curve
        self.walkers, self.steps, self.samples, self.jump = walkers, steps, samples, jump
        self.beta, self.warmup, self.light = beta, warmup, light
        self.peak_gflops, self.seed = peak_gflops, seed
        self.rows_, self.peak_ = math.inf, 0.0
        self.slots_: Counter[int] = Counter()
        self.beliefs_: dict[int, tuple[int, float, Curve]] = {}

    def budget(self, rows: float) -> None:
        self.rows_ = rows

    def peak(self, flops: float) -> None:
        self.peak_ = flops

    def ahead(self, states: Sequence[TaskState], clock: Clock, slot: Slot, rows: int) -> list[Slot]:
        slots = rest_of_warm_up(states, slot, rows, min(self.first, self.trials), self.rows_, self.light)
        self.slots_.update(s.task for s in slots)
        return slots

    def next(self, states: Sequence[TaskState], clock: Clock) -> Slot | None:
        self._check()
        racing = [i for i, s in enumerate(states) if s.finished is None]
        if not racing:
            return None
        first = warm_up(states, min(self.first, self.trials), self.rows_, self.warmup, self.light)
        if first is not None:
            if not self.slots_:  # emcee loads for 0.3 s: meanwhile the first slot is measured
                threading.Thread(target=importlib.import_module, args=("emcee",), daemon=True).start()
            self.slots_[first.task] += 1
            return first
        size = max(first_slot(states, self.trials, self.rows_), self.trials // 4)
        gains = np.array([self.gain_s(states, i, size) for i in racing])
        slots = np.array([self.slots(states, i) for i in racing])
        at, info = self._choose(states, gains, slots)
        pick = racing[at]
        self.slots_[pick] += 1
        info |= self._remarks(states, pick)
        if self.seconds is not None:
            return Slot(pick, None, self.seconds, float(gains[at]), info)
        trials = min(size, max(self.first, self._known(states[pick])))
        return Slot(pick, trials, None, self.gain_s(states, pick, trials), info)

    def gain_s(self, states: Sequence[TaskState], i: int, size: int) -> float:
        """Seconds that a slot of `size` trials for task `i` is expected to save the model."""
        s = states[i]
        if not valid(s):
            return 0.0
        known = self._known(s)
        if self.seconds is not None:
            size = max(1, s.trials // max(1, self.slots_[i]))
        if i not in self.beliefs_ or self.beliefs_[i][0] != known:
            self.beliefs_[i] = (known, *self.believe(states, s, known, size))
        _, unit, curve = self.beliefs_[i]
        y = curve.best + curve.improvement(known + size)
        return s.weight * max(unit * (1.0 / curve.best - 1.0 / y), self.behind_s(states, i))

    @staticmethod
    def _known(s: TaskState) -> int:
        """Trials of this run and of earlier ones."""
        return s.restored + s.trials

    def behind_s(self, states: Sequence[TaskState], i: int) -> float:
        """Seconds that task `i` takes longer than similar operators say, times the chance to catch up with
        the next slot; seconds."""
        should = similar_s(states, states[i], self.beta)
        return 0.0 if should is None else max(0.0, states[i].best_s - should) / (self.slots(states, i) + 1)

    def slots(self, states: Sequence[TaskState], i: int) -> int:
        """Slots that task `i` had, at least 1; earlier runs' trials count in slots of `trials`."""
        return max(1, self.slots_[i] + states[i].restored // self.trials)

    def believe(self, states: Sequence[TaskState], s: TaskState, known: int, size: int) -> tuple[float, Curve]:
        """Seconds of one execution at the peak, and the belief about the share of the peak that is reached."""
        unit = s.flops / self._peak(states) if s.flops > 0 else s.best_s
        gains = [(max(1, t), unit / best) for t, best in s.incumbents] or [(max(1, known), unit / s.best_s)]
        ceiling = max(1.0, HEADROOM * gains[-1][1])
        belief = Belief(self.curve, self.walkers, self.steps, self.samples, self.jump)
        rng = rng_for(self.seed, s.task.key, "belief", known)
        return unit, belief.fit(gains, max(1, known), known + size, ceiling, rng)

    def _peak(self, states: Sequence[TaskState]) -> float:
        if self.peak_gflops is not None:
            return 1e9 * self.peak_gflops
        return self.peak_ or max(s.flops / s.best_s for s in states if valid(s))

    def _choose(
        self, states: Sequence[TaskState], gains: np.ndarray, slots: np.ndarray
    ) -> tuple[int, dict[str, float | str]]:
        rng = np.random.default_rng([self.seed, sum(s.trials for s in states)])
        mean_s = float(gains.mean()) or 1.0
        if self.action == "epsilon-greedy":
            at, why = epsilon_greedy(gains, self.epsilon, rng)
            return at, {"why": why}
        if self.action == "softmax":
            shares = softmax(gains / mean_s, self.temperature)
            at = int(rng.choice(len(gains), p=shares))
            return at, {"why": "softmax", "probability": float(shares[at])}
        unit_s, c = self._exploration(states)
        bounds = unit_s * ucb(gains / unit_s, slots, c)
        at = int(np.argmax(bounds))
        return at, {"why": "ucb", "bonus_s": float(bounds[at] - gains[at]), "slots": int(slots[at])}

    def _exploration(self, states: Sequence[TaskState]) -> tuple[np.ndarray, float]:
        """Unit of each racing operator's gain, seconds `(n,)`, and C."""
        own = np.array([s.weight * s.best_s for s in states if s.finished is None])
        known = np.isfinite(own)
        if self.c == "auto":
            mean = float(own[known].mean()) if known.any() else 1.0
            return np.sqrt(mean * np.where(known, own, mean)), AUTO
        unit_s = np.full(len(own), 1e-3)
        if self.c == "paper":
            model_s = sum(s.weight * s.best_s for s in states if valid(s))
            return unit_s, 2.0 if model_s >= 1e-3 else 0.2
        return unit_s, float(self.c)

    def _remarks(self, states: Sequence[TaskState], pick: int) -> dict[str, float | str]:
        """Remarks on how the belief about the chosen operator was found, and on what similar ones promise beside it."""
        if pick not in self.beliefs_:
            return {"belief": "nothing valid yet"}
        curve = self.beliefs_[pick][2]
        numbers = {"acceptance": curve.acceptance, "autocorrelation": curve.autocorrelation}
        text = f"least squares: {curve.fallback}" if curve.fallback else "mcmc"
        numbers["similar_gain_s"] = states[pick].weight * self.behind_s(states, pick)
        return {**{k: v for k, v in numbers.items() if v is not None}, "belief": text}

    def _check(self) -> None:
        if importlib.util.find_spec("emcee") is None:
            raise PieceError(
                "its belief needs emcee: pip install 'tt-schedule[mcmc]', or choose --set scheduler=gradient"
            )
        if min(self.trials, self.first) < 1 or (self.seconds is not None and self.seconds <= 0):
            lengths = f"{self.trials}, first {self.first} and {self.seconds} s"
            raise ValueError(f"a slot needs trials and seconds above 0, got {lengths}")
        if not self.beta > 0:
            raise ValueError(f"beta must be above 0, or infinite for no trust in similar operators, got {self.beta}")
        for option, value, known in (("action", self.action, ACTIONS), ("curve", self.curve, tuple(FAMILIES))):
            if value not in known:
                raise ValueError(f"{option} must be one of {', '.join(known)}, got {value!r}")
        if isinstance(self.c, str) and self.c not in ("auto", "paper"):
            raise ValueError(f"c must be a number, auto or paper, got {self.c!r}")


ACTIONS = ("ucb", "epsilon-greedy", "softmax")
