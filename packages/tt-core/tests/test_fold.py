"""Constants folded by numpy are what TVM computes."""

import numpy as np
import pytest
import tvm
from tt_core.compiler.fold import fold_constants
from tvm import relax

A = np.linspace(-2, 3, 12, dtype="float32").reshape(3, 4)
B = np.linspace(1, 2, 4, dtype="float32")

CASES = {
    "add": (lambda a, b: relax.op.add(a, b), A + B),
    "subtract": (lambda a, b: relax.op.subtract(a, b), A - B),
    "multiply": (lambda a, b: relax.op.multiply(a, b), A * B),
    "divide": (lambda a, b: relax.op.divide(a, b), A / B),
    "sqrt": (lambda a, b: relax.op.sqrt(b), np.sqrt(B)),
    "permute_dims": (lambda a, b: relax.op.permute_dims(a, [1, 0]), A.T),
    "permute_dims without axes": (lambda a, b: relax.op.permute_dims(a), A.T),
    "reshape": (lambda a, b: relax.op.reshape(a, (2, 6)), A.reshape(2, 6)),
    "expand_dims": (lambda a, b: relax.op.expand_dims(a, [0, 2]), A[None, :, None]),
    "squeeze": (lambda a, b: relax.op.squeeze(relax.op.expand_dims(a, 0), [0]), A),
    "scalars": (lambda a, b: relax.op.multiply(relax.const(2.0), relax.const(3.0)), np.float32(6)),
    "a shape": (lambda a, b: relax.op.shape_to_tensor(relax.ShapeExpr([3, 4])), np.array([3, 4])),
    "take": (lambda a, b: relax.op.take(a, relax.const(np.array([2, 0])), axis=1), A[:, [2, 0]]),
    "less": (
        lambda a, b: relax.op.less(relax.const([-1, 1], "int64"), relax.const(0, "int64")),
        np.array([True, False]),
    ),
    "integers": (lambda a, b: relax.op.add(relax.const([5], "int64"), relax.const([7], "int64")), np.array([12])),
    "wider": (lambda a, b: relax.op.astype(relax.const(np.array([-5], "int8")), "int32"), np.array([-5], "int32")),
    "where": (lambda a, b: relax.op.where(relax.op.isnan(a), b, a), A),
}


def test_the_shape_of_a_variable_is_known():
    mod = folded(lambda x: relax.op.shape_to_tensor(relax.op.shape_of(x)))
    assert mod["main"].body.blocks[0].bindings[-1].value.value.numpy().tolist() == [1]


def folded(make):
    """Result of a model that only computes on constants, after folding."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(x)))
        builder.emit_func_output(out)
    return fold_constants(builder.get())  # pyright: ignore[reportCallIssue]  # untyped, TVM's decorator is not seen


@pytest.mark.parametrize("name", CASES)
def test_an_operator_on_constants_becomes_its_value(name):
    make, want = CASES[name]
    mod = folded(lambda _: make(relax.const(A), relax.const(B)))
    (binding,) = mod["main"].body.blocks[0].bindings
    assert isinstance(binding.value, tvm.ir.GenericConst)
    got = binding.value.value.numpy()
    assert got.dtype == np.asarray(want).dtype and got.shape == np.shape(want) and np.array_equal(got, want)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: relax.op.add(x, relax.const(B[:1])),
        lambda x: relax.op.divide(relax.const(np.array([7], "int64")), relax.const(np.array([2], "int64"))),
        lambda x: relax.op.exp(relax.const(A)),
        lambda x: relax.op.take(relax.const(A), relax.const(np.array([4])), axis=1),
        lambda x: relax.op.astype(relax.const(A), "int32"),
        lambda x: relax.op.astype(relax.const(np.array([300])), "int8"),
    ],
    ids=["a variable", "integers", "an operator that is left to TVM", "an index outside", "a float", "narrower"],
)
def test_everything_else_is_left_alone(make):
    mod = folded(make)
    assert any(isinstance(b.value, relax.Call) for b in mod["main"].body.blocks[0].bindings)
