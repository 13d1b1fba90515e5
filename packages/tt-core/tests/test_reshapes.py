"""Elementwise operators and norms of rows come before the reshape of a product, and everything has the same value."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tt_core import target
from tt_core.compiler.lower import lower
from tt_core.compiler.reshapes import elementwise_first, without_reshape
from tt_core.deploy import library
from tt_core_fakes import with_space
from tvm import relax
from tvm.relax import op

NATIVE = target.resolve("native")


@st.composite
def factors(draw, size):
    """A shape of so many elements."""
    shape, left = [], size
    while left > 1 and len(shape) < 4:
        shape.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= shape[-1]
    return [*shape, left]


@st.composite
def reshapes(draw):
    """A reshape's source and result, and the shape of an operand that is broadcast to the result."""
    size = draw(st.sampled_from([1, 6, 8, 12, 24]))
    result = draw(factors(size))
    operand = [draw(st.sampled_from([1, d])) for d in result][draw(st.integers(0, len(result))) :]
    return draw(factors(size)), result, operand


@given(reshapes())
def test_an_operand_without_the_reshape_meets_the_same_elements(case):
    source, result, operand = case
    found = without_reshape(source, result, operand)
    value = np.arange(math.prod(operand)).reshape(operand)
    meets = np.broadcast_to(value, result).reshape(source)
    if found is None:
        assert 1 < math.prod(operand) < math.prod(result), "a number or a whole tensor always has a shape"
    else:
        assert len(found) == len(source)
        np.testing.assert_array_equal(np.broadcast_to(value.reshape(found), source), meets)


def test_a_bias_of_rows_and_of_heads():
    assert without_reshape([6, 8], [1, 6, 8], [8]) == [1, 8]
    assert without_reshape([6, 8], [2, 3, 8], [2, 3, 1]) == [6, 1]
    assert without_reshape([6, 8], [6, 2, 4], [2, 4]) == [1, 8]
    assert without_reshape([6, 8], [6, 2, 4], [2, 1]) is None
    assert without_reshape([6, 8], [2, 3, 8], [3, 1]) is None
    assert without_reshape([0, 8], [4, 0], [0]) is None


W = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
ROW = np.arange(8, dtype="float32")
X = np.random.default_rng(1).standard_normal((6, 8)).astype("float32")
Y = np.random.default_rng(2).standard_normal((2, 3, 8)).astype("float32")


def model(behind, before=lambda x: op.matmul(x, relax.const(W))):
    """What `behind` makes of a product that was reshaped, and of a tensor beside it."""
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", relax.TensorType((6, 8), "float32")), relax.Var("y", relax.TensorType((2, 3, 8), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            product = builder.emit(before(x))
            reshaped = builder.emit(op.reshape(product, (2, 3, 8)))
            out = builder.emit_output(builder.normalize(behind(builder.emit, reshaped, y)))
        builder.emit_func_output(out)
    return builder.get()


def passed(mod):
    return elementwise_first(mod)  # pyright: ignore[reportCallIssue]  # TVM's decorator is not seen


