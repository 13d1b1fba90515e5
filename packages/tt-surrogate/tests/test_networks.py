"""The networks by their definitions: by hand, beside PyTorch's own layers, and in what they must not depend on."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_spec import Plugins
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.testing.examples import statements
from tt_spec.types import Statements
from tt_surrogate import LSTM, MLP, ATFormer, MultiHeadAttention, hooks, layers, weights
from tt_surrogate.programs import batches, column_maxima, pad, scaled, slates
from tt_surrogate.training import Adam
from tt_surrogate.weights import WeightsError

NETWORKS = [ATFormer, MultiHeadAttention, LSTM, MLP]
TASK = synthetic_task("a", knobs=5)
each = pytest.mark.parametrize("model", NETWORKS, ids=lambda m: m.name)


def data(n, rng, most=4):
    """Programs of 1 to `most` statements; a program's seconds are a sum over its statements."""
    counts = rng.integers(1, most + 1, n)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.zeros((offsets[-1], 164))
    values[:, :6] = rng.integers(0, 9, (offsets[-1], 6))
    cost = 1 + values[:, 0] + 2 * (values[:, 2] > 5)
    seconds = np.bincount(np.repeat(np.arange(n), counts), cost)
    return Statements(values, offsets, rng.random((n, 10))), seconds.min() / seconds


def school(rng, tasks=4, n=60):
    return [(synthetic_task(f"t{i}", knobs=4), *data(n, rng)) for i in range(tasks)]


def pretrained(model, rng=None, **options):
    piece = model(**{"width": 16, "epochs": 3, **options})
    piece.pretrain(school(rng or np.random.default_rng(0)), np.random.default_rng(0), lambda p: True)
    return piece


def test_the_score_of_two_statements_by_hand():
    """Width 2, no encoder layer, one input column: every number can be followed."""
    piece = ATFormer(width=2, heads=1, layers=0)
    P = {
        "embed.0.weight": np.array([[1.0, -1.0]]),
        "embed.0.bias": np.array([0.0, 3.0]),
        "embed.1.weight": np.array([[2.0, 0.0], [0.0, 1.0]]),
        "embed.1.bias": np.array([-1.0, 0.0]),
        "out.weight": np.array([[0.5], [10.0]]),
        "out.bias": np.array([0.25]),
    }
    Z, keep = np.array([[[1.0], [2.0], [9.0]]]), np.array([[True, True, False]])
    # x = 1: (1, 2) -> (1, 2); x = 2: (2, 1) -> (3, 1); summed (4, 3); 0.5 * 4 + 10 * 3 + 2 * 0.25
    assert piece.forward(P, Z, keep, np) == pytest.approx([32.5])


def test_attention_of_two_statements_by_hand():
    P = {
        "a.qkv.weight": np.array([[math.log(3.0), 1.0, 5.0]]),
        "a.qkv.bias": np.zeros(3),
        "a.out.weight": np.array([[2.0]]),
        "a.out.bias": np.array([1.0]),
    }
    Z = np.array([[[1.0], [0.0], [7.0]]])
    found = layers.attention(P, "a", Z, np.array([[True, True, False]]), 1, np)
    # q of the first is log 3: shares 3/4 and 1/4 of values 5 and 0; the second's are 1/2 and 1/2
    assert found[0, :2, 0] == pytest.approx([2 * 3.75 + 1, 2 * 2.5 + 1])


def test_an_encoder_layer_is_pytorchs():
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.randn_like(p) * 0.3)
    own = {k: v.detach().numpy() for k, v in theirs.named_parameters()}
    names = {"linear1": "up", "linear2": "down", "self_attn.out_proj": "out", "norm1": "norm1", "norm2": "norm2"}
    P = {f"e.{mine}.{w}": own[f"{name}.{w}"] for name, mine in names.items() for w in ("weight", "bias")}
    P |= {"e.qkv.weight": own["self_attn.in_proj_weight"], "e.qkv.bias": own["self_attn.in_proj_bias"]}
    P = {k: v.T if k.endswith("weight") and v.ndim == 2 else v for k, v in P.items()}
    x, keep = (
        np.random.default_rng(0).normal(size=(5, 4, 8)).astype(np.float32),
        np.arange(4) < np.array([[4], [1], [2], [3], [4]]),
    )
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(x), src_key_padding_mask=torch.from_numpy(~keep)).numpy()
    found = layers.encoder(P, "e", x, keep, 2, np, lambda v: v)
    assert np.abs(found - wanted)[keep].max() < 1e-5


