from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from tt_search import PPO, Anneal
from tt_search.best import row_keys
from tt_search.ppo import _states, move
from tt_spec.testing import SearcherContract, mixed_task

pytest.importorskip("torch")  # the extra [torch]

import torch
from tt_search.actor_critic import ActorCritic, advantages, ppo_loss

pytestmark = pytest.mark.together

SMALL = {"episodes": 16, "steps": 24, "horizon": 8, "minibatch": 32, "patience": 16}


class TestContract(SearcherContract):
    @pytest.fixture
    def piece(self):
        return PPO(**SMALL)


class TestTwoSteps:
    """One knob, one episode of two steps: increment for reward 1, then stay for reward 0.5, where it is cut off.

    All weights are 0, so the biases alone speak: probabilities 1/4, 1/2, 1/4 and the value 0.2 in every state.
    """

    discount, gae = 0.9, 0.99
    a0, a1 = 0.98 + 0.9 * 0.99 * 0.48, 0.48  # delta_0 = 1 + 0.9 * 0.2 - 0.2, delta_1 = 0.5 + 0.9 * 0.2 - 0.2

    def agent(self):
        agent = ActorCritic(1, 4, 0)
        with torch.no_grad():
            for p in agent.parameters():
                p.zero_()
            agent.logits.bias[1] = np.log(2.0)
            agent.value.bias[0] = 0.2
        return agent

    def test_advantages(self):
        at = np.array([[0.2], [0.2]])
        got = advantages(np.array([[1.0], [0.5]]), at, at, np.array([[False], [True]]), self.discount, self.gae)
        assert got[:, 0] == pytest.approx([1.40768, 0.48])

    def test_gradients(self):
        agent = self.agent()
        logs, values = agent(torch.tensor([[0.0], [0.5]]))
        assert logs.exp().tolist() == pytest.approx(np.array([[[0.25, 0.5, 0.25]]] * 2))
        advantage = torch.tensor([self.a0, self.a1])
        old = torch.log(torch.tensor([0.25, 0.5]))  # as when the actions were taken, so every ratio is 1
        loss = ppo_loss(
            logs, values, torch.tensor([[2], [1]]), torch.ones(2, 1), old, advantage, advantage + 0.2, 0.3, 1.0, 0.1
        )
        entropy = 1.5 * np.log(2.0)
        squares = (self.a0**2 + self.a1**2) / 2  # V - R is minus the advantage
        assert loss.item() == pytest.approx(-(self.a0 + self.a1) / 2 + squares - 0.1 * entropy)
        loss.backward()
        # policy: -mean of A_t (1[a_t = k] - pi_k)
        # entropy: dH/db_k = -pi_k (log pi_k + H), which is ln(2) / 8 x (1, -2, 1)
        policy = np.array([0.23596, 0.23192, -0.46788])
        assert agent.logits.bias.grad.numpy() == pytest.approx(policy - 0.1 * np.log(2) / 8 * np.array([1, -2, 1]))
        assert agent.value.bias.grad.item() == pytest.approx(-(self.a0 + self.a1))  # mean of 2 (V - R)


def test_advantages_begin_anew_after_an_end():
    rewards, values = np.array([[1.0], [2.0], [4.0]]), np.array([[0.5], [1.0], [2.0]])
    after = np.array([[1.0], [3.0], [0.0]])  # the second step ended at a state worth 3; the third began elsewhere
    got = advantages(rewards, values, after, np.array([[False], [True], [False]]), 0.5, 0.5)
    # deltas: 1 + 0.5 - 0.5, 2 + 1.5 - 1, 4 + 0 - 2
    assert got[:, 0] == pytest.approx([1.0 + 0.25 * 2.5, 2.5, 2.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "learns"),
    [
        (1.5, 1.0, -1.3, False),  # already likelier by more than the clip: nothing more to gain
        (1.5, -1.0, 1.5, True),
        (0.5, 1.0, -0.5, True),
        (0.5, -1.0, 0.7, False),
        (1.2, 1.0, -1.2, True),
    ],
)
def test_clip_by_hand(ratio, advantage, loss, learns):
    logs = torch.log(torch.tensor([[[0.2, 0.3, 0.5]]])).requires_grad_()
    old, zero = torch.log(torch.tensor([0.3 / ratio])), torch.zeros(1)
    got = ppo_loss(
        logs, zero, torch.tensor([[1]]), torch.ones(1, 1), old, torch.tensor([advantage]), zero, 0.3, 1.0, 0.0
    )
    assert got.item() == pytest.approx(loss)
    got.backward()
    assert bool(logs.grad.any()) == learns


