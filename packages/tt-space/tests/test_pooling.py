"""The template of reductions that keep the last axis computes what TVM's own program does, for every row."""

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_space import Both
from tt_space.pooling import PoolingPrograms
from tvm import te, topi

NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})


def module(*tensors):
    return tvm.IRModule({"main": te.create_prim_func([*tensors]).with_attr("tirx.noalias", True)})


def image(size, channels):
    return te.placeholder((1, size, size + 1, channels), name="x")


def max_pool(size, channels):
    x = image(size, channels)
    pooled = topi.nn.pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max", layout="NHWC")
    return module(x, topi.nn.relu(pooled))


def mean(size, channels):
    x = image(size, channels)
    return module(x, topi.divide(topi.sum(topi.abs(x), [1, 2], True), float(size * (size + 1))))


def total(size, channels):
    x = image(size, channels)
    return module(x, topi.sum(x, [1, 2]))


def ran(mod, x, shape):
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    tvm.tirx.build(mod, target=NATIVE)["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([max_pool, mean, total]),
    st.integers(1, 9),
    st.sampled_from([4, 12, 16, 24, 64, 96]),
    st.integers(0, 2**31),
)
def test_every_row_computes_the_operator(kind, size, channels, seed):
    mod, rng = kind(size, channels), np.random.default_rng(seed)
    programs = PoolingPrograms(mod, NATIVE)
    (row,) = programs.space.sample(1, rng)
    x = rng.standard_normal((1, size, size + 1, channels)).astype("float32")
    shape = [int(d) for d in mod["main"].params[-1].shape]
    got, want = ran(programs.apply(row).mod, x, shape), ran(mod, x, shape)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_vectors_divide_the_channels():
    assert PoolingPrograms(mean(4, 24), NATIVE).space.knobs[0].choices == (4, 8)


def by_rows():
    x = te.placeholder((8, 32), name="x")
    return module(x, topi.sum(x, 1))


def odd():
    x = image(4, 7)
    return module(x, topi.sum(x, [1, 2]))


def elementwise():
    x = image(4, 8)
    return module(x, topi.exp(x))


def centred():
    """What follows is of another shape than what is reduced."""
    x = image(4, 8)
    return module(x, topi.subtract(x, topi.sum(x, [1, 2], True)))


def product():
    a, b = te.placeholder((4, 8), name="a"), te.placeholder((8, 16), name="b")
    return module(a, b, topi.matmul(a, b))


@pytest.mark.parametrize("made", [by_rows, odd, elementwise, centred, product])
def test_what_is_no_pool_is_left_to_others(made):
    with pytest.raises(ValueError, match="does not reduce axes"):
        PoolingPrograms(made(), NATIVE)


def test_it_stands_beside_sketches_and_is_for_cpus():
    mod = max_pool(8, 16)
    assert Both().open(mod, NATIVE).space.name == "pooling+sketch"
    assert Both().open(mod, tvm.target.Target("nvidia/geforce-rtx-3080")).space.name == "sketch"
