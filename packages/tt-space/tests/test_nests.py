"""Features of loop nests: by hand, and as TVM extracts them."""

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tt_space import Both, Sketch, SketchPrograms, StepPrograms, TemplatePrograms, WinogradPrograms
from tt_space.nests.blocks import read_blocks
from tt_space.nests.features import COUNTS, features_of
from tt_space.nests.index import Affine, Atom, Differs, Loop, Uninterpreted, divided, remainder, uniform
from tt_space.nests.interpreter import TRIES, Interpreter, signature
from tt_space.nests.lower import lowered
from tt_space.nests.schedule import NestSchedule
from tt_space.packing import legalizers
from tt_spec import draw
from tvm import relax, te, topi

NATIVE = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2})
SLOW = settings(
    deadline=None,
    max_examples=6,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking compiles for minutes
)
BYTES, UNIQUE, LINES, UNIQUE_LINES, REUSED, ITERATIONS, DISTANCE, REUSES, STRIDE = 3, 4, 5, 6, 7, 10, 11, 12, 17


def log(*values):
    return np.log2(np.array(values, dtype=float) + 1)


def product_of(rows, depth, columns):
    """`C[i, j] += A[i, k] * B[k, j]` as the schedule of one or many programs."""
    a, b = te.placeholder((rows, depth), name="A"), te.placeholder((depth, columns), name="B")
    k = te.reduce_axis((0, depth), name="k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    func = te.create_prim_func([a, b, c], index_dtype_override="int64")
    return tvm.IRModule({"main": func})


def product_block(s):
    block = s.get_sblock("C")
    assert block is not None
    return block


def test_a_matrix_product_by_hand():
    """4 x 8 times 8 x 16, loops i, j, k: what Ansor's appendix B says, worked out on paper."""
    s = NestSchedule(read_blocks(product_of(4, 8, 16)))
    block = product_block(s)
    i, _, k = s.get_loops(block)
    s.decompose_reduction(block, k)
    s.parallel(i)
    s.unroll(k)
    (row,) = features_of(lowered(s), 1)[0]
    ops = dict(zip(COUNTS, row, strict=False))
    assert ops["float_mul"] == ops["float_add_sub"] == log(4 * 16 * 8)
    assert sum(v > 0 for v in row[:16]) == 2, "no index has an operation: each is one variable"
    np.testing.assert_allclose(row[16:19], 0)  # nothing is vectorised
    np.testing.assert_allclose(row[27:30], log(1, 8, 8))  # unrolled: one loop, its extent twice
    np.testing.assert_allclose(row[38:41], log(1, 4, 4))  # parallel
    assert row[16 + 3] == 1 and row[27 + 10] == 1 and row[38 + 10] == 1, "none, mixed, mixed"
    # B jumps a row of 16 floats, a cache line, with every k: 512 lines; A 512 * 4 / 64; C waits for k: 64 * 4 / 64
    buffers = row[57:147].reshape(5, 18)
    b, a, c = buffers[:3]
    np.testing.assert_allclose(b[[BYTES, UNIQUE, LINES, UNIQUE_LINES]], log(2048, 512, 512, 8))
    np.testing.assert_allclose(a[[BYTES, UNIQUE, LINES, UNIQUE_LINES]], log(2048, 128, 32, 128 / 32))
    np.testing.assert_allclose(c[[BYTES, UNIQUE, LINES, UNIQUE_LINES]], log(2048, 256, 4, 4))
    np.testing.assert_allclose([x[STRIDE] for x in (b, a, c)], log(16, 1, 0))
    assert b[0] == a[0] == c[2] == 1, "two reads, and one read and write"
    assert b[REUSED] == a[REUSED] == c[REUSED] == 1
    np.testing.assert_allclose([x[ITERATIONS] for x in (b, a, c)], log(16 * 8, 8, 1))
    np.testing.assert_allclose([x[REUSES] for x in (b, a, c)], log(4, 16, 8))
    # under k: 8 of A, 8 of B, 1 of C; under j: 8, 128, 16; for the innermost TVM counts each buffer's element once
    np.testing.assert_allclose([x[DISTANCE] for x in (b, a, c)], log(4 * (8 + 128 + 16), 4 * (8 + 8 + 1), 12))
    assert not buffers[3:].any()
    # all operations over all bytes at the end of the curve
    np.testing.assert_allclose(row[156], log(2 * 512 / (128 + 512 + 256))[0])
    np.testing.assert_allclose(row[157:], log(4 * 64, 64, 1, 512, 512, 3, 0))


def test_many_programs_at_once_are_each_alone():
    tiles = np.array([[1, 2], [4, 8], [2, 16]])

    def features(i_tile, j_tile, n):
        s = NestSchedule(read_blocks(product_of(4, 8, 16)))
        block = product_block(s)
        i, j, k = s.get_loops(block)
        i, i_in = s.split(i, [None, i_tile])
        j, j_in = s.split(j, [None, j_tile])
        s.reorder(i, j, k, i_in, j_in)
        s.decompose_reduction(block, k)
        s.parallel(s.fuse(i, j))
        s.vectorize(j_in)
        return features_of(lowered(s), n)

    together = features(tiles[:, 0], tiles[:, 1], 3)
    for row, (i, j) in zip(together, tiles.tolist(), strict=True):
        np.testing.assert_array_equal(row, features(i, j, 1)[0])
    assert len(np.unique(together, axis=0)) == 3


def test_a_split_leaves_a_remainder_or_is_told_apart():
    s = NestSchedule(read_blocks(product_of(4, 8, 16)))
    i, j, k = s.get_loops(product_block(s))
    outer, inner = s.split(i, [None, np.array([1, 3, 2])])
    assert outer.extent.tolist() == [4, 2, 2] and inner.extent.tolist() == [1, 3, 2]
    with pytest.raises(Differs) as e:
        s.split(j, [np.array([4, 3, 8]), np.array([4, 4, 2])])
    assert e.value.where.tolist() == [True, False, True]
    with pytest.raises(Uninterpreted, match="not nested directly"):
        s.fuse(inner, k)


def test_indices_divide_where_the_result_is_affine():
    block, lane = Loop(6), Loop(16)
    e = Affine.of(block) * 16 + Affine.of(lane)
    assert divided(e, 16).same(Affine.of(block)) and remainder(e, 16).same(Affine.of(lane))
    assert (e.low(), e.high()) == (0, 95)
    with pytest.raises(Uninterpreted):
        divided(e, 32)
    assert not e.same(Affine.of(block)) and e.same(e + Affine(((Atom(Loop(1), 1, 1), 7),)))
    assert uniform(np.array([True, True])) and not uniform(False)


def convolution(builder, x, w, b):
    y = builder.emit(relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="OIHW"))
    return builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, b))))


