"""What programs are compared with: programs here are functions of numpy, the reference beside them TVM's own dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core.compiler.quick import depths, quick
from tt_core.compiler.reference import BIG_WEIGHT, DRAWS, FIRST, MORE, Recent, Reference, drawn, fault
from tvm import te
from tvm.target import Target

N = 64


class Placed:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        return self.array.copy()


def product(dtype: str = "float32", m: int = 8, n: int = 16) -> tvm.tirx.PrimFunc:
    a, b = te.placeholder((m, N), dtype, name="a"), te.placeholder((N, n), dtype, name="b")
    k = te.reduce_axis((0, N), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")


def elementwise(dtype: str = "float32", shape: tuple[int, ...] = (8, 16)) -> tvm.tirx.PrimFunc:
    a = te.placeholder(shape, dtype, name="a")
    return te.create_prim_func([a, te.compute(shape, lambda *i: a[i], name="c")]).with_attr("global_symbol", "main")


def reference(func, compute) -> Reference:
    return Reference(func, [Placed(a) for a in drawn(func)], lambda arrays: [compute(*arrays)], Placed)


def faults(ref: Reference, compute) -> list[str | None]:
    return [ref.fault(d, [compute(*(a.numpy() for a in d.inputs))]) for d in ref.draws()]


def right(a, b):
    return a @ b


def other_order(a, b):
    """The same sums, backwards and in float64."""
    return (a[:, ::-1].astype("float64") @ b[::-1].astype("float64")).astype(a.dtype)


def small_columns(compute):
    """Seven of eight columns are a ten-thousandth of the others."""

    def scaled(a, b):
        c = compute(a, b)
        return np.where(np.arange(c.shape[1]) % 8 == 0, c, c * np.float32(1e-4)).astype(c.dtype)

    return scaled


def test_each_element_counts_by_itself():
    """A bound relative to the largest output let this pass."""
    want, got = np.array([2e4, 1, 1], "float32"), np.array([2e4, 0, 0], "float32")
    assert "2 of 3 values" in fault(got, want, np.abs(want) * 1e-5)
    ref = reference(product(), small_columns(right))
    assert faults(ref, small_columns(other_order)) == [None] * 3

    def wrong(a, b):
        c = small_columns(right)(a, b)
        c[:, 1] *= 1.001
        return c

    assert all("values" in str(f) for f in faults(ref, wrong))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_other_orders_pass_and_a_missing_term_does_not(dtype):
    ref = reference(product(dtype), right)
    assert faults(ref, other_order) == [None] * 3
    assert all(faults(ref, lambda a, b: right(a[:, 1:], b[1:])))


def test_what_only_shows_on_some_numbers_is_found():
    ref = reference(product(), right)
    cut = faults(ref, lambda a, b: right(np.clip(a, -100, 100), b))
    assert cut[:2] == [None, None] and "(large numbers and denormals)" in cut[2]
    assert faults(ref, lambda a, b: right(a, b) if (a != 0).all() else right(a, b) * 2)[1]


def test_more_nudges_come_before_a_refusal_and_once():
    ref = reference(product(), right)
    assert faults(ref, other_order) == [None] * 3
    assert [d.nudges for d in ref.draws()] == [FIRST] * 3
    for _ in range(2):
        assert ref.fault(ref.draws()[0], [np.zeros((8, 16), "float32")])
    assert [d.nudges for d in ref.draws()] == [FIRST + MORE, FIRST, FIRST]


def test_the_three_draws_have_zeros_negative_large_and_denormal_values():
    plain, sparse, large = (d.inputs[0].numpy() for d in reference(product(), right).draws())
    assert np.isfinite(plain).all() and (plain != 0).all()
    assert 0.1 < (sparse == 0).mean() < 0.4 and (sparse <= 0).all()
    tiny = np.finfo("float32").tiny
    assert np.abs(large).max() > 1000 and ((large != 0) & (np.abs(large) < tiny)).any()


def test_where_the_reference_is_not_finite_others_are_drawn():
    """The root of a negative number; the exponential of a large one."""
    for compute in (np.sqrt, np.exp, np.log):
        with np.errstate(all="ignore"):
            ref = reference(elementwise(), compute)
            finite = [np.isfinite(d.want[0]).all() for d in ref.draws()]
        assert finite[0] and sum(finite) >= 2
        assert len(ref.doubts) == 3 - sum(finite)


def test_where_the_reference_is_the_same_everywhere_others_are_drawn():
    ref = reference(elementwise(), lambda a: np.maximum(a, 0))
    assert ref.doubts == [] and all(len(np.unique(d.want[0])) > 1 for d in ref.draws())


@pytest.mark.parametrize(
    ("compute", "why"),
    [
        (lambda a: np.zeros_like(a), "the same everywhere"),
        (lambda a: np.full_like(a, np.nan), "not finite"),
        (lambda a: 1 + a * np.float32(1e-6) / (1 + np.abs(a)), "lost in rounding"),
    ],
)
def test_a_reference_that_never_tells_is_said_to(compute, why):
    ref = reference(elementwise(), compute)
    assert any(why in d for d in ref.doubts)
    assert faults(ref, compute) == [None] * 3


def test_integers_and_booleans_are_equal_but_where_a_nudge_changes_them():
    ref = reference(elementwise(), lambda a: a > 0)
    assert faults(ref, lambda a: a > 0) == [None] * 3
    assert faults(ref, lambda a: a > 1e-3)[0] == "1 of 128 values differ" or faults(ref, lambda a: a > 0.1)[0]
    whole = reference(elementwise("int32"), lambda a: a + 1)
    wrong = faults(whole, lambda a: a + 1 + (np.arange(a.size).reshape(a.shape) == 5))
    assert all("1 of 128 values differ" in str(w) for w in wrong)


def test_cancellation_may_cost_what_it_costs():
    """1 - cos(x) of small x loses its digits in any program; a tenth too much is refused all the same."""
    ref = reference(product(), lambda a, b: 1 - np.cos(right(a, b) * np.float32(1e-2)))
    assert faults(ref, lambda a, b: 1 - np.cos(other_order(a, b) * np.float32(1e-2))) == [None] * 3
    assert faults(ref, lambda a, b: (1 - np.cos(right(a, b) * np.float32(1e-2))) * np.float32(1.1))[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_output_that_is_one_number(dtype):
    """numpy makes no array of what is computed from such arrays."""
    a = te.placeholder((8, 16), dtype, name="a")
    i, j = te.reduce_axis((0, 8)), te.reduce_axis((0, 16))
    func = te.create_prim_func([a, te.compute((), lambda: te.max(a[i, j], axis=[i, j]), name="c")])
    ref = reference(func.with_attr("global_symbol", "main"), lambda x: np.array(x.max(), dtype))
    assert faults(ref, lambda x: np.array(x.max(), dtype)) == [None] * 3
    assert all("1 of 1 values" in str(f) for f in faults(ref, lambda x: np.array(x.max() * 1.01, dtype)))
    assert all(faults(ref, lambda x: np.array(np.nan, dtype)))


def test_infinities_and_nans_stand_where_they_stand():
    want = np.array([np.inf, 1, np.nan], "float32")
    allowed = np.full(3, 1e-5)
    assert fault(want.copy(), want, allowed) is None
    for got in ([1, 1, np.nan], [-np.inf, 1, np.nan], [np.inf, np.nan, np.nan], [np.inf, 1, 0]):
        assert "infinities or NaNs" in fault(np.array(got, "float32"), want, allowed)
    assert fault(np.zeros(2), np.zeros(3), np.zeros(3)) == "shape (2,) instead of (3,)"


def test_big_weights_are_the_same_in_all_draws():
    ref = reference(product(n=BIG_WEIGHT // N + 1), lambda a, b: right(a, b[:, :16]))
    assert len({id(d.inputs[1]) for d in ref.draws()}) == 1
    assert len({id(d.inputs[0]) for d in ref.draws()}) == 3


def test_every_variant_keeps_shape_and_dtype():
    rng = np.random.default_rng(0)
    for dtype in ("float32", "float64", "float16", "int8", "int64", "bool"):
        a = rng.normal(size=(3, 4)).astype(dtype)
        for _, variants in DRAWS:
            for first, others in variants:
                for made in (first(a, rng), others(a, rng)):
                    assert made.shape == a.shape and made.dtype == a.dtype


def test_the_depth_of_sums_is_counted_by_their_dtype():
    assert depths(product()) == {"float32": N}
    assert depths(product("float16")) == {"float16": N}
    assert depths(elementwise()) == {}


def test_a_light_program_is_quick_enough():
    mod = tvm.IRModule({"main": product()})
    assert quick(mod, Target("llvm")) is mod


def test_a_heavy_program_is_scheduled_for_a_cpu_alone_and_computes_the_same():
    x, y = te.placeholder((128, 256), name="x"), te.placeholder((256, 96), name="y")
    k = te.reduce_axis((0, 256), name="k")
    z = te.compute((128, 96), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="z")
    mod = tvm.IRModule({"main": te.create_prim_func([x, y, z]).with_attr("global_symbol", "main")})
    assert quick(mod, Target({"kind": "cuda", "arch": "sm_80"})) is mod
    other = quick(mod, Target("llvm"))
    assert "T.vectorized" in other.script() and "T.parallel" in other.script() and "T.parallel" not in mod.script()
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype("float32") for shape in ((128, 256), (256, 96)))
    found = []
    for made in (mod, other):
        out = tvm.runtime.tensor(np.zeros((128, 96), "float32"))
        tvm.compile(made, target="llvm")["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        found.append(out.numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(found[0], a @ b, rtol=1e-4, atol=1e-3)


def test_of_many_references_those_used_last_keep_their_draws():
    refs = [reference(product(), right) for _ in range(3)]
    first = [d.want[0] for d in refs[0].draws()]
    of_one = refs[0].nbytes
    assert of_one == 3 * 2 * first[0].nbytes + sum(
        a.numpy().nbytes for d in refs[0].draws() for a in d.inputs if a not in refs[0].base
    )
    recent = Recent(most=2 * of_one)
    for ref in (*refs[:2], refs[0], refs[2]):
        ref.draws()
        recent.used(ref)
    assert [ref.nbytes for ref in refs] == [of_one, 0, of_one]
    assert refs[1].doubts == []
    for again, known in zip(refs[1].draws(), first, strict=True):
        np.testing.assert_array_equal(again.want[0], known)


def test_one_reference_keeps_its_draws_whatever_they_take():
    ref = reference(product(), right)
    ref.draws()
    Recent(most=1).used(ref)
    assert ref.nbytes > 1
