"""The template of reductions along the last axis computes what numpy computes, for every row and length."""

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_space import Both
from tt_space.rows import RowPrograms
from tt_space.sketch import SketchPrograms
from tvm import te, topi
from tvm.s_tir import ScheduleError

NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})


def module(*tensors):
    return tvm.IRModule({"main": te.create_prim_func([*tensors]).with_attr("tirx.noalias", True)})


def softmax(shape):
    x = te.placeholder(shape, name="x")
    scaled = te.compute(shape, lambda *i: x[i] * 0.5, name="scaled")
    out = topi.nn.fast_softmax(scaled, -1)
    return module(x, te.compute(shape, lambda *i: topi.cast(out[i] * 255.0, "int32"), name="rounded"))


def layer_norm(shape):
    x, scale, bias = (te.placeholder(s, name=n) for s, n in ((shape, "x"), (shape[-1:], "scale"), (shape[-1:], "bias")))
    return module(x, scale, bias, topi.nn.layer_norm(x, scale, bias, [len(shape) - 1], 1e-5))


def masked(shape):
    """Softmax with a mask that all but the last two axes share."""
    x, mask = te.placeholder(shape, name="x"), te.placeholder(shape[-2:], name="mask")
    return module(x, mask, topi.nn.fast_softmax(topi.add(x, mask), -1))


def mean(shape):
    x = te.placeholder(shape, name="x")
    return module(x, topi.divide(topi.sum(x, -1, True), float(shape[-1])))


def spread(shape):
    """Largest less smallest element, of rows of absolute values."""
    x = te.placeholder(shape, name="x")
    size = topi.abs(x)
    return module(x, topi.subtract(topi.max(size, -1), topi.min(size, -1)))


def by_numpy(kind, x, *more):
    x = x.astype(np.float64)
    if kind is softmax:
        e = np.exp(0.5 * x - np.max(0.5 * x, -1, keepdims=True))
        return (e / e.sum(-1, keepdims=True) * 255.0).astype("int32")
    if kind is masked:
        e = np.exp(x + more[0] - np.max(x + more[0], -1, keepdims=True))
        return e / e.sum(-1, keepdims=True)
    if kind is layer_norm:
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * more[0] + more[1]
    if kind is mean:
        return x.mean(-1, keepdims=True)
    return np.abs(x).max(-1) - np.abs(x).min(-1)


def ran(programs, row, inputs, out):
    tensors = [tvm.runtime.tensor(a) for a in (*inputs, np.full_like(out, 77))]
    tvm.tirx.build(programs.apply(row).mod, target=NATIVE)["main"](*tensors)
    return tensors[-1].numpy()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([softmax, layer_norm, masked, mean, spread]),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(2, 150),
    st.integers(0, 2**31),
)
def test_every_row_computes_the_operator(kind, rows, columns, seed):
    mod, rng = kind((*rows, columns)), np.random.default_rng(seed)
    programs = RowPrograms(mod, NATIVE)
    *given, out = [np.zeros([int(d) for d in p.shape], str(p.dtype)) for p in mod["main"].params]
    inputs = [rng.standard_normal(a.shape).astype("float32") for a in given]
    (row,) = programs.space.sample(1, rng)
    want = by_numpy(kind, *inputs)
    got = ran(programs, row, inputs, out)
    if out.dtype == np.int32:
        assert np.abs(got - want).max() <= 1
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_row_s_vectors_do_not_depend_on_its_length():
    """A prime number of elements: lanes that divide it are none."""
    programs = RowPrograms(mean((3, 1009)), NATIVE)
    assert len(programs.space.knobs[0].choices) > 1 and programs.space.knobs[1].choices == ("all", "one")
    ones = np.ones((3, 1009), "float32")
    for row in programs.space.enumerate():
        assert (ran(programs, row, [ones], np.zeros((3, 1), "float32")) == 1.0).all()


def product(rows):
    a, b = te.placeholder((rows, 32), name="a"), te.placeholder((16, 32), name="b")
    k = te.reduce_axis((0, 32), name="k")
    return module(a, b, te.compute((rows, 16), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k), name="product"))


def columns():
    x = te.placeholder((32, 16), name="x")
    return module(x, topi.sum(x, 0))


def windows():
    x = te.placeholder((4, 34), name="x")
    k = te.reduce_axis((0, 3), name="k")
    return module(x, te.compute((4, 32), lambda i, j: te.max(x[i, j + k], axis=k), name="pooled"))


def transposed():
    x = te.placeholder((16, 32), name="x")
    total = topi.sum(x, -1)
    return module(x, te.compute((32, 16), lambda j, i: x[i, j] - total[i], name="less"))


@pytest.mark.parametrize(
    "mod",
    [product(8), columns(), windows(), transposed(), module(*(lambda x: (x, topi.exp(x)))(te.placeholder((4, 8))))],
    ids=["product", "columns", "windows", "transposed", "elementwise"],
)
def test_what_is_no_reduction_of_rows_is_left_to_others(mod):
    with pytest.raises(ValueError, match="does not reduce along its last axis"):
        RowPrograms(mod, NATIVE)


def test_a_vector_times_a_matrix_is_a_reduction_of_rows():
    assert RowPrograms(product(1), NATIVE).space.name == "rows"


def test_rows_stand_beside_sketches():
    assert Both().open(softmax((4, 40)), NATIVE).space.name == "rows+sketch"


def test_rows_stand_alone_where_tvm_derives_no_sketches(monkeypatch):
    """Its rules raise where a softmax's sums, tiled, are to be computed with what reads them."""
    mod = masked((2, 4, 24, 24))
    with pytest.raises(ScheduleError):
        SketchPrograms(mod, NATIVE)
    space = Both().open(mod, NATIVE).space
    assert space.name == "rows" and Both().reopen(mod, NATIVE, space).space.key == space.key
    monkeypatch.setattr("tt_space.both._templates", lambda mod, target: [])
    with pytest.raises(ScheduleError):
        Both().open(mod, NATIVE)


def test_rows_are_for_cpus():
    assert Both().open(softmax((4, 40)), tvm.target.Target("nvidia/geforce-rtx-3080")).space.name == "sketch"