def dense(builder, x, w, b):
    y = builder.emit(relax.op.matmul(x, w))
    return builder.emit(relax.op.exp(builder.emit(relax.op.add(y, b))))


def lower(make, shapes, packed):
    """The heavy function of a model, with constants as weights, as a module."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shapes[0], "float32"))
    rng = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            constants = [relax.const(rng.random(s).astype("float32")) for s in shapes[1:]]
            out = builder.emit_output(make(builder, x, *constants))
        builder.emit_func_output(out)
    t = relax.transform
    passes = [t.LegalizeOps(legalizers(NATIVE) if packed else {}), t.AnnotateTIROpPattern(), t.FoldConstant()]
    passes += [t.FuseOps(), t.FuseTIR(), t.DeadCodeElimination()]
    with NATIVE:
        mod = tvm.transform.Sequential(passes)(builder.get())
    funcs = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    heavy = max(funcs, key=lambda f: len(f.script()))
    return tvm.IRModule({"main": heavy.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})


def same(programs, rows):
    """Compare interpreted rows with TVM's; how many were interpreted."""
    found = programs.interpret(rows)
    assert programs.interpret.refusal is None
    for row, mine in zip(rows, found, strict=True):
        if mine is not None:
            (theirs,) = programs.features([programs.apply(row)])
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=str(row))
    return sum(f is not None for f in found)


@SLOW
@given(size=st.sampled_from([4, 6, 9]), channels=st.sampled_from([3, 16, 24]), seed=st.integers(0, 2**31))
def test_a_templates_rows_are_as_tvm_extracts_them(size, channels, seed):
    mod = lower(convolution, [(1, size, size, channels), (32, channels, 3, 3), (32,)], packed=True)
    programs = TemplatePrograms(mod, NATIVE)
    rows = programs.space.sample(12, np.random.default_rng(seed))
    assert same(programs, rows) == len(rows), programs.interpret.unknown


def test_winograds_rows_are_as_tvm_extracts_them_with_remainders_and_without():
    mod = lower(convolution, [(1, 12, 12, 16), (32, 16, 3, 3), (32,)], packed=True)
    programs = StepPrograms(mod, NATIVE)
    rows = programs.space.sample(24, np.random.default_rng(1))
    tiles = {(36 if v["outputs"] == 2 else 9) % v["tile"][0] == 0 for v in map(programs.space.decode, rows)}
    assert tiles == {True, False}
    assert same(programs, rows) == len(rows), programs.interpret.unknown


