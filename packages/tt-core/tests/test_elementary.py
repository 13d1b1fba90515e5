"""Elementary functions against float64, and what they become part of."""

import math

import numpy as np
import pytest
import tvm
from tt_core.compiler.elementary import legalizers
from tt_core.compiler.target import resolve
from tvm import relax

X = np.concatenate([np.linspace(-30, 30, 20001), np.linspace(-0.01, 0.01, 1999), [0.0]]).astype(np.float32)
ERF = np.vectorize(math.erf)
EXACT = {
    "exp": (relax.op.exp, np.exp),
    "erf": (relax.op.erf, ERF),
    "tanh": (relax.op.tanh, np.tanh),
    "sigmoid": (relax.op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (relax.op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu": (relax.op.nn.gelu, lambda x: x * (1 + ERF(x / 2**0.5)) / 2),
    "gelu_tanh": (relax.op.nn.gelu_tanh, lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2),
}


def _module(shape, function):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(function(x)))
        builder.emit_func_output(out)
    return builder.get()


def _run(mod, x):
    built = tvm.compile(relax.transform.LegalizeOps(legalizers(resolve("native")))(mod), target=resolve("native"))
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("name", EXACT)
def test_equals_float64_but_for_rounding(name):
    op, exact = EXACT[name]
    wanted = exact(X.astype(np.float64))
    error = np.abs(_run(_module(X.shape, op), X) - wanted)
    assert (error <= 1e-6 * np.maximum(np.abs(wanted), 1.0 if "gelu" in name else 1e-7)).all()


@pytest.mark.parametrize("exponent", [0.75, 0.5, 0.25, 1.5, -0.5, -0.75, -1.0, 3.0, 8.0])
def test_powers_of_quarters_are_roots_and_products(exponent):
    x = X if exponent > 0 and exponent.is_integer() else np.abs(X) + np.float32(1e-6)
    wanted = x.astype(np.float64) ** exponent
    mod = _module(x.shape, lambda v: relax.op.power(v, relax.const(exponent, "float32")))
    assert (np.abs(_run(mod, x) - wanted) <= 1e-6 * np.abs(wanted) + 1e-37).all()
    legal = relax.transform.LegalizeOps(legalizers(resolve("native")))(mod).script()
    assert "T.pow" not in legal


@pytest.mark.parametrize("exponent", [0.75, -0.25])
def test_powers_of_zero_and_of_negative_numbers_are_what_they_are(exponent):
    x = np.array([0.0, -1.0, np.inf, 1.0], dtype=np.float32)
    got = _run(_module(x.shape, lambda v: relax.op.power(v, relax.const(exponent, "float32"))), x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.power(x, np.float32(exponent)))


def test_other_powers_stay_with_the_library():
    for exponent in (2.2, 2.0, 1.0, 40.0):
        mod = _module((4,), lambda v, e=exponent: relax.op.power(v, relax.const(e, "float32")))
        assert "T.pow" in relax.transform.LegalizeOps(legalizers(resolve("native")))(mod).script()
    each = _module((4,), lambda v: relax.op.power(v, relax.const(np.full(4, 0.5), "float32")))
    assert "T.pow" in relax.transform.LegalizeOps(legalizers(resolve("native")))(each).script()


def test_softmax_of_any_axis_equals_float64():
    x = (np.random.default_rng(0).normal(size=(3, 5, 7)) * 20).astype(np.float32)
    power = np.exp(x.astype(np.float64))
    got = _run(_module(x.shape, lambda v: relax.op.nn.softmax(v, axis=1)), x)
    assert np.abs(got - power / power.sum(axis=1, keepdims=True)).max() < 1e-6


def test_extremes_neither_overflow_nor_become_nan():
    x = np.array([-1e30, -200.0, 200.0, 1e30], dtype=np.float32)
    assert _run(_module(x.shape, relax.op.sigmoid), x).tolist() == pytest.approx([0, 0, 1, 1], abs=1e-6)
    assert _run(_module(x.shape, relax.op.tanh), x).tolist() == pytest.approx([-1, -1, 1, 1], abs=1e-6)
    assert _run(_module(x.shape, relax.op.exp), x).tolist() == [0, 0, np.inf, np.inf]


def test_half_precision_and_other_targets_keep_tvms_own():
    assert legalizers(resolve("cuda")) == {}
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float16"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    legal = relax.transform.LegalizeOps(legalizers(resolve("native")))(builder.get())
    assert "float16" in legal.script() and "T.exp" in legal.script()