def test_knobs_that_could_not_move_count_nowhere():
    agent, rng = ActorCritic(3, 8, 0), np.random.default_rng(0)
    logs, values = agent(torch.from_numpy(rng.random((5, 3)).astype(np.float32)))
    free = torch.tensor([[1.0, 0.0, 1.0]] * 5)
    actions = torch.from_numpy(rng.integers(0, 3, (5, 3)))
    rest = (torch.full((5,), -2.0), torch.ones(5), torch.zeros(5), 0.3, 1.0, 0.1)
    changed = actions.clone()
    changed[:, 1] = 2 - changed[:, 1]
    a, b = (ppo_loss(logs, values, x, free, *rest) for x in (actions, changed))
    alone = ppo_loss(logs[:, [0, 2]], values, actions[:, [0, 2]], free[:, [0, 2]], *rest)
    assert a.item() == b.item() == pytest.approx(alone.item())


def test_moves():
    space = mixed_task().space
    rows = np.array(
        [
            [0, 3, 0, 0, 0, 0, 1, 0],  # plain: only sketch, tile and unroll can move
            [2, 7, 0, 3, 3, 1, 3, 0],  # cached, at 3: deep counts
            [1, 0, 1, 7, 0, 0, 0, 0],  # tile 0 has an inner factor of 16, inner 7 one of 1
        ]
    )
    assert space.allowed(rows).all()
    up, movable = move(space, rows, np.ones_like(rows))
    assert movable.tolist() == [
        [True, True, False, False, False, False, True, False],
        [True, True, False, True, True, True, True, False],
        [True, True, True, True, False, False, True, False],
    ]
    assert up[0].tolist() == [1, 4, 0, 0, 0, 0, 2, 0], "lanes and inner begin at 0"
    assert up[1].tolist() == [2, 7, 0, 4, 3, 1, 3, 0], "borders hold"
    stay, _ = move(space, rows, np.zeros_like(rows))
    assert np.array_equal(stay, rows)
    refused = np.zeros_like(rows)
    refused[2, 3] = -7  # inner 0 beside tile 0: 16 x 16 exceeds the limit of 64
    assert move(space, rows, refused)[0][2].tolist() == rows[2].tolist()


def test_states_by_hand():
    space = mixed_task().space
    rows = space.sample(50, np.random.default_rng(0))
    states = _states(space, rows)
    assert states.dtype == np.float32 and np.abs(states).max() < 1
    assert states[:, 1] == pytest.approx((rows[:, 1] - (space.shape[1] - 1) / 2) / (space.shape[1] / 2))


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, [0.2, 0.5, 0.3]), (0.5, [4 / 38, 25 / 38, 9 / 38])])
def test_policy_probabilities_are_what_is_drawn(oracle, temperature, expected):
    o, ppo = oracle(knobs=1, choices=1000), PPO()
    agent = ppo._agent(o.ctx)
    with torch.no_grad():
        agent.logits.weight.zero_()
        agent.logits.bias.copy_(torch.log(torch.tensor([0.2, 0.5, 0.3])))
    middle = np.full((20_000, 1), 500)
    path = ppo._walk(o.ctx, middle, temperature, middle[:0], set(), 1)
    shares = np.bincount(path.actions.ravel(), minlength=3) / 20_000
    assert shares == pytest.approx(expected, abs=4 * np.sqrt(0.25 / 20_000))
    assert np.exp(path.logs.ravel()) == pytest.approx(np.array(expected)[path.actions.ravel()], rel=1e-5)
    assert np.array_equal(path.ended, path.actions[..., 0] == 1), "one knob that stays is all of them"


def test_scores_every_row_once(oracle):
    o = oracle(knobs=2, choices=6)
    seen, score = [], o.ctx.score
    o.ctx.score = lambda codes: (seen.extend(map(tuple, codes)), score(codes))[1]
    info = PPO(episodes=32, steps=60, patience=60).propose(o.ctx, 8).info
    assert len(seen) == len(set(seen)) == info["scored"] <= 36 and info["steps"] == 60


def test_equal_scores_teach_nothing_and_break_nothing(oracle):
    o = oracle(knobs=3)
    o.ctx.score = lambda codes: np.full(len(codes), 0.5)
    ppo = PPO(**SMALL)
    ppo.propose(o.ctx, 8)
    assert all(torch.isfinite(p).all() for p in ppo.agent_.parameters())