@SLOW
@given(size=st.sampled_from([8, 12, 14]), channels=st.sampled_from([16, 24]), seed=st.integers(0, 2**31))
def test_winograds_strips_are_as_tvm_extracts_them(size, channels, seed):
    mod = lower(convolution, [(1, size, size, channels), (32, channels, 3, 3), (32,)], packed=True)
    programs = WinogradPrograms(mod, NATIVE)
    rows = programs.space.canonical(programs.space.sample(12, np.random.default_rng(seed)))
    assert same(programs, rows) == len(rows), programs.interpret.unknown


@SLOW
@given(rows=st.sampled_from([1, 6, 8]), columns=st.sampled_from([16, 64]), seed=st.integers(0, 2**31))
def test_a_products_template_is_as_tvm_extracts_it(rows, columns, seed):
    programs = TemplatePrograms(lower(dense, [(rows, 48), (48, columns), (columns,)], packed=True), NATIVE)
    codes = programs.space.sample(12, np.random.default_rng(seed))
    assert same(programs, codes) == len(codes), programs.interpret.unknown


@SLOW
@example(size=6, channels=3, seed=33554433)  # of its first 16 rows TVM would choose another location each time
@example(size=4, channels=16, seed=48)  # an index has a fused loop's variable with a factor, and again without one
@given(size=st.sampled_from([4, 6, 9]), channels=st.sampled_from([3, 16]), seed=st.integers(0, 2**31))
def test_a_sketchs_rows_are_as_tvm_extracts_them(size, channels, seed):
    def one(builder, x, w):
        return builder.emit(relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"))

    programs = SketchPrograms(lower(one, [(1, size, size, channels), (3, 3, channels, 32)], packed=False), NATIVE)
    rows = programs.space.canonical(programs.space.sample(40, np.random.default_rng(seed)))
    assert same(programs, rows), programs.interpret.unknown


def test_a_location_that_tvm_replaces_is_not_interpreted():
    def one(builder, x, w):
        return builder.emit(relax.op.nn.conv2d(x, w, padding=1, data_layout="NHWC", kernel_layout="HWIO"))

    programs = SketchPrograms(lower(one, [(1, 8, 8, 16), (3, 3, 16, 32)], packed=False), NATIVE)
    rows = programs.space.canonical(programs.space.sample(64, np.random.default_rng(0)))
    read = np.array([programs.read(programs.apply(row), row) for row in rows])
    moved = (read != rows).any(axis=1)
    found = np.array([f is not None for f in programs.interpret(rows)])
    assert moved.any() and not moved.all() and not (found & moved).any()
    programs.interpret.unknown.clear()
    assert same(programs, read) > 60, "what TVM chose is a location"
    assert "TVM would choose another location" not in programs.interpret.unknown


def test_a_block_that_cannot_be_inlined_leaves_its_rows_to_tvm_and_no_others():
    """A softmax's sketches ask for some of its reductions to be inlined, which TVM refuses, and for blocks that the
    trace makes itself."""

    def one(builder, x):
        return builder.emit(relax.op.nn.softmax(x))

    programs = SketchPrograms(lower(one, [(2, 32, 32)], packed=False), NATIVE)
    rows = programs.space.canonical(programs.space.sample(200, np.random.default_rng(0)))
    found = programs.interpret(rows)
    reasons = set(programs.interpret.unknown)
    assert {"a block that cannot be inlined would be", "a block that the trace makes would be inlined"} <= reasons
    assert len(found) == len(rows)


def test_a_space_that_differs_from_tvm_is_refused():
    """One wrong column in one probe is enough."""
    mod = lower(dense, [(6, 48), (48, 64), (64,)], packed=True)
    programs = TemplatePrograms(mod, NATIVE)
    rows = programs.space.canonical(draw(programs.space, set(), 24, np.random.default_rng(0)))
    asked = []

    def exact(row):
        asked.append(tuple(row))
        found = programs.exact(row)
        found[-1, 163] += 0.01 * (len(asked) == 16)
        return found

    interpret = Interpreter(programs.space, programs._structure, exact)
    some = interpret(rows[:4])
    assert interpret.checked == 4 and asked == [*dict.fromkeys(asked)] and {*asked} == {*map(tuple, rows[:4])}
    for row, f in zip(rows, some, strict=False):
        assert f is not None and np.array_equal(f, programs.exact(row)), "the first rows are TVM's own"
    for i in range(5):
        assert interpret(rows[4 * i + 4 :][:4]) and interpret.refusal is None and len(asked) == 6 + 2 * i
    assert interpret(rows[4:]) == [None] * 20 and len(asked) == 16
    assert interpret.refusal is not None and "not TVM's" in interpret.refusal
    assert interpret(rows) == [None] * 24 and len(asked) == 16, "it is asked no more"
    good = Interpreter(programs.space, programs._structure, programs.exact)
    outside = np.array(programs.space.shape)
    assert [f is None for f in good(np.stack([outside, *rows]))] == [True, *[False] * 24] and good.checked == 4
    for _ in range(8):
        good(rows)
    assert good.refusal is None and good.checked == 16


def silu(builder, x, w, b):
    """With tt's own exponential, whose powers of two are shifts."""
    y = builder.emit(relax.op.add(builder.emit(relax.op.matmul(x, w)), b))

    def made(t):
        power = topi.fast_exp(topi.negative(t))
        return te.compute(t.shape, lambda *i: t[i] / (1.0 + power[i]), name="silu")

    return builder.emit_te(made, y)


def test_shifts_count_as_tvm_counts_them():
    mod = lower(silu, [(6, 48), (48, 64), (64,)], packed=True)
    assert "<<" in mod.script() or "shift_left" in mod.script()
    programs = TemplatePrograms(mod, NATIVE)
    rows = programs.space.canonical(draw(programs.space, set(), 24, np.random.default_rng(0)))
    assert same(programs, rows) > 12


def test_a_space_like_one_that_was_compared_is_compared_less():
    def programs(depth, like):
        made = TemplatePrograms(lower(dense, [(6, depth), (depth, 64), (64,)], packed=True), NATIVE)
        rows = made.space.canonical(draw(made.space, set(), 24, np.random.default_rng(0)))
        asked = []

        def exact(row):
            asked.append(tuple(row))
            return made.exact(row)

        return Interpreter(made.space, made._structure, exact, like), rows, asked, made

    first, rows, asked, made = programs(48, "these tests")
    for _ in range(9):
        first(rows)
    assert first.checked == len(asked) == 16
    second, rows, asked, _ = programs(32, "these tests")
    for _ in range(9):
        second(rows)
    assert second.checked == len(asked) == 1
    third, rows, asked, _ = programs(32, "these tests")
    third._refuse("for a reason")
    fourth, rows, asked, _ = programs(32, "these tests")
    fourth(rows)
    assert fourth.checked == 4, "one of its like was refused"
    other, rows, asked, _ = programs(32, None)
    other(rows)
    assert other.checked == 4, "one that is like no other"
    mods = [lower(dense, [(6, depth), (depth, 64), (64,)], packed=True) for depth in (48, 32)]
    assert len({signature(m, made.space) for m in mods}) == 1
    assert signature(lower(silu, [(6, 48), (48, 64), (64,)], packed=True), made.space) != signature(mods[0], made.space)


def test_joined_spaces_interpret_by_part():
    mod = lower(convolution, [(1, 8, 8, 16), (32, 16, 3, 3), (32,)], packed=True)
    programs: Any = Both().open(mod, NATIVE)
    rows = programs.space.canonical(programs.space.sample(24, np.random.default_rng(0)))
    found = programs.interpret(rows)
    part = [programs.space.knobs[0].choices[r[0]] for r in rows]
    assert {f is None for p, f in zip(part, found, strict=True) if p == "template"} == {False}
    assert "sketch" in part and "winograd" in part
    for row, mine in zip(rows, found, strict=True):
        if mine is not None:
            np.testing.assert_allclose(mine, programs.features([programs.apply(row)])[0], rtol=1e-5, atol=1e-6)


def test_what_is_no_nest_of_loops_is_left_to_tvm():
    x = te.placeholder((8,), name="x")
    out = te.compute((8,), lambda i: x[tvm.tirx.min(i, 3)], name="y")
    mod = tvm.IRModule({"main": te.create_prim_func([x, out], index_dtype_override="int64")})
    with pytest.raises(Uninterpreted, match="index has a Min"):
        read_blocks(mod)
    programs = Sketch().open(mod, NATIVE)
    assert programs.interpret(programs.space.sample(TRIES, np.random.default_rng(0))) == [None] * TRIES
    assert programs.interpret.refusal is not None