def test_the_recurrent_layer_is_pytorchs():
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(6, 6, batch_first=True)
    own = {k: v.detach().numpy() for k, v in theirs.named_parameters()}
    P = {"l.input.weight": own["weight_ih_l0"].T, "l.input.bias": own["bias_ih_l0"]}
    P |= {"l.state.weight": own["weight_hh_l0"].T, "l.state.bias": own["bias_hh_l0"]}
    x = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    for length in (1, 4):
        keep = np.tile(np.arange(4) < length, (3, 1))
        wanted = theirs(torch.from_numpy(x[:, :length]))[1][0][0].detach().numpy()
        assert np.abs(layers.lstm(P, "l", x, keep, np) - wanted).max() < 1e-5


@each
def test_numpy_and_pytorch_agree(model):
    piece = pretrained(model)
    X, _ = data(50, np.random.default_rng(5))
    Z, keep = pad(scaled(X, piece.base_.maxima), X.offsets, np.arange(50))
    P = {k: torch.from_numpy(v) for k, v in piece.base_.P.items()}
    wanted = piece.forward(P, torch.from_numpy(Z), torch.from_numpy(keep), torch).numpy()
    found = piece.forward(piece.base_.P, Z, keep, np)
    assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())


@each
@pytest.mark.parametrize("mask", [True, False])
def test_no_score_depends_on_its_neighbours(model, mask):
    piece = pretrained(model, mask=mask)
    X, _ = data(40, np.random.default_rng(5), most=7)  # longer ones than in training, too
    together, order = piece.predict(TASK, X).mean, np.random.default_rng(1).permutation(40)
    assert np.allclose(piece.predict(TASK, X[order]).mean, together[order], rtol=1e-5, atol=1e-6)
    alone = [piece.predict(TASK, X[[i]]).mean[0] for i in range(40)]
    assert np.allclose(alone, together, rtol=1e-5, atol=1e-6)


@each
def test_masked_is_unpadded_and_unmasked_is_not(model):
    piece = pretrained(model)
    X, _ = data(20, np.random.default_rng(5))
    values, one = scaled(X, piece.base_.maxima), np.array([3])
    (short, shorts), (long, longs) = pad(values, X.offsets, one), pad(values, X.offsets, one, 9)
    assert long.shape[1] == 9 and longs.sum() == shorts.sum() == short.shape[1]
    P = piece.base_.P
    assert piece.forward(P, long, longs, np) == pytest.approx(piece.forward(P, short, shorts, np), abs=1e-6)
    assert piece.forward(P, long, np.ones_like(longs), np) != pytest.approx(
        piece.forward(P, short, shorts, np), abs=1e-3
    )


@each
def test_learns_what_it_then_finds_in_another_task(model):
    rng = np.random.default_rng(0)
    piece = model(width=32, epochs=60, rate=3e-3, loss="logistic")
    piece.pretrain(school(rng, 6), np.random.default_rng(0), lambda p: True)
    X, y = data(200, rng)
    F = piece.predict(TASK, X).mean
    right = np.sign(F[:, None] - F[None, :])[y[:, None] > y[None, :]]
    assert (0.5 + 0.5 * right).mean() > 0.8
    assert F.std() > 0.05, "scores of an unseen task are in the range of labels, not all alike"