def test_the_agent_persists_and_is_made_anew_for_another_space(oracle):
    ppo, o = PPO(**SMALL), oracle(knobs=4)
    ppo.propose(o.ctx, 4)
    agent, weights = ppo.agent_, [p.detach().clone() for p in ppo.agent_.parameters()]
    ppo.propose(o.ctx, 4)
    assert ppo.agent_ is agent
    assert any(not torch.equal(a, b) for a, b in zip(weights, agent.parameters(), strict=True)), "it goes on learning"
    ppo.propose(oracle(knobs=5).ctx, 4)
    assert ppo.agent_.knobs == 5


def test_stops_after_steps_without_a_change(oracle):
    o = oracle(knobs=2, choices=3, measured=9)
    info = PPO(patience=10, horizon=5).propose(o.ctx, 4).info
    assert info["steps"] == 10 and info["settled"] == 0


def test_needs_torch(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        PPO()


@pytest.mark.parametrize("coolest", [0.0, -1.0, 2.0, float("nan")])
def test_a_policy_cannot_cool_to_nothing(oracle, coolest):
    with pytest.raises(ValueError, match="coolest must be above 0 and at most 1"):
        PPO(coolest=coolest).propose(oracle(knobs=3).ctx, 4)


def test_an_episode_ends_where_one_has_been(oracle):
    o, ppo = oracle(knobs=4, choices=1000), PPO(ending=2.0)  # so nothing else ends it
    path = ppo._walk(o.ctx, o.ctx.space.sample(50, o.ctx.rng), 1.0, o.ctx.rows, met := set(), 30)
    keys = row_keys(path.after.reshape(-1, 4)).reshape(30, 50)
    before = [np.isin(keys[t], keys[:t]) for t in range(30)]
    assert np.array_equal(path.ended, before) and path.ended.any() and met == set(keys.ravel().tolist())
    on = ~path.ended[:-1]
    assert np.array_equal(path.before[1:][on], path.after[:-1][on])


def test_gains_make_the_advantages_of_scores():
    """Rewards Phi(s') - Phi(s) and values V(s) are (1 - discount) Phi(s') and V(s) + Phi(s): the same advantages."""
    rng, discount = np.random.default_rng(0), 0.9
    phi, v = rng.random((2, 6, 4))
    ended = np.zeros((5, 4), dtype=bool)
    gains = advantages(phi[1:] - phi[:-1], v[:-1], v[1:], ended, discount, 0.99)
    w = v + phi
    assert gains == pytest.approx(advantages((1 - discount) * phi[1:], w[:-1], w[1:], ended, discount, 0.99))


SEEDS = range(6)


def compared(make_oracle, landscape):
    """One per seed: how much better the mean of PPO's best 32 rows is than that of other searchers with as many rows
    scored, and how much better the rows of its last steps are than those of its first."""
    found = {}
    for seed in SEEDS:
        made = [make_oracle(seed=seed, landscape=landscape, name=f"{landscape}{seed}") for _ in range(4)]
        ppo = PPO(patience=500).propose(made[0].ctx, 32)
        asked = made[0].asked
        others = {
            "annealing": Anneal(patience=500),
            "annealing, 0.3 spreads": Anneal(unit="spread", temperature=0.3, patience=500),
            "an agent that does not learn": PPO(epochs=0, patience=500),
        }
        gains = {"random search": made[0].random_best(asked, 32).mean()}
        for (name, other), o in zip(others.items(), made[1:], strict=True):
            gains[name] = other.propose(o.ctx, 32).scores[:32].mean()
            assert o.asked >= asked - 256, f"{name} had fewer rows scored"
        means = ppo.info["mean_scores"]
        row = {name: ppo.scores[:32].mean() - score for name, score in gains.items()}
        row["its own beginning"] = np.mean(means[-3:]) - np.mean(means[:3])
        for name, gain in row.items():
            found.setdefault(name, []).append(gain)
    return {k: np.array(v) for k, v in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("landscape", ["separable", "rotated", "deceptive"])
def test_learns(make_oracle, landscape):
    """One test of each landscape, so that no two processes make the same comparison."""
    found = compared(make_oracle, landscape)
    equal = found.pop("annealing, 0.3 spreads")  # annealing that cools with the spread: at least as good
    assert len(found) == 4
    for what, gain in found.items():
        low = gain.mean() - 2.57 * gain.std(ddof=1) / np.sqrt(len(gain))  # 95 % by Student's t with 5 degrees
        assert low > 0, f"better than {what} by {gain.round(4).tolist()} on the seeds {[*SEEDS]}"
    high = equal.mean() + 2.57 * equal.std(ddof=1) / np.sqrt(len(equal))
    assert high >= 0, f"better by {equal.round(4).tolist()} on the seeds {[*SEEDS]}"