def names(mod):
    calls = [b.value for b in mod["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    return [str(call.op.name).removeprefix("relax.") for call in calls]


def result(mod):
    built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(X), tvm.runtime.tensor(Y)).numpy()


def gelu(emit, x, _):
    inner = emit(op.erf(emit(op.divide(x, relax.const(2**0.5)))))
    return op.multiply(emit(op.multiply(x, emit(op.add(inner, relax.const(1.0))))), relax.const(0.5))


def normed(axes):
    return lambda emit, x, y: op.nn.layer_norm(
        emit(op.add(y, x)),
        relax.const(ROW[: 8 if axes == [-1] else 3]),
        relax.const(ROW[: 8 if axes == [-1] else 3]),
        axes,
    )


MOVED = {
    "an activation": (gelu, ["divide", "erf", "add", "multiply", "multiply", "reshape"]),
    "a bias": (lambda emit, x, y: op.add(x, relax.const(ROW)), ["add", "reshape"]),
    "a scale of stacked rows": (
        lambda emit, x, y: op.multiply(relax.const(ROW[:6].reshape(2, 3, 1)), x),
        ["multiply", "reshape"],
    ),
    "what came before": (lambda emit, x, y: op.add(y, x), ["reshape", "add", "reshape"]),
    "a choice": (
        lambda emit, x, y: op.where(emit(op.greater(x, relax.const(0.0))), y, x),
        ["greater", "reshape", "where", "reshape"],
    ),
    "another number type": (lambda emit, x, y: op.astype(x, "int32"), ["astype", "reshape"]),
    "a norm of rows": (normed([-1]), ["reshape", "add", "nn.layer_norm", "reshape"]),
    "a softmax of rows": (
        lambda emit, x, y: op.nn.softmax(emit(op.multiply(x, relax.const(2.0)))),
        ["multiply", "nn.softmax", "reshape"],
    ),
    "a reshape to what it was": (
        lambda emit, x, y: op.add(emit(op.reshape(x, (6, 8))), relax.const(ROW)),
        ["add"],
    ),
    "dimensions of one element that change places": (
        lambda emit, x, y: op.permute_dims(emit(op.expand_dims(x, 0)), [1, 0, 2, 3]),
        ["reshape"],
    ),
}


@pytest.mark.parametrize("what", MOVED)
def test_what_is_applied_before_the_reshape_has_the_same_value(what):
    behind, expected = MOVED[what]
    mod = model(behind)
    assert names(passed(mod)) == ["matmul", *expected]
    np.testing.assert_allclose(result(passed(mod)), result(mod), rtol=1e-6, atol=1e-6)


STAYS = {
    "a scale of one dimension of two that were one": (
        lambda emit, x, y: op.multiply(x, relax.const(ROW[:3].reshape(3, 1))),
        ["reshape", "multiply"],
    ),
    "what is larger": (
        lambda emit, x, y: op.add(x, relax.const(np.zeros((4, 1, 1, 1), "float32"))),
        ["reshape", "add"],
    ),
    "a norm of columns": (normed([1]), ["reshape", "add", "reshape", "nn.layer_norm"]),
    "a reduction": (lambda emit, x, y: op.sum(x, axis=1), ["reshape", "sum"]),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_means_something_else_stays_behind_the_reshape(what):
    behind, expected = STAYS[what]
    mod = model(behind)
    assert names(passed(mod)) == ["matmul", *expected]
    np.testing.assert_allclose(result(passed(mod)), result(mod), rtol=1e-6, atol=1e-6)


def test_behind_what_takes_nothing_in_the_reshape_stays():
    """Nothing is fused into a softmax, so nothing is won."""
    mod = model(gelu, before=lambda x: op.nn.softmax(x))
    assert names(passed(mod))[:3] == ["nn.softmax", "reshape", "divide"]


def test_an_activation_behind_a_batch_of_rows_is_one_operator_with_the_product():
    found = lower(model(gelu), NATIVE, with_space(), "fake")
    assert [t.name for t in found.tasks] == ["matmul_divide_erf_add_multiply_multiply", "reshape"]  # an output: a copy


def test_a_reshape_alone_is_nothing_to_tune_but_an_output_that_shares_no_memory_with_the_caller():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((6, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            sums = builder.emit(op.nn.softmax(x))
            flat = builder.emit(op.reshape(sums, (48,)))
            given = builder.emit_output(op.reshape(x, (2, 24)))
            out = builder.emit_output(op.nn.softmax(flat))
        builder.emit_func_output(relax.Tuple([given, out]))
    found = lower(builder.get(), NATIVE, with_space(), "fake")
    assert [(t.op, t.shapes) for t in found.tasks if t.op == "reshape"] == [("reshape", "6x8 -> 2x24")]
    run = relax.VirtualMachine(library.compile_library(found, {}, with_space()), tvm.cpu())["main"]
    x = tvm.runtime.tensor(X)
    first, _ = run(x)
    np.testing.assert_array_equal(first.numpy(), X.reshape(2, 24))
    tvm.runtime.tensor(np.zeros_like(X)).copyto(x)
    np.testing.assert_array_equal(first.numpy(), X.reshape(2, 24))