@pytest.mark.parametrize("loss", ["lambda", "logistic", "squared"])
@pytest.mark.parametrize("freeze", ["body", "embedding", "none"])
def test_fine_tuning_adapts_and_freezes_what_it_says(loss, freeze):
    rng = np.random.default_rng(0)
    piece = pretrained(ATFormer, loss=loss, freeze=freeze, tune_steps=60, tune_rate=1e-2, anchor=1.0, epochs=10)
    assert piece.base_ is not None
    before = {k: v.copy() for k, v in piece.base_.P.items()}
    X, y = data(80, rng)
    y = 1.05 - y  # here the slow ones are fast: only own rows can tell
    piece.fit([(TASK, X, y)], np.random.default_rng(1))
    assert piece.fitted_ is not None and piece.base_ is not None
    moved = {k.split(".")[0] for k, v in piece.fitted_.P.items() if not np.array_equal(v, before[k])}
    assert moved == {"body": {"out"}, "embedding": {"encoder", "out"}, "none": {"embed", "encoder", "out"}}[freeze]
    assert all(np.array_equal(v, before[k]) for k, v in piece.base_.P.items()), "what was learned beforehand stays"
    assert np.corrcoef(piece.predict(TASK, X).mean, y)[0, 1] > 0.3


@pytest.mark.parametrize("freeze", ["body", "none"])
@pytest.mark.parametrize("momentum", [1.0, 0.75, 0.0])
def test_with_momentum_what_fits_go_on_from_follows_what_they_find(freeze, momentum):
    """Pruner's: a slow copy, of which each fit keeps the share `momentum`; what was learned beforehand stays."""
    rng = np.random.default_rng(0)
    piece = pretrained(ATFormer, freeze=freeze, tune_rate=1e-2, anchor=1.0, momentum=momentum)
    assert piece.base_ is not None
    before = {k: v.copy() for k, v in piece.base_.P.items()}
    X, y = data(80, rng)
    rows = [(TASK, X, 1.05 - y)]
    piece.fit(rows, np.random.default_rng(1))
    first, slow = piece.fitted_, piece.slow_ or piece.base_
    assert first is not None and (piece.slow_ is None) == (momentum == 1)
    for name, v in slow.P.items():
        assert v == pytest.approx(momentum * before[name] + (1 - momentum) * first.P[name], abs=1e-6)
    alike = pretrained(ATFormer, freeze=freeze, tune_rate=1e-2, anchor=1.0)
    alike.base_ = replace(slow)
    for model in (piece, alike):
        model.fit(rows, np.random.default_rng(2))
    assert np.array_equal(piece.predict(TASK, X).mean, alike.predict(TASK, X).mean), "the second fit begins there"
    assert all(np.array_equal(v, before[k]) for k, v in piece.base_.P.items())


@pytest.mark.parametrize("momentum", [-0.1, 1.01, float("nan")])
def test_momentum_is_a_share(momentum):
    with pytest.raises(ValueError, match=f"momentum is a share, from 0 to 1, got {momentum}"):
        ATFormer(momentum=momentum)


@pytest.mark.parametrize("freeze", ["body", "embedding", "none"])
def test_few_rows_of_noise_do_not_spoil_what_was_learned(freeze):
    rng = np.random.default_rng(0)
    piece = pretrained(ATFormer, epochs=40, rate=3e-3, freeze=freeze, tune_rate=0.02)
    X, y = data(200, rng)
    before = np.corrcoef(piece.predict(TASK, X).mean, y)[0, 1]
    piece.fit([(TASK, data(16, rng)[0], rng.random(16))], np.random.default_rng(1))
    assert np.corrcoef(piece.predict(TASK, X).mean, y)[0, 1] > before - 0.1 > 0.4


def test_a_fit_ends_after_its_seconds():
    piece = ATFormer(width=8, epochs=10**6, seconds=0.0)
    piece.fit(school(np.random.default_rng(0), 1), np.random.default_rng(0))
    assert np.isfinite(piece.predict(TASK, data(5, np.random.default_rng(1))[0]).mean).all()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 200), max_size=8), st.integers(2, 70), st.integers(2, 300), st.integers(0, 9))
