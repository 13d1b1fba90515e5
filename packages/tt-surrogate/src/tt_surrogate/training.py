"""Adam over a network's parameters, by PyTorch's gradients; torch is imported when training begins.

Source: Kingma and Ba (2015), Adam, arXiv:1412.6980; the settings are ATFormer's and TenSet's (Bai et al. 2023, A.2).
Nothing is drawn from torch's own generator and the state is arrays, so that a training that was stopped goes on to the
same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tt_spec.roles import Progress

from tt_surrogate.losses import LossName, mean_loss
from tt_surrogate.programs import Programs, batches, pad, slates
from tt_surrogate.weights import WeightsError

__all__ = ["Adam", "Forward", "Plan", "train"]

Forward = Callable[[Mapping[str, Any], Any, Any, Any, Callable[[Any], Any]], Any]
"""`forward(P, Z, keep, xp, drop)`: scores `(n,)` of padded programs."""


@dataclass(frozen=True)
class Plan:
    """How to train.

    Args:
        loss: See `tt_surrogate.losses`.
        epochs: Passes over all programs.
        batch: Programs of a step.
        slate: Programs of one task that are compared with each other, at most.
        rate, last_rate: Adam's step at first and at last, along half a cosine.
        decay: L2 penalty.
        clip: Largest norm of a gradient.
        dropout: Share of units that are left out at random.
        seconds: When to end before all epochs are over.
        threads: Of torch; 0 means all.
        length: Statements that a program is padded to, at least.
    """

    loss: LossName = "lambda"
    epochs: int = 50
    batch: int = 512
    slate: int = 64
    rate: float = 7e-4
    last_rate: float = 1e-6
    decay: float = 1e-6
    clip: float = 0.5
    dropout: float = 0.0
    seconds: float = math.inf
    threads: int = 1
    length: int = 1

    def rate_of(self, epoch: int) -> float:
        """Adam's step in an epoch, counted from 0."""
        share = epoch / max(1, self.epochs - 1)
        return self.last_rate + (self.rate - self.last_rate) * 0.5 * (1.0 + math.cos(math.pi * share))


class Adam:
    """Moments of gradients, by parameter; works on numpy's arrays and torch's alike, in place."""

    def __init__(self, P: Mapping[str, Any], decay: float = 0.0, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.decay, self.betas, self.steps = decay, betas, 0
        self.first = {name: value * 0 for name, value in P.items()}
        self.second = {name: value * 0 for name, value in P.items()}

    def step(self, P: Mapping[str, Any], grads: Mapping[str, Any], rate: float) -> None:
        self.steps += 1
        b1, b2 = self.betas
        for name, p in P.items():
            g = grads[name] + self.decay * p
            m, v = self.first[name], self.second[name]
            m *= b1
            m += (1 - b1) * g
            v *= b2
            v += (1 - b2) * g * g
            p -= rate / (1 - b1**self.steps) * m / ((v / (1 - b2**self.steps)) ** 0.5 + 1e-8)


def train(
    P: dict[str, np.ndarray],
    forward: Forward,
    data: Programs,
    plan: Plan,
    seed: int,
    frozen: Iterable[str] = (),
    report: Callable[[Progress, dict[str, np.ndarray]], bool] = lambda p, P: True,
    start: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Parameters after training; P is left alone.

    Args:
        frozen: Names of parameters that stay.
        report: Told where training is, and the parameters, after every epoch; False ends it.
        start: A state of `Progress.state`; its epoch is reported again.
    """
    import torch

    free = [name for name in P if name not in set(frozen)]
    weights = {name: torch.from_numpy(np.array(value)) for name, value in P.items()}
    learned = {name: weights[name].requires_grad_() for name in free}
    with torch.no_grad():
        adam, done, loss = Adam(learned, plan.decay), 0, 0.0
    if start is not None:
        done, loss = _restore(start, weights, adam)
    began = time.monotonic()

    def state(at: int, value: float) -> dict[str, np.ndarray]:
        kept = {f"p.{k}": v.detach().numpy().copy() for k, v in weights.items()}
        kept |= {f"m.{k}": adam.first[k].numpy().copy() for k in free}
        kept |= {f"v.{k}": adam.second[k].numpy().copy() for k in free}
        return kept | {"at": np.array([at, adam.steps]), "loss": np.array(value)}

    def plain() -> dict[str, np.ndarray]:
        return {k: v.detach().numpy().copy() for k, v in weights.items()}

    def told() -> bool:
        at, value = done, loss
        return report(Progress(at, plan.epochs, value, lambda: state(at, value)), plain())

    with _threads(torch, plan.threads):
        if start is not None and not told():
            return plain()
        while done < plan.epochs and time.monotonic() - began < plan.seconds:
            rng = np.random.default_rng([seed, done])
            losses = []
            for batch in batches(slates(data.sizes, plan.slate, rng), plan.batch):
                losses.append(_step(torch, weights, learned, adam, forward, data, batch, plan, rng, done))
                if time.monotonic() - began > plan.seconds:
                    break
            done, loss = done + 1, float(np.mean(losses)) if losses else 0.0
            if not told():
                break
    return plain()


def _step(
    torch: Any,
    weights: Mapping[str, Any],
    learned: Mapping[str, Any],
    adam: Adam,
    forward: Forward,
    data: Programs,
    batch: Sequence[np.ndarray],
    plan: Plan,
    rng: np.random.Generator,
    epoch: int,
) -> float:
    """One step on a batch of slates; returns its loss."""
    index = np.concatenate(batch)
    Z, keep = pad(data.X, data.offsets, index, plan.length)

    def drop(x: Any) -> Any:
        if not plan.dropout:
            return x
        kept = rng.random(x.shape, dtype=np.float32) >= plan.dropout
        return x * torch.from_numpy(kept) / (1.0 - plan.dropout)

    F = forward(weights, torch.from_numpy(Z), torch.from_numpy(keep), torch, drop)
    loss, grad = mean_loss(
        plan.loss, F.detach().numpy().astype(np.float64), data.y[index], [len(slate) for slate in batch]
    )
    found = torch.autograd.grad(F, list(learned.values()), torch.from_numpy(grad.astype(np.float32)), allow_unused=True)
    with torch.no_grad():
        grads = {k: torch.zeros_like(p) if g is None else g for (k, p), g in zip(learned.items(), found, strict=True)}
        norm = float(sum((g * g).sum() for g in grads.values())) ** 0.5
        if norm > plan.clip:
            grads = {k: g * (plan.clip / norm) for k, g in grads.items()}
        adam.step(learned, grads, plan.rate_of(epoch))
    return loss


def _restore(start: Mapping[str, np.ndarray], weights: Mapping[str, Any], adam: Adam) -> tuple[int, float]:
    import torch

    places = {f"p.{k}": v for k, v in weights.items()}
    places |= {f"{kind}.{k}": v for kind, some in (("m", adam.first), ("v", adam.second)) for k, v in some.items()}
    if any(k not in start or tuple(start[k].shape) != tuple(v.shape) for k, v in places.items()) or "at" not in start:
        raise WeightsError("this checkpoint is of another model or of other options: delete it to begin anew")
    with torch.no_grad():
        for name, value in places.items():
            value.copy_(torch.from_numpy(np.array(start[name])))
    done, adam.steps = (int(i) for i in start["at"])
    return done, float(start["loss"])


@contextmanager
def _threads(torch: Any, count: int) -> Any:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
