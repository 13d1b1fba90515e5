"""The template of a recurrent step computes what numpy computes, for every row."""

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_space import Both
from tt_space.packing import ANCHOR
from tt_space.recurrent import STEP, RecurrentPrograms, has_step
from tvm import te

NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
LANES = 4


def product(left, weight, name):
    """A matrix product with weights `(blocks, depth, lanes)`, and its result as rows."""
    rows, (blocks, depth, lanes) = left.shape[0], weight.shape
    k = te.reduce_axis((0, depth), name="k")
    packed = te.compute(
        (rows, blocks, lanes),
        lambda i, b, j: te.sum(left[i, k] * weight[b, k, j], axis=k),
        name=name,
        attrs={ANCHOR: "contraction"},
    )
    return te.compute((rows, blocks * lanes), lambda i, j: packed[i, j // lanes, j % lanes], name=f"{name}_rows")


def step(batch, hidden, mark=True):
    """A gated unit with two products, the second of what the first one's gate lets through."""
    blocks = -(-hidden // LANES)
    state = te.placeholder((batch, hidden), name="state")
    x = te.placeholder((batch, hidden), name="x")
    first, second = (te.placeholder((blocks, hidden, LANES), name=n) for n in ("first", "second"))
    gate_sum = product(state, first, "gate")
    gate = te.compute((batch, hidden), lambda i, j: te.sigmoid(gate_sum[i, j] + x[i, j]), name="gate_value")
    let_through = te.compute((batch, hidden), lambda i, j: gate[i, j] * state[i, j], name="through")
    new_sum = product(let_through, second, "new")
    new = te.compute(
        (batch, hidden), lambda i, j: gate[i, j] * state[i, j] + (1 - gate[i, j]) * te.tanh(new_sum[i, j]), name="after"
    )
    func = te.create_prim_func([state, x, first, second, new])
    return tvm.IRModule({"main": func.with_attr(STEP, True) if mark else func})


def rows_of(weight, hidden):
    """`(blocks, depth, lanes)` as `(depth, hidden)`."""
    return weight.transpose(1, 0, 2).reshape(weight.shape[1], -1)[:, :hidden]


def wanted(state, x, first, second):
    hidden = state.shape[1]
    gate = 1 / (1 + np.exp(-(state @ rows_of(first, hidden) + x)))
    return gate * state + (1 - gate) * np.tanh((gate * state) @ rows_of(second, hidden))


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 4), st.sampled_from([4, 8, 24, 40]), st.integers(0, 2**31))
def test_every_row_computes_a_step(batch, hidden, seed):
    mod, rng = step(batch, hidden), np.random.default_rng(seed)
    programs = RecurrentPrograms(mod, NATIVE)
    (row,) = programs.space.sample(1, rng)
    inputs = [rng.standard_normal([int(d) for d in p.shape]).astype("float32") for p in mod["main"].params]
    tensors = [tvm.runtime.tensor(i) for i in inputs]
    tensors[-1].copyfrom(np.full_like(inputs[-1], np.nan))
    schedule = programs.apply(row)
    assert (programs.read(schedule, row) == programs.space.canonical(row[None])[0]).all()
    tvm.tirx.build(schedule.mod, target=NATIVE)["main"](*tensors)
    np.testing.assert_allclose(tensors[-1].numpy(), wanted(*inputs[:-1]), rtol=1e-4, atol=1e-5)


def test_only_a_marked_step_has_the_template():
    assert has_step(step(1, 8)) and not has_step(step(1, 8, mark=False))
    with pytest.raises(ValueError, match="no step"):
        RecurrentPrograms(step(1, 8, mark=False), NATIVE)


def test_a_step_has_its_template_beside_sketches():
    assert Both().open(step(1, 8), NATIVE).space.name == "recurrent+sketch"
