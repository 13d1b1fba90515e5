"""The piece `tabnet`, with the real pytorch-tabnet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing import SurrogateContract
from tt_spec.types import Statements

pytest.importorskip("pytorch_tabnet", reason="the extra is not installed: pip install 'tt-surrogate[tabnet]'")
torch = pytest.importorskip("torch")

from tt_surrogate import TabNet  # noqa: E402
from tt_surrogate.weights import WeightsError  # noqa: E402

TASK = synthetic_task("a", knobs=5)
SMALL: dict[str, Any] = {"width": 16, "decisions": 4, "attention": 4, "steps": 2, "ghost": 512}


class TestContract(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return TabNet(**SMALL, epochs=3, tune_steps=3, dropout=0.1)


class TestUnmasked(SurrogateContract):
    @pytest.fixture
    def piece(self):
        return TabNet(**SMALL, epochs=2, tune_steps=2, freeze="none", loss="squared", mask=False, operator=False)


def data(n, rng):
    """Programs of 1 to 4 statements; a program's seconds are a sum over its statements."""
    counts = rng.integers(1, 5, n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.zeros((offsets[-1], 164))
    values[:, :6] = rng.integers(0, 9, (offsets[-1], 6))
    seconds = np.bincount(np.repeat(np.arange(n), counts), 1 + values[:, 0] + 2 * (values[:, 2] > 5))
    return Statements(values, offsets, np.zeros((n, 10))), seconds.min() / seconds


def pairs(model, X, y):
    F = model.predict(TASK, X).mean
    right = np.sign(F[:, None] - F[None, :])[y[:, None] > y[None, :]]
    return (0.5 + 0.5 * right).mean()


@pytest.fixture(scope="module")
def school():
    rng = np.random.default_rng(0)
    return [(synthetic_task(f"t{i}", knobs=4), *data(60, rng)) for i in range(4)]


@pytest.fixture(scope="module")
def learned(school):
    model, told = TabNet(**SMALL, epochs=25, rate=2e-2, batch=128), []
    model.pretrain(school, np.random.default_rng(0), lambda p: told.append((p.loss, p.state())) is None)
    return model, told


def test_it_learns_beforehand(learned):
    model, told = learned
    X, y = data(200, np.random.default_rng(9))
    assert pairs(model, X, y) > 0.8 and told[-1][0] < 0.7 * told[0][0]


def test_no_score_depends_on_its_neighbours(learned):
    X, _ = data(40, np.random.default_rng(5))
    together = learned[0].predict(TASK, X).mean
    alone = [learned[0].predict(TASK, X[i : i + 1]).mean[0] for i in range(40)]
    assert alone == pytest.approx(together, rel=1e-4, abs=1e-5)
    assert np.array_equal(learned[0].predict(TASK, X).mean, together), "predicting moves no average"


def test_a_file_gives_the_same_scores_and_one_of_other_sizes_is_refused(learned, tmp_path):
    X, _ = data(20, np.random.default_rng(5))
    learned[0].save(tmp_path / "w", {})
    again = TabNet(weights=tmp_path / "w")
    before = again.predict(TASK, X).mean
    assert again.width == 16 and np.array_equal(np.argsort(before), np.argsort(learned[0].predict(TASK, X).mean))
    raw = (tmp_path / "w").read_bytes()
    (tmp_path / "bad").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(WeightsError, match="damaged"):
        TabNet(weights=tmp_path / "bad").prestart()


def test_what_was_stopped_goes_on_to_the_same_weights_averages_included(school, learned):
    _, told = learned
    averages = [k for k in told[3][1] if k.endswith("running_mean")]
    assert averages and not any(f"m.{k.removeprefix('p.')}" in told[3][1] for k in averages), "no gradient moves them"
    assert any(not np.array_equal(told[3][1][k], told[9][1][k]) for k in averages), "what was seen does"
    again, last = TabNet(**SMALL, epochs=25, rate=2e-2, batch=128), []

    def until(p):
        last.append(p.state())
        return p.done < 7

    again.pretrain(school, np.random.default_rng(0), until, told[4][1])
    assert all(np.array_equal(last[-1][k], v) for k, v in told[6][1].items()), "epochs 6 and 7 after a stop at 5"


def test_own_rows_change_what_was_learned(learned, school, tmp_path):
    learned[0].save(tmp_path / "w", {})
    X, y = data(120, np.random.default_rng(1))
    y = 1.05 - y  # here the slow ones are fast
    for freeze in ("body", "none"):
        model = TabNet(weights=tmp_path / "w", freeze=freeze, anchor=0.0, tune_steps=40, tune_rate=3e-2)
        wrong = pairs(model, X, y)
        model.fit([(TASK, X, y)], np.random.default_rng(0))
        assert wrong < 0.3 < 0.6 < pairs(model, X, y), freeze


def test_torchs_own_randomness_is_left_alone(school):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    TabNet(**SMALL, epochs=1).fit(school, np.random.default_rng(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("options", [{"width": 0}, {"gamma": 0.5}, {"ghost": 0}, {"freeze": "head"}])
def test_options_that_cannot_be_used_are_refused_at_once(options: Any):
    with pytest.raises(ValueError, match="must be"):
        TabNet(**options)
