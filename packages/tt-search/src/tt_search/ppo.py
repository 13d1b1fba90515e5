"""Reinforcement learning: proximal policy optimisation over the cost model's scores."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tt_spec.rng import draw
from tt_spec.space import Space
from tt_spec.types import Context, Proposal

from tt_search.best import Best, row_keys
from tt_search.scored import Scored

if TYPE_CHECKING:
    from tt_search.actor_critic import ActorCritic

__all__ = ["PPO", "move"]


class PPO:
    """Adaptive exploration: an agent that learns which way to turn every knob.

    The state is a configuration, each knob's index over its number of choices, from -1 to 1; an action decrements,
    keeps or increments every knob at once; the reward is what the cost model's score gains by it. All episodes advance
    as one batch: `horizon` steps by the policy as it is, then the distinct rows met are scored together, each once per
    call, and the agent learns from them. The agent goes on where the last call ended, under the refitted model; the
    best distinct fresh rows of all episodes are kept.

    Rewards are counted in standard deviations of random rows' scores, because the models of one task differ in scale.
    An episode that ends counts as cut off, not as worth nothing from then on (else the agent would learn not to stay
    anywhere), and another begins in its place. Knobs that the configuration does not use neither move nor count.

    Differences from the paper, and why:

    - The reward there is the score itself. Under a discount, gains Phi(s') - Phi(s) sum up to 1 - discount times what
      scores do, less Phi(s), which no action changes: the best policy stays the same (Ng et al., 1999), but the value
      network need not first learn the model's score of every row before a step can be judged.
    - The policy sharpens: its logits are divided by a temperature that falls from 1 to `coolest` as rows are scored,
      both in acting and in learning. With the paper's entropy weight alone it stays too random to find the best rows
      around the point to which it has learnt to go. The next call begins at 1 again, since the model may have changed.
    - An episode also ends at a row that any episode has reached before in this call: a policy that has settled would
      go the same ways again, over rows already scored.
    - The agent learns every `horizon` steps, not at the end of an episode, and in small minibatches: at the paper's
      step size a call is short of steps of the optimiser, not of rows.

    Source: Ahn et al. (2020), Chameleon, section 3.2, tables 7 and 9 (ICLR); Schulman et al. (2017), Proximal policy
    optimization algorithms (arXiv:1707.06347); Ng et al. (1999), Policy invariance under reward transformations (ICML).

    Args:
        episodes: Episodes in parallel. (default: 128)
        steps: Most steps of an episode, and of a call. (default: 500)
        horizon: Steps between two updates of the agent. (default: 10)
        minibatch: Steps of one gradient. (default: 128)
        hidden: Units of each hidden layer, of which policy and value network have two, sharing the first.
            (default: 20)
        step_size: Adam's. (default: 1e-3)
        discount: Weight of the reward one step later. (default: 0.9)
        gae: The parameter of generalised advantage estimation. (default: 0.99)
        epochs: Passes over the steps of an update. (default: 3)
        clip: Distance from 1 beyond which a ratio of new to old probability gains nothing more. (default: 0.3)
        value: Weight of the value network's squared error. (default: 1.0)
        entropy: Weight of the policy's entropy. (default: 0.1)
        coolest: Temperature of the policy once a call has scored `episodes * steps` rows, reached from 1 by equal
            ratios. (default: 0.3)
        ending: An episode ends when this share of the knobs did not move, by choice or held by a border.
            (default: 0.75)
        elite: Share of the episodes that begin at one of the best rows met, of a call's first ones at one of the best
            measured; the others begin at random rows. (default: 0.8; the paper does not say)
        patience: Steps without a change in the kept set after which the call ends. (default: 50)
        keep: Rows in the kept set, AutoTVM's plan size; more if more are asked for. (default: 64)
        choice: Rows handed over per row asked for, so that the sampler has something to choose from. (default: 2.0)
        random_share: Part of each batch that the pipeline fills with random rows. (default: 0.05)

    Attributes:
        agent_: The networks, an `actor_critic.ActorCritic`.
    """

    def __init__(
        self,
        episodes: int = 128,
        steps: int = 500,
        horizon: int = 10,
        minibatch: int = 128,
        hidden: int = 20,
        step_size: float = 1e-3,
        discount: float = 0.9,
        gae: float = 0.99,
        epochs: int = 3,
        clip: float = 0.3,
        value: float = 1.0,
        entropy: float = 0.1,
        coolest: float = 0.3,
        ending: float = 0.75,
        elite: float = 0.8,
        patience: int = 50,
        keep: int = 64,
        choice: float = 2.0,
        random_share: float = 0.05,
    ) -> None:
        if importlib.util.find_spec("torch") is None:  # loading it takes seconds, so not before it is used
            raise ModuleNotFoundError("No module named 'torch'")
        self.episodes, self.steps, self.horizon, self.minibatch = episodes, steps, horizon, minibatch
        self.hidden, self.step_size, self.discount, self.gae = hidden, step_size, discount, gae
        self.epochs, self.clip, self.value, self.entropy = epochs, clip, value, entropy
        self.coolest, self.ending, self.elite, self.patience = coolest, ending, elite, patience
        self.keep, self.choice, self.random_share = keep, choice, random_share
        self.agent_: ActorCritic | None = None

    def propose(self, ctx: Context, n: int) -> Proposal:
        """Up to `choice * n` rows, best first; random ones before there is a model."""
        if not 0 < self.coolest <= 1:
            raise ValueError(f"coolest must be above 0 and at most 1 (1 never sharpens the policy), got {self.coolest}")
        if not ctx.fitted:
            codes = draw(ctx.space, ctx.seen, n, ctx.rng)
            return Proposal(codes, np.zeros(len(codes)), self.random_share)
        from tt_search.actor_critic import one_thread

        with one_thread():
            return self._search(ctx, max(n, math.ceil(self.choice * n)))

    def _search(self, ctx: Context, asked: int) -> Proposal:
        best, scored = Best(ctx, max(self.keep, asked)), Scored(ctx.score)
        known = ctx.rows[np.argsort(-ctx.y, kind="stable")[: self.keep]]
        some = ctx.space.sample(self.episodes, ctx.rng)
        if not len(some):
            return Proposal(best.codes, best.scores, self.random_share)
        start = scored(some)
        spread = float(start.std())
        spread = spread if spread > 1e-8 else 1.0  # a model that tells no rows apart
        best.add(some, start)
        codes = self._start(ctx, known, self.episodes)
        met: set[int] = set()
        steps = quiet = episodes = 0
        scores: list[float] = []
        while steps < self.steps and quiet < self.patience:
            temperature = self.coolest ** min(len(scored.known) / (self.episodes * self.steps), 1.0)
            path = self._walk(ctx, codes, temperature, best.codes, met, min(self.horizon, self.steps - steps))
            rows = np.stack([path.before, path.after])
            before, after = scored(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])
            for reached, worth in zip(path.after, after, strict=True):
                quiet = 0 if best.add(reached, worth) else quiet + 1
            self._learn(ctx, path, (after - before) / spread, temperature)
            codes, steps = path.last, steps + len(path.after)
            episodes += int(path.ended.sum())
            scores.append(float(after.mean()))
        info = {
            "steps": steps,
            "settled": steps - quiet,
            "episodes": self.episodes + episodes,
            "scored": len(scored.known),
            "mean_scores": scores,
        }
        if len(best.scores):
            info["best_score"] = float(best.scores[0])
        return Proposal(best.codes[:asked], best.scores[:asked], self.random_share, info)

    def _walk(
        self, ctx: Context, codes: np.ndarray, temperature: float, good: np.ndarray, met: set[int], steps: int
    ) -> Path:
        """`steps` steps of every episode by the policy as it is; episodes may begin at rows `good`, `met` are keys."""
        import torch

        agent = self._agent(ctx)
        before, actions, logs, free, after, ended = [], [], [], [], [], []
        for _ in range(steps):
            with torch.no_grad():
                log = agent(torch.from_numpy(_states(ctx.space, codes)), temperature)[0].numpy()
            chosen = (log + ctx.rng.gumbel(size=log.shape)).argmax(axis=-1)  # a draw by these probabilities
            moved, movable = move(ctx.space, codes, chosen - 1)
            held = ((moved == codes) & movable).sum(axis=1)
            keys = row_keys(moved).tolist()
            end = (held >= self.ending * movable.sum(axis=1)) | np.array([k in met for k in keys])
            met.update(keys)
            before.append(codes)
            actions.append(chosen)
            logs.append((np.take_along_axis(log, chosen[..., None], -1)[..., 0] * movable).sum(axis=1))
            free.append(movable)
            after.append(moved)
            ended.append(end)
            codes = moved
            if end.any():
                codes = moved.copy()
                codes[end] = self._start(ctx, good, int(end.sum()))
        return Path(*map(np.stack, (before, actions, logs, free, after, ended)), last=codes)

    def _start(self, ctx: Context, good: np.ndarray, n: int) -> np.ndarray:
        """Rows at which `n` episodes begin, `(n, d)`."""
        rows = ctx.space.sample(n, ctx.rng)
        if len(good):
            chosen = ctx.rng.random(len(rows)) < self.elite
            rows[chosen] = good[ctx.rng.integers(len(good), size=int(chosen.sum()))]
        return rows

    def _learn(self, ctx: Context, path: Path, reward: np.ndarray, temperature: float) -> None:
        """The clipped policy gradient over `epochs` passes in minibatches."""
        import torch

        from tt_search.actor_critic import advantages, ppo_loss

        agent, optimiser = self._agent(ctx), self.optimiser_
        d = path.before.shape[-1]
        states, after = (_states(ctx.space, p.reshape(-1, d)) for p in (path.before, path.after))
        with torch.no_grad():
            v = agent(torch.from_numpy(np.concatenate([states, after])))[1].numpy().reshape(2, *reward.shape)
        a = advantages(reward, v[0], v[1], path.ended, self.discount, self.gae)
        returns = (a + v[0]).ravel()
        a = ((a - a.mean()) / (a.std() + 1e-8)).ravel()
        parts = (path.actions.reshape(-1, d), path.free.reshape(-1, d), path.logs.ravel(), a, returns)
        tensors = [torch.from_numpy(p if p.dtype == np.int64 else p.astype(np.float32)) for p in (states, *parts)]
        for _ in range(self.epochs):
            order = torch.from_numpy(ctx.rng.permutation(len(states)))
            minibatches = zip(*(t[order].split(self.minibatch) for t in tensors), strict=True)
            for inputs, actions, free, old, advantage, target in minibatches:
                logs, values = agent(inputs, temperature)
                optimiser.zero_grad()
                loss = ppo_loss(
                    logs, values, actions, free, old, advantage, target, self.clip, self.value, self.entropy
                )
                loss.backward()
                optimiser.step()

    def _agent(self, ctx: Context) -> ActorCritic:
        """The agent of this space, made anew when the space changes."""
        if self.agent_ is None or self._space_key != ctx.space.key:
            import torch

            from tt_search.actor_critic import ActorCritic

            self.agent_ = ActorCritic(len(ctx.space.knobs), self.hidden, int(ctx.rng.integers(2**31)))
            self.optimiser_ = torch.optim.Adam(self.agent_.parameters(), self.step_size, fused=True)
            self._space_key = ctx.space.key
        return self.agent_


@dataclass(frozen=True)
class Path:
    """T steps of n episodes.

    Args:
        before, after: Rows before and after each step, `(T, n, d)`.
        actions: `(T, n, d)` int64: 0, 1, 2 for decrement, stay, increment.
        logs: Log-probability of the actions of the knobs that could move, `(T, n)`.
        free: Which knobs could move, `(T, n, d)` bool.
        ended: Which episodes ended with the step, `(T, n)` bool.
        last: Rows at which to go on, `(n, d)`.
    """

    before: np.ndarray
    actions: np.ndarray
    logs: np.ndarray
    free: np.ndarray
    after: np.ndarray
    ended: np.ndarray
    last: np.ndarray


def move(space: Space, codes: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows `(n, d)` after knobs were turned by -1, 0 or 1 each, held by borders, and which knobs could move at all.

    Rows that the space does not allow stay what they were.
    """
    shape = np.asarray(space.shape)
    movable = space.active(codes) & (shape > 1)
    moved = space.canonical(np.clip(codes + turns * movable, 0, shape - 1))
    return np.where(space.allowed(moved)[:, None], moved, codes), movable


def _states(space: Space, codes: np.ndarray) -> np.ndarray:
    """Each knob's index over its number of choices, from -1 to 1, `(n, d)` float32."""
    return ((2 * codes + 1) / np.asarray(space.shape) - 1).astype(np.float32)
