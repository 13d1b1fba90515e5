"""The networks of `tt_search.ppo` and the advantages and the loss that they learn from. Loads torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

__all__ = ["ActorCritic", "advantages", "one_thread", "ppo_loss"]


class ActorCritic(nn.Module):
    """Policy and value network with a shared first layer, tanh throughout.

    Weights are drawn as in the PPO authors' baselines: orthogonal, the policy's last layer a hundredth of the others,
    so that a new agent moves at random.

    Args:
        knobs: d; a state is d numbers in [-1, 1].
        hidden: Units of each hidden layer.
        seed: Of the weights.
    """

    def __init__(self, knobs: int, hidden: int, seed: int) -> None:
        super().__init__()
        self.knobs = knobs
        self.shared = nn.Linear(knobs, hidden)
        self.policy, self.logits = nn.Linear(hidden, hidden), nn.Linear(hidden, 3 * knobs)
        self.critic, self.value = nn.Linear(hidden, hidden), nn.Linear(hidden, 1)
        generator = torch.Generator().manual_seed(seed)
        for layer, gain in (
            (self.shared, 2**0.5),
            (self.policy, 2**0.5),
            (self.critic, 2**0.5),
            (self.logits, 0.01),
            (self.value, 1.0),
        ):
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """Log-probabilities `(n, d, 3)` of decrement, stay and increment, and values `(n,)`, of states `(n, d)`.

        Args:
            temperature: Divides the logits: below 1 the policy is sharper.
        """
        shared = torch.tanh(self.shared(states))
        logits = self.logits(torch.tanh(self.policy(shared))).view(-1, 3, self.knobs)
        logs = log_softmax(logits / temperature, dim=1)  # five times as fast as over the last of three
        return logs.transpose(1, 2), self.value(torch.tanh(self.critic(shared)))[:, 0]


def advantages(
    rewards: np.ndarray, values: np.ndarray, after: np.ndarray, ended: np.ndarray, discount: float, gae: float
) -> np.ndarray:
    """Generalised advantage estimates of T steps of n episodes, `(T, n)`.

        delta_t = r_t + discount * V(s_{t+1}) - V(s_t)
        A_t = delta_t + discount * gae * A_{t+1}, which begins anew after the end of an episode

    Source: Schulman et al. (2016), High-dimensional continuous control using generalized advantage estimation.

    Args:
        rewards, values, after, ended: `(T, n)`: r_t, V(s_t), V(s_{t+1}), and whether the episode ended with the step.
            An end cuts an episode off and does not void what would have followed, so V(s_{t+1}) counts there too.
    """
    delta = rewards + discount * after - values
    out, following = np.zeros_like(delta), np.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        following = delta[t] + discount * gae * np.where(ended[t], 0.0, following)
        out[t] = following
    return out


def ppo_loss(
    logs: Tensor,
    values: Tensor,
    actions: Tensor,
    free: Tensor,
    old: Tensor,
    advantage: Tensor,
    returns: Tensor,
    clip: float,
    value: float,
    entropy: float,
) -> Tensor:
    """The loss that the agent minimises, the mean over n steps of

        - min(rho A, clamp(rho, 1 - clip, 1 + clip) A) + value * (V - R)^2 - entropy * H

    with rho the probability of the actions taken, all knobs together, over that when they were taken.

    Args:
        logs, values: Of `ActorCritic`, `(n, d, 3)` and `(n,)`.
        actions: `(n, d)` int64 in {0, 1, 2}.
        free: `(n, d)` 1 for knobs that could move, 0 for the others, which count nowhere.
        old: Log-probability of the actions when they were taken, `(n,)`.
        advantage, returns: A and R, `(n,)`.
    """
    new = (logs.gather(-1, actions[..., None])[..., 0] * free).sum(-1)
    rho = torch.exp(new - old)
    surrogate = torch.minimum(rho * advantage, rho.clamp(1 - clip, 1 + clip) * advantage)
    randomness = (-(logs.exp() * logs).sum(-1) * free).sum(-1)
    return (-surrogate + value * (values - returns) ** 2 - entropy * randomness).mean()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread inside the `with` block: networks this small gain nothing from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
