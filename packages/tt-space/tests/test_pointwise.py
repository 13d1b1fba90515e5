"""The template of operators that reduce nothing computes what TVM's own program does, for every row."""

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_space import Both
from tt_space.pointwise import PointwisePrograms
from tvm import te, topi

NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})


def module(*tensors):
    return tvm.IRModule({"main": te.create_prim_func([*tensors]).with_attr("tirx.noalias", True)})


def concatenated(rows, last):
    a, b = te.placeholder((rows, last), name="a"), te.placeholder((rows, 2 * last), name="b")
    return module(a, b, topi.concatenate([topi.nn.relu(a), b], 1))


def padded(rows, last):
    x = te.placeholder((rows, last), name="x")
    return module(x, topi.nn.pad(x, [1, 0], [0, 3]))


def transposed(rows, last):
    x = te.placeholder((rows, last), name="x")
    return module(x, topi.multiply(topi.transpose(x), 2.0))


def flat(rows, last):
    x = te.placeholder((rows, last), name="x")
    return module(x, topi.reshape(topi.add(x, x), (rows * last,)))


def halves(rows, last):
    x = te.placeholder((rows, 2 * last), name="x")
    twice = te.compute((rows, 2 * last), lambda i, j: x[i, j] * 2.0, name="twice")
    return module(x, *topi.split(twice, 2, 1))


KINDS = [concatenated, padded, transposed, flat, halves]


def ran(mod, inputs, outputs):
    room = [tvm.runtime.tensor(np.full(s, np.nan, "float32")) for s in outputs]
    tvm.tirx.build(mod, target=NATIVE)["main"](*map(tvm.runtime.tensor, inputs), *room)
    return [r.numpy() for r in room]


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KINDS), st.integers(1, 9), st.sampled_from([1, 3, 4, 8, 12, 32, 64]), st.integers(0, 2**31))
def test_every_row_computes_the_operator(kind, rows, last, seed):
    mod, rng = kind(rows, last), np.random.default_rng(seed)
    programs = PointwisePrograms(mod, NATIVE)
    shapes = [[int(d) for d in p.shape] for p in mod["main"].params]
    outputs = shapes[-2:] if kind is halves else shapes[-1:]
    inputs = [rng.standard_normal(s).astype("float32") for s in shapes[: len(shapes) - len(outputs)]]
    (row,) = programs.space.sample(1, rng)
    for got, want in zip(ran(programs.apply(row).mod, inputs, outputs), ran(mod, inputs, outputs), strict=True):
        np.testing.assert_array_equal(got, want)


def test_vectors_divide_the_last_axis_of_every_output():
    space = PointwisePrograms(concatenated(40, 8), NATIVE).space
    assert [k.choices for k in space.knobs] == [(1, 4, 8), ("all", "one")]
    assert [k.name for k in PointwisePrograms(concatenated(2, 8), NATIVE).space.knobs] == ["lanes"], "few elements"


def test_a_reduction_is_left_to_others():
    x = te.placeholder((8, 8), name="x")
    mod = module(x, topi.sum(x, 0))
    with pytest.raises(ValueError, match="reduces something"):
        PointwisePrograms(mod, NATIVE)


def test_it_stands_beside_the_sketch_and_is_for_cpus():
    mod = padded(8, 16)
    assert Both().open(mod, NATIVE).space.name == "pointwise+sketch"
    assert Both().open(mod, tvm.target.Target("nvidia/geforce-rtx-3080")).space.name == "sketch"
