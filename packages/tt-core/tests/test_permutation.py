"""Chains of reshapes and permutations become one copy of the same elements."""

from __future__ import annotations

import math

import numpy as np
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tt_core.compiler.permutation import Digits, one_permutation
from tvm import relax


def passed(mod: tvm.IRModule) -> tvm.IRModule:
    return one_permutation(mod)  # pyright: ignore[reportCallIssue]  # TVM's decorator is not seen


@st.composite
def chains(draw):
    """A shape, and permutations and reshapes of it as functions of numpy would take them."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    steps, now = [], shape
    for _ in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            axes = draw(st.permutations(range(len(now))))
            steps.append(("permute", tuple(axes)))
            now = [now[a] for a in axes]
        else:
            left, now = math.prod(now), []
            while left > 1 and len(now) < 4:
                now.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
                left //= now[-1]
            now.append(left)
            steps.append(("reshape", tuple(now)))
    return shape, steps


@given(chains())
def test_digits_are_numpys_permutations_and_reshapes(chain):
    shape, steps = chain
    source = np.arange(math.prod(shape)).reshape(shape)
    want, digits = source, Digits.of(shape)
    for kind, to in steps:
        if kind == "permute":
            want = want.transpose(to)
            digits.permute(to)
        else:
            want = want.reshape(to)
            if not digits.reshape(to):
                return
    assert digits.shape == list(want.shape)
    assert digits.plain == (want.ravel() == source.ravel()).all()
    for index in np.ndindex(*want.shape):
        assert source[tuple(digits.origin(index))] == want[index]


def test_a_dimension_that_ends_inside_a_digit_cannot_be_written():
    digits = Digits.of([4, 6])
    digits.permute([1, 0])
    assert not digits.reshape([4, 6])
    assert Digits.of([4, 6]).reshape([8, 3])


def model(steps):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 2, 2, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            kept = {"x": x}
            for name, make in steps.items():
                kept[name] = builder.emit(make(kept))
            out = builder.emit_output(kept[name])
        builder.emit_func_output(out)
    return builder.get()


def called(mod):
    calls = [b.value for b in mod["main"].body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    return [str(call.op.name).removeprefix("relax.") for call in calls]


def result(mod, x):
    built = tvm.compile(relax.transform.LegalizeOps()(mod), target="llvm")
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


SHUFFLE = {
    "nchw": lambda v: relax.op.permute_dims(v["x"], [0, 3, 1, 2]),
    "cut": lambda v: relax.op.reshape(v["nchw"], (1, 3, 2, 2, 2)),
    "swapped": lambda v: relax.op.permute_dims(v["cut"], [0, 2, 1, 3, 4]),
    "joined": lambda v: relax.op.reshape(v["swapped"], (1, 6, 2, 2)),
    "nhwc": lambda v: relax.op.permute_dims(v["joined"], [0, 2, 3, 1]),
}
X = np.arange(24, dtype="float32").reshape(1, 2, 2, 6)


def test_a_channel_shuffle_is_one_copy():
    mod = passed(model(SHUFFLE))
    assert called(mod) == ["call_tir"]
    want = X.reshape(1, 2, 2, 3, 2).swapaxes(3, 4).reshape(X.shape)
    np.testing.assert_array_equal(result(mod, X), want)


def test_a_value_that_something_else_reads_ends_a_chain():
    steps = SHUFFLE | {"again": lambda v: relax.op.permute_dims(v["joined"], [0, 2, 3, 1])}
    steps |= {"sum": lambda v: relax.op.add(v["nhwc"], v["again"])}
    mod = passed(model(steps))
    assert called(mod) == ["call_tir", "permute_dims", "permute_dims", "add"]
    np.testing.assert_array_equal(result(mod, X), 2 * result(model(SHUFFLE), X))


def test_one_permutation_and_those_that_undo_each_other_stay():
    once = {"a": SHUFFLE["nchw"], "b": lambda v: relax.op.reshape(v["a"], (1, 6, 4))}
    undone = {"a": SHUFFLE["nchw"], "b": lambda v: relax.op.permute_dims(v["a"], [0, 2, 3, 1])}
    for steps in (once, undone):
        mod = passed(model(steps))
        assert "call_tir" not in called(mod)
        assert len(called(mod)) == 2