def test_slates_and_batches_hold_every_program_once(sizes, most, batch, seed):
    found = slates(sizes, most, np.random.default_rng(seed))
    assert sorted(np.concatenate([*found, np.zeros(0, int)])) == list(range(sum(sizes)))
    group = np.repeat(np.arange(len(sizes)), sizes)
    assert all(len(s) <= most and len(set(group[s])) == 1 for s in found), "one task's only"
    together = list(batches(found, batch))
    assert [s.tolist() for b in together for s in b] == [s.tolist() for s in found]
    assert all(len(b) == 1 or sum(map(len, b)) <= batch for b in together)


def test_columns_are_divided_by_their_maxima():
    values = np.zeros((3, 164))
    values[:, 0], values[:, 1], values[0, 2] = [1.0, -4.0, 2.0], [np.nan, np.inf, 3.0], 5.0
    X = Statements(values, np.array([0, 2, 3]), np.tile(np.arange(10.0), (2, 1)))
    maxima = column_maxima([(TASK, X, np.ones(2))], 174)
    assert maxima[:4].tolist() == [4.0, 3.0, 5.0, 0.0] and maxima[164:].tolist() == list(range(10))
    found = scaled(X, maxima)
    assert found[:, 0].tolist() == [0.25, -1.0, 0.5] and found[:, 1].tolist() == [0.0, 0.0, 1.0]
    assert found[2, 165] == 1.0 and found.shape == (3, 174) and len(column_maxima([(TASK, X, np.ones(2))], 164)) == 164
    far = values.copy()
    far[:, 0], far[:, 3] = 1e9, 7.0
    assert scaled(Statements(far, X.offsets, X.operator), maxima)[:, [0, 3]].tolist() == [[2.0, 0.0]] * 3


def test_adam_is_pytorchs():
    rng = np.random.default_rng(0)
    p, slopes = rng.normal(size=5), rng.normal(size=(4, 5))
    theirs = torch.nn.Parameter(torch.from_numpy(p.copy()))
    optimiser, own = torch.optim.Adam([theirs], 0.01, weight_decay=0.1), {"p": p.copy()}
    adam = Adam(own, 0.1)
    for g in slopes:
        theirs.grad = torch.from_numpy(g.copy())
        optimiser.step()
        adam.step(own, {"p": g}, 0.01)
    assert own["p"] == pytest.approx(theirs.detach().numpy(), abs=1e-9)


@each
def test_weights_of_another_network_are_refused(model, tmp_path):
    piece = pretrained(model)
    piece.save(tmp_path / "w", {})
    found = weights.read(tmp_path / "w")
    assert found.model == model.name and found.width == 174
    narrow = dict(found.tensors) | {"p.out.weight": np.zeros((3, 1), np.float32)}
    for name, tensors, options in (
        ("shape", narrow, found.options),
        ("missing", {k: v for k, v in found.tensors.items() if k != "maxima"}, found.options),
        ("option", found.tensors, {**found.options, "width": "16"}),
        ("no option", found.tensors, {}),
        ("no kinds", found.tensors, {k: v for k, v in found.options.items() if k != "ops"}),
        ("other width", found.tensors, {**found.options, "width": 8}),
    ):
        weights.write(tmp_path / "bad", weights.Weights(model.name, options, tensors))
        with pytest.raises(WeightsError, match="train them again"):
            model(weights=tmp_path / "bad").prestart()
        assert name
    other = next(m for m in NETWORKS if m is not model)
    with pytest.raises(WeightsError, match=f"are of '{model.name}', not of '{other.name}'"):
        other(weights=tmp_path / "w").prestart()


def test_weights_bring_their_options(tmp_path):
    pretrained(ATFormer, width=12, heads=2, layers=1, loss="squared", operator=False).save(tmp_path / "w", {})
    read = ATFormer(weights=str(tmp_path / "w"))
    read.prestart()
    assert (read.width, read.heads, read.layers, read.loss, read.operator) == (12, 2, 1, "squared", False)


def test_says_where_it_learned_and_of_which_operators(tmp_path):
    piece = pretrained(ATFormer)
    assert piece.foreknows(TASK) == "this run"
    piece.save(tmp_path / "w", {"device": "EPYC"})
    read = ATFormer(weights=tmp_path / "w")
    assert read.foreknows(TASK) == "EPYC" and read.foreknows(replace(TASK, op="sort")) is None
    assert ATFormer(width=8).foreknows(TASK) is None


BLIND = """
import sys
sys.modules["torch"] = None
import numpy as np
from tt_spec.pieces.synthetic import synthetic_task
from tt_spec.types import Statements
from tt_surrogate import ATFormer
model = ATFormer(weights=sys.argv[1])
rng = np.random.default_rng(0)
X = Statements(rng.random((6, 164)), np.arange(0, 7, 2), np.zeros((3, 10)))
task = synthetic_task("a", knobs=3)
before = model.predict(task, X).mean
model.fit([(task, X, np.array([0.2, 1.0, 0.5]))], rng)
assert np.isfinite(before).all() and np.isfinite(model.predict(task, X).mean).all()
assert "torch" not in {k for k, v in sys.modules.items() if v is not None}
print("well")
"""


def test_weights_need_no_pytorch(tmp_path):
    pretrained(ATFormer).save(tmp_path / "w", {})
    done = subprocess.run(
        [sys.executable, "-c", BLIND, str(tmp_path / "w")], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "well\n", done.stderr


def test_what_needs_pytorch_says_so(monkeypatch):
    import importlib.util

    from tt_spec import PluginError

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more))
    plugins = Plugins([("tt-surrogate", hooks)], installed=False)
    for options in ({}, {"weights": "w", "freeze": "none"}):
        with pytest.raises(PluginError, match=r"pip install 'tt-surrogate\[torch,pretrained\]'"):
            plugins.build("surrogate", "atformer", **options)
    assert plugins.build("surrogate", "atformer", weights="w").weights == "w"


@pytest.mark.parametrize("options", [{"loss": "mse"}, {"freeze": "head"}, {"heads": 3}, {"epochs": 0}, {"layers": -1}])
def test_options_that_cannot_be_used_are_refused_at_once(options):
    with pytest.raises(ValueError, match=r"must|positive"):
        ATFormer(**options)


@pytest.mark.parametrize("spoil", [None, lambda raw: raw[:-9], lambda raw: b"no weights"])
def test_shipped_weights_that_cannot_be_read_cost_a_warning_and_it_learns_from_nothing(tmp_path, monkeypatch, spoil):
    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    if spoil is not None:
        path = tmp_path / "atformer.safetensors"
        pretrained(ATFormer).save(path, {"device": "a CPU"})
        path.write_bytes(spoil(path.read_bytes()))
    model = ATFormer(weights="shipped", width=8, epochs=2)
    with pytest.warns(UserWarning, match="searching without what tt-surrogate learned beforehand: .*weights"):
        model.prestart()
    assert model.foreknows(TASK) is None and model.width == 8
    rng = np.random.default_rng(0)
    X = statements(20, rng)
    model.fit([(TASK, X, np.linspace(0.1, 1, 20))], rng)
    assert np.ptp(model.predict(TASK, X).mean) > 0, "it learns from the run itself"


def test_without_shipped_weights_and_pytorch_all_rows_are_alike_and_the_run_goes_on(tmp_path, monkeypatch):
    import importlib.util

    monkeypatch.setattr(weights, "SHIPPED", tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    model, X = ATFormer(weights="shipped"), statements(20, np.random.default_rng(0))
    with pytest.warns(UserWarning, match="searching without what"):
        model.prestart()
    model.fit([(TASK, X, np.linspace(0.1, 1, 20))], np.random.default_rng(0))
    assert not model.predict(TASK, X).mean.any()


def test_without_weights_none_are_read():
    assert ATFormer(weights="none", width=8).foreknows(TASK) is None
