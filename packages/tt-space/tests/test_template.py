"""Templates compute what numpy computes, for every row and awkward size."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tt_space import Both, InvalidRow, Sketch, StepPrograms, Template, TemplatePrograms, WinogradPrograms, both
from tt_space.filtering import matrices, transformed
from tt_space.machine import VectorUnit, vector_unit
from tt_space.packing import legalizers
from tt_space.sketch import SketchPrograms
from tt_space.template import has_template
from tt_space.winograd import has_winograd, winograd_parts
from tt_spec.roles import Interprets
from tvm import relax

NATIVE = {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 2}
CHECKS: Any = list(HealthCheck)  # its metaclass iterates, which a type checker does not follow
SLOW = settings(deadline=None, max_examples=25, suppress_health_check=CHECKS)


def target(**options):
    return tvm.target.Target({**NATIVE, **options})


def lowered(make, shapes, on, dtype="float32"):
    """The one heavy function of a model, as a module with the single function "main"."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(make(builder, *variables))
        builder.emit_func_output(out)
    t = relax.transform
    passes = [
        t.LegalizeOps(legalizers(on)),
        t.AnnotateTIROpPattern(),
        t.FuseOps(),
        t.FuseTIR(),
        t.DeadCodeElimination(),
    ]
    with on:
        mod = tvm.transform.Sequential(passes)(builder.get())
    funcs = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(funcs) == 1, [v.name_hint for v in mod.functions]
    constants = []

    def visit(e):
        if isinstance(e, relax.Call) and e.op == tvm.ir.Op.get("relax.call_tir"):
            constants.extend(a.value.numpy() for a in e.args[1] if isinstance(a, tvm.ir.GenericConst))

    relax.analysis.post_order_visit(mod["main"], visit)
    single = tvm.IRModule({"main": funcs[0].with_attr("global_symbol", "main").with_attr("tirx.noalias", True)})
    return single, constants


def run(programs, row, inputs, on):
    """Output of a row's program on numpy inputs, into a buffer that it must overwrite."""
    main = programs.apply(row).mod["main"]
    shape, dtype = [int(d) for d in main.params[-1].shape], str(main.params[-1].dtype)
    out = tvm.runtime.tensor(np.full(shape, np.nan, dtype))
    tvm.tirx.build(programs.apply(row).mod, target=on)["main"](*map(tvm.runtime.tensor, inputs), out)
    return out.numpy()


def close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-5 * max(np.abs(want).max(), 1.0)


def conv_by_hand(x, w, strides, padding, dilation, groups):
    """NHWC with OIHW weights, in float64, one window position at a time."""
    top, left, bottom, right = padding
    x = np.pad(x.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    filters, channels, kh, kw = w.shape
    height = (x.shape[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    width = (x.shape[2] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((x.shape[0], height, width, filters))
    per = filters // groups
    for f in range(filters):
        mine = x[..., f // per * channels : (f // per + 1) * channels]
        for i in range(kh):
            for j in range(kw):
                y, z = i * dilation[0], j * dilation[1]
                part = mine[:, y : y + height * strides[0] : strides[0], z : z + width * strides[1] : strides[1]]
                out[..., f] += part[:, :height, :width] @ w[f, :, i, j].astype("float64")
    return out


@st.composite
def convolutions(draw):
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    size = [draw(st.integers((k - 1) * d + 1, (k - 1) * d + 9)) for k, d in zip(kernel, dilation, strict=True)]
    groups = draw(st.sampled_from([1, 1, 2, 3, 5]))
    return {
        "batch": draw(st.integers(1, 3)),
        "size": size,
        "channels": draw(st.sampled_from([1, 3, 5, 8, 17])),
        "filters": draw(st.sampled_from([1, 3, 7, 8, 16, 20, 24, 33])),
        "kernel": kernel,
        "groups": groups,
        "strides": draw(st.tuples(st.integers(1, 5), st.integers(1, 5))),
        "padding": draw(st.tuples(*[st.integers(0, 2)] * 4)),
        "dilation": dilation,
    }


def convolution(shape, rng, on, epilogue=None):
    g = shape["groups"]
    x = rng.standard_normal((shape["batch"], *shape["size"], shape["channels"] * g)).astype("float32")
    w = rng.standard_normal((shape["filters"] * g, shape["channels"], *shape["kernel"])).astype("float32")
    how = {k: list(shape[k]) for k in ("strides", "padding", "dilation")}

    def make(builder, v):
        y = relax.op.nn.conv2d(
            v, relax.const(w), **how, groups=g, data_layout="NHWC", kernel_layout="OIHW", out_layout="NHWC"
        )
        return builder.normalize(epilogue(builder, builder.emit(y)) if epilogue else y)

    mod, constants = lowered(make, [x.shape], on)
    return mod, [x, *constants], conv_by_hand(x, w, groups=g, **how)


@pytest.mark.slow
@SLOW
@given(convolutions(), st.integers(0, 2**32 - 1))
def test_convolutions_of_awkward_sizes(shape, seed):
    rng, on = np.random.default_rng(seed), target()
    mod, inputs, want = convolution(shape, rng, on)
    programs = TemplatePrograms(mod, on)
    for row in programs.space.sample(2, rng):
        close(run(programs, row, inputs, on), want)


@pytest.mark.parametrize(
    ("groups", "filters", "lanes", "channels"),
    [
        (4, 68, 16, 2),  # 17 blocks, each of one group or two, instead of 17 of 4 lanes a group
        (4, 34, 16, 2),
        (4, 4, 4, 1),  # 16 lanes would read four groups, for as many products as 4 blocks of 4 lanes
        (2, 32, 16, 1),
        (2, 24, 8, 1),
        (3, 1, 1, 1),
    ],
)
def test_a_block_of_filters_may_reach_into_another_group(groups, filters, lanes, channels):
    on = target(mcpu="skylake-avx512")
    shape = {"batch": 1, "size": (1, 1), "channels": 3, "filters": filters, "kernel": (1, 1), "groups": groups}
    shape |= {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    _, (_, packed), _ = convolution(shape, np.random.default_rng(0), on)
    blocks = -(-filters * groups // lanes)
    assert packed.shape == (blocks, 1, 1, 3 * channels, lanes)


@pytest.mark.slow
@SLOW
@given(
    channels=st.sampled_from([2, 8, 20, 24, 33, 48]),
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    stride=st.integers(1, 4),
    pad=st.integers(0, 1),
    kernel=st.sampled_from([(3, 3), (1, 3), (2, 2)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_depthwise_convolutions_of_awkward_sizes(channels, size, stride, pad, kernel, seed):
    rng, on = np.random.default_rng(seed), target()
    shape = {"batch": 2, "size": size, "channels": 1, "filters": 1, "kernel": kernel, "groups": channels}
    shape.update(strides=(stride, stride), padding=(pad, pad, 0, pad), dilation=(1, 1))
    mod, inputs, want = convolution(shape, rng, on)
    programs = TemplatePrograms(mod, on)
    assert programs.anchor.kind == "depthwise"
    for row in programs.space.sample(2, rng):
        close(run(programs, row, inputs, on), want)


@pytest.mark.slow
@SLOW
@given(
    front=st.sampled_from([(), (1,), (5,), (2, 3)]),
    m=st.integers(1, 20),
    n=st.sampled_from([1, 3, 16, 24, 40]),
    k=st.sampled_from([1, 5, 16, 36, 64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_products_with_constant_weights(front, m, n, k, seed):
    rng, on = np.random.default_rng(seed), target()
    x, w = rng.standard_normal((*front, m, k)).astype("float32"), rng.standard_normal((k, n)).astype("float32")
    mod, constants = lowered(lambda b, v: b.normalize(relax.op.matmul(v, relax.const(w))), [x.shape], on)
    programs = TemplatePrograms(mod, on)
    for row in programs.space.sample(2, rng):
        close(run(programs, row, [x, *constants], on), x.astype("float64") @ w)


@pytest.mark.slow
@SLOW
@given(
    front=st.sampled_from([(1,), (4,), (2, 3)]),
    m=st.integers(1, 20),
    blocks=st.integers(1, 3),
    k=st.sampled_from([1, 5, 32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_batched_products(front, m, blocks, k, seed):
    rng, on = np.random.default_rng(seed), target()
    n = blocks * vector_unit(on).lanes("float32")
    x, y = rng.standard_normal((*front, m, k)).astype("float32"), rng.standard_normal((*front, k, n)).astype("float32")
    mod, _ = lowered(lambda b, v, w: b.normalize(relax.op.matmul(v, w)), [x.shape, y.shape], on)
    programs = TemplatePrograms(mod, on)
    assert programs.anchor.kind == "batched"
    for row in programs.space.sample(2, rng):
        close(run(programs, row, [x, y], on), x.astype("float64") @ y)


EPILOGUES = {
    "bias and relu": (
        lambda b, y: relax.op.nn.relu(b.emit(relax.op.add(y, relax.const(np.linspace(-1, 1, 24, dtype="float32"))))),
        lambda y: np.maximum(y + np.linspace(-1, 1, 24), 0),
    ),
    "clip": (
        lambda b, y: relax.op.minimum(
            b.emit(relax.op.maximum(y, relax.const(0.0, "float32"))), relax.const(6.0, "float32")
        ),
        lambda y: np.clip(y, 0, 6),
    ),
    "swish": (
        lambda b, y: relax.op.multiply(y, b.emit(relax.op.sigmoid(y))),
        lambda y: y / (1 + np.exp(-y)),
    ),
    "residual of itself": (lambda b, y: relax.op.add(y, y), lambda y: 2 * y),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_fused_and_right(name):
    rng, on = np.random.default_rng(0), target()
    emit, by_hand = EPILOGUES[name]
    shape = {"batch": 1, "size": (6, 6), "channels": 5, "filters": 24, "kernel": (3, 3), "groups": 1}
    shape.update(strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1))
    mod, inputs, want = convolution(shape, rng, on, emit)
    programs = TemplatePrograms(mod, on)
    for row in programs.space.sample(3, rng):
        close(run(programs, row, inputs, on), by_hand(want))


def small(on, filters=24):
    shape = {"batch": 1, "size": (8, 8), "channels": 4, "filters": filters, "kernel": (3, 3), "groups": 1}
    shape.update(strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1))
    return convolution(shape, np.random.default_rng(0), on)


@pytest.mark.parametrize(
    ("options", "unit"),
    [
        ({"mcpu": "skylake-avx512"}, VectorUnit(512, 32)),
        ({"mcpu": "haswell"}, VectorUnit(256, 16)),
        ({"mcpu": "x86-64"}, VectorUnit(128, 16)),
        ({"mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"}, VectorUnit(128, 32)),
    ],
)
def test_templates_follow_the_vector_unit(options, unit):
    on = target(**options)
    assert vector_unit(on) == unit
    mod, _, _ = small(on)
    programs = TemplatePrograms(mod, on)
    assert programs.anchor.lanes == unit.lanes("float32")
    tiles = programs.space.knobs[0].choices
    assert max(h * w * b for h, w, b in tiles) <= unit.registers
    library = tvm.tirx.build(programs.apply(programs.space.sample(1, np.random.default_rng(0))[0]).mod, target=on)
    assert library is not None


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64"])
def test_narrow_units_compute_the_same(mcpu):
    on = target(mcpu=mcpu)
    mod, inputs, want = small(on)
    programs = TemplatePrograms(mod, on)
    for row in programs.space.sample(3, np.random.default_rng(0)):
        close(run(programs, row, inputs, on), want)


def test_every_row_of_a_template_is_its_own_canonical_row():
    on = target()
    programs = TemplatePrograms(small(on)[0], on)
    for row in programs.space.sample(8, np.random.default_rng(1)):
        assert (programs.read(programs.apply(row), row) == row).all()


def test_a_row_out_of_range_is_refused():
    on = target()
    programs = TemplatePrograms(small(on)[0], on)
    with pytest.raises(InvalidRow, match="outside the space's shape"):
        programs.apply(np.full(len(programs.space.knobs), 10**6))


def test_operators_without_a_template_fall_back_to_sketches():
    on = target()
    mod, _ = lowered(lambda b, v: b.normalize(relax.op.nn.softmax(v, axis=0)), [(4, 32)], on)
    assert not has_template(mod)
    assert Template().open(mod, on).space.key == Sketch().open(mod, on).space.key
    assert Both().open(mod, on).space.key == Sketch().open(mod, on).space.key


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_every_builder_says_how_it_wants_operators_written(kind):
    on = target() if kind == "llvm" else tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert Sketch().legalizers(on) == {}
    for builder in (Template(), Both()):
        assert sorted(builder.legalizers(on)) == sorted(legalizers(on))
        assert bool(builder.legalizers(on)) == (kind == "llvm")


def test_both_holds_templates_and_sketches():
    on = target()
    mod, inputs, want = small(on)
    rng = np.random.default_rng(0)
    programs = Both().open(mod, on)
    template, sketch = TemplatePrograms(mod, on), Sketch().open(mod, on)
    assert programs.space.name == "template+sketch"
    assert programs.space.size == template.space.size + sketch.space.size
    rows = programs.space.sample(400, rng)
    share = (rows[:, 0] == 0).mean()
    assert 0.76 < share < 0.9, "random rows follow the prior of 5 to 1"
    for which in (0, 1):
        checked = 0
        for row in rows[rows[:, 0] == which][:8]:
            try:
                canonical = programs.read(programs.apply(row), row)
            except InvalidRow:
                continue
            assert (programs.read(programs.apply(canonical), canonical) == canonical).all()
            close(run(programs, canonical, inputs, on), want)
            checked += 1
        assert checked
    assert all(f.shape[1] == 164 for f in programs.features([programs.apply(r) for r in rows[rows[:, 0] == 0][:2]]))


def test_a_workload_is_reopened_without_sketches_until_one_is_asked_for(monkeypatch):
    on = target()
    mod, *_ = small(on)
    space = Both().open(mod, on).space
    derived: list[Any] = []

    def counted(*args):
        derived.append(SketchPrograms(*args))
        return derived[-1]

    monkeypatch.setattr(both, "SketchPrograms", counted)
    programs = Both().reopen(mod, on, space)
    rows = space.canonical(space.sample(64, np.random.default_rng(0)))
    kinds = [rows[rows[:, 0] == part][0] for part in (0, 1)]
    schedule = programs.apply(kinds[0])
    assert np.array_equal(programs.read(schedule, kinds[0]), kinds[0])
    assert len(programs.features([schedule])) == 1 and programs.repack(kinds[0]) is None
    assert isinstance(programs, Interprets) and len(programs.interpret(rows[rows[:, 0] == 0])) > 1
    assert programs.space.key == space.key and not derived
    mine = programs.read(programs.apply(kinds[1]), kinds[1])
    assert len(derived) == 1
    assert np.array_equal(mine, Both().open(mod, on).read(programs.apply(mine), mine))


def test_a_space_of_another_version_is_not_reopened():
    """What is opened then has another key, which a worker compares; sketches that differ alone have no programs."""
    on = target()
    mod, *_ = small(on)
    space = Both().open(mod, on).space
    for other in (
        replace(space, version="0+" + space.version.partition("+")[2]),
        replace(
            space,
            knobs=(space.knobs[0], replace(space.knobs[1], choices=space.knobs[1].choices[::-1]), *space.knobs[2:]),
        ),
        replace(space, version=space.version + ".1"),
    ):
        assert Both().reopen(mod, on, other).space.key == space.key != other.key
    last = replace(space.knobs[-1], choices=space.knobs[-1].choices[:-1])
    other = replace(space, knobs=(*space.knobs[:-1], last))
    programs = Both().reopen(mod, on, other)
    rows = other.sample(64, np.random.default_rng(0))
    programs.apply(rows[rows[:, 0] == 0][0])
    with pytest.raises(InvalidRow, match=f"derives space {space.key}, and the row is of space {other.key}"):
        programs.apply(rows[rows[:, 0] == 1][0])


def test_a_convolution_has_hundreds_to_a_hundred_thousand_rows():
    on = target()
    shape = {"batch": 1, "size": (56, 56), "channels": 64, "filters": 64, "kernel": (3, 3), "groups": 1}
    shape.update(strides=(1, 1), padding=(1, 1, 1, 1), dilation=(1, 1))
    mod, _, _ = convolution(shape, np.random.default_rng(0), on)
    assert 10**2 <= TemplatePrograms(mod, on).space.size <= 10**5


def test_a_layout_change_before_a_convolution_is_made_by_its_padding():
    on, rng = target(), np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 7, 9)).astype("float32")
    w = rng.standard_normal((24, 5, 3, 2)).astype("float32")
    for padding in ([0, 0, 0, 0], [1, 0, 2, 1]):

        def make(builder, v, padding=padding):
            last = builder.emit(relax.op.permute_dims(v, [0, 2, 3, 1]))
            y = relax.op.nn.conv2d(
                last, relax.const(w), padding=padding, data_layout="NHWC", kernel_layout="OIHW", out_layout="NHWC"
            )
            return builder.normalize(y)

        mod, constants = lowered(make, [x.shape], on)
        programs = TemplatePrograms(mod, on)
        want = conv_by_hand(x.transpose(0, 2, 3, 1), w, (1, 1), padding, (1, 1), 1)
        for row in programs.space.sample(3, rng):
            close(run(programs, row, [x, *constants], on), want)


# -- Winograd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [2, 4])
def test_winograd_filters_a_signal(m):
    a, b, g = matrices(m)
    rng = np.random.default_rng(0)
    for _ in range(20):
        d, k = rng.standard_normal(m + 2), rng.standard_normal(3)
        np.testing.assert_allclose(a @ ((g @ k) * (b @ d)), np.correlate(d, k, "valid"), atol=1e-12)


def test_the_matrices_of_f2_are_those_of_the_paper():
    a, b, g = matrices(2)
    # Lavin and Gray (2016), equation 6, up to the sign of a row of B and the same row of G or column of A
    assert np.array_equal(np.abs(b), [[1, 0, 1, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 1]])
    assert np.array_equal(np.abs(g), [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0, 0, 1]])
    assert np.array_equal(np.abs(a), [[1, 1, 1, 0], [0, 1, 1, 1]])


def test_transformed_weights_are_g_w_gt():
    w = np.random.default_rng(0).standard_normal((2, 3, 3, 5, 8)).astype("float32")
    g = matrices(4)[2]
    assert transformed(w, 4).shape == (6, 6, 2, 5, 8)
    np.testing.assert_allclose(transformed(w, 4)[:, :, 1, 3, 6], g @ w[1, :, :, 3, 6] @ g.T, rtol=1e-5, atol=1e-6)


def square(batch, size, channels, filters, padding, epilogue=None, **options):
    on = target(**options)
    shape = {"batch": batch, "size": size, "channels": channels, "filters": filters, "kernel": (3, 3), "groups": 1}
    shape.update(strides=(1, 1), padding=padding, dilation=(1, 1))
    return on, *convolution(shape, np.random.default_rng(0), on, epilogue)


@pytest.mark.slow
@settings(deadline=None, max_examples=10, suppress_health_check=CHECKS)
@given(
    batch=st.integers(1, 2),
    size=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    channels=st.sampled_from([16, 20, 33]),
    filters=st.sampled_from([8, 16, 24, 40]),
    seed=st.integers(0, 2**32 - 1),
)
def test_winograd_of_awkward_sizes(batch, size, channels, filters, seed):
    on, mod, inputs, want = square(batch, size, channels, filters, (1, 1, 1, 1))
    kinds: list[Any] = [StepPrograms(mod, on)]
    with suppress(ValueError):  # too small for strips
        kinds.append(WinogradPrograms(mod, on))
    for programs in kinds:
        for row in programs.space.sample(2, np.random.default_rng(seed)):
            how = programs.repack(row)
            repacked = [how.make(x) if i == how.position else x for i, x in enumerate(inputs)]
            got = run(programs, row, repacked, on)
            assert np.abs(got - want).max() <= 5e-5 * np.abs(want).max()


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1)])
def test_strips_of_every_cut_compute_the_convolution(padding):
    on, mod, inputs, want = square(1, (16, 17), 32, 64, padding)
    programs = WinogradPrograms(mod, on)
    knobs = {k.name: k for k in programs.space.knobs}
    rng, cut = np.random.default_rng(0), set()
    for m in knobs["outputs"].choices:
        cuts = range(len(knobs[f"cut {m}"].choices))
        cut |= {knobs[f"cut {m}"].choices[i][:2] for i in cuts}
        for i in rng.permutation(cuts)[:6]:
            row = programs.space.canonical(programs.space.sample(1, rng))[0]
            row[0], row[m // 2] = knobs["outputs"].choices.index(m), i
            row = programs.space.canonical(row[None])[0]
            how = programs.repack(row)
            repacked = [how.make(x) if j == how.position else x for j, x in enumerate(inputs)]
            got = run(programs, row, repacked, on)
            assert np.abs(got - want).max() <= 5e-5 * np.abs(want).max()
    assert {rows > 1 for rows, _ in cut} == {True, False} and len({c for rows, c in cut if rows == 1}) > 2


@pytest.mark.parametrize(
    ("mcpu", "rows", "sizes"),
    [
        ("skylake-avx512", 4, (2,)),  # 32 registers hold two tiles or more of four blocks: of 4 x 4 there are three
        ("skylake-avx512", 2, None),  # five tiles of 2 x 2 are no whole strips of two tiles or more
        ("haswell", 4, (2, 4)),  # 16 hold one tile of four blocks
        ("haswell", 1, (2, 4)),
    ],
)
def test_an_image_of_one_strip_has_none(mcpu, rows, sizes):
    on, mod, *_ = square(1, (rows, 9), 16, 64, (1, 1, 1, 1), mcpu=mcpu)
    if sizes is None:
        with pytest.raises(ValueError, match="as many as the threads"):
            WinogradPrograms(mod, on)
    else:
        assert {k.choices for k in WinogradPrograms(mod, on).space.knobs if k.name == "outputs"} == {sizes}


@pytest.mark.parametrize(
    ("mcpu", "size", "channels", "parts"),
    [
        ("skylake-avx512", (12, 12), 16, ["winograd"]),
        ("skylake-avx512", (2, 12), 16, ["steps"]),  # one row of tiles for two threads
        ("skylake-avx512", (12, 12), 352, ["winograd", "steps"]),  # 36 x 352 x 352 transformed weights
        ("haswell", (12, 12), 16, ["winograd"]),
        ("haswell", (2, 12), 16, ["winograd"]),  # half the registers, and half a block in each: shorter strips
        ("haswell", (2, 6), 16, ["steps"]),
    ],
)
def test_threads_share_winograds_weights_where_there_is_a_reason(mcpu, size, channels, parts):
    on, mod, *_ = square(1, size, channels, channels, (1, 1, 1, 1), mcpu=mcpu)
    assert [p.space.name for p in winograd_parts(mod, on)] == parts


@pytest.mark.parametrize("cores", [1, 2])
def test_each_thread_reads_winograds_weights_where_strips_are_shared_out(cores):
    """Weights of 3 x 3 x 16 x 16 are 4 x 4 or 6 x 6 x 16 x 16 when they are transformed."""
    on, mod, *_ = square(1, (16, 16), 16, 16, (1, 1, 1, 1), **{"num-cores": cores})
    for programs, again in ((WinogradPrograms(mod, on), cores > 1), (StepPrograms(mod, on), False)):
        rows = programs.space.sample(32, np.random.default_rng(0))
        found = {(how.form, how.extra, how.again) for how in map(programs.repack, rows)}
        sizes = {"winograd 2": 16 * 16 * 16 * 4, "winograd 4": 36 * 16 * 16 * 4}
        assert found == {(form, size - 9 * 16 * 16 * 4, again * size) for form, size in sizes.items()}


@pytest.mark.parametrize("name", EPILOGUES)
def test_winograd_keeps_what_was_fused(name):
    emit, by_hand = EPILOGUES[name]
    on, mod, inputs, want = square(1, (10, 7), 16, 24, (0, 0, 0, 0), emit)
    programs: Any = Both().open(mod, on)
    assert programs.space.name == "template+winograd+sketch"
    rows = programs.space.sample(64, np.random.default_rng(0))
    for row in rows[rows[:, 0] == 1][:2]:
        how = programs.repack(row)
        repacked = [how.make(x) if i == how.position else x for i, x in enumerate(inputs)]
        got = run(programs, row, repacked, on)
        assert np.abs(got - by_hand(want)).max() <= 5e-5 * np.abs(by_hand(want)).max()
    for part in (0, 2):
        assert programs.repack(rows[rows[:, 0] == part][0]) is None, "templates and sketches take constants as they are"


@pytest.mark.parametrize(
    "other",
    [{"strides": (2, 2)}, {"dilation": (2, 2)}, {"kernel": (1, 3)}, {"channels": 4}, {"groups": 2}],
    ids=["stride", "dilation", "kernel", "few channels", "groups"],
)
def test_winograd_is_offered_only_where_it_applies(other):
    shape = {"batch": 1, "size": (9, 9), "channels": 16, "filters": 16, "kernel": (3, 3), "groups": 1}
    shape.update({"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), **other})
    mod, _, _ = convolution(shape, np.random.default_rng(0), target())
    assert has_template(mod) and not has_winograd(mod)
    with pytest.raises(ValueError, match="not a 3x3 convolution"):
        WinogradPrograms(mod, target())


@pytest.mark.parametrize("whole", [True, False])
def test_sums_that_are_meant_to_be_exact_have_no_winograd(whole):
    """Convolutions of quantised operators are computed in float32, where their sums are whole numbers."""
    rng, on = np.random.default_rng(0), target()
    w = rng.integers(-127, 128, (16, 16, 3, 3)).astype("float32") + np.float32(0 if whole else 0.5)
    x = rng.integers(-255, 256, (1, 16, 7, 7)).astype("float32")

    def conv(builder, data):
        y = relax.op.nn.conv2d(data, relax.const(w), padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="OIHW")
        return relax.op.astype(builder.emit(y), "int32")

    mod, constants = lowered(conv, [(1, 7, 7, 16)], on)
    assert has_template(mod) and has_winograd(mod) != whole
    programs = TemplatePrograms(mod, on)
    want = conv_by_hand(x.transpose(0, 2, 3, 1), w, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    for row in programs.space.sample(3, rng) if whole else ():
        np.testing.assert_array_equal(run(programs, row, [x.transpose(0, 2, 3, 1), *constants], on), want)


def test_a_function_of_one_opaque_block_has_no_template():
    """TVM's scan is such: its outermost block is not called "root"."""
    text = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    with T.sblock("scan"):
        T.reads()
        T.writes()
        for i in range(4):
            y[i] = x[i]
"""
    mod = tvm.IRModule({"main": tvm.script.from_source(text)})
    assert mod["main"].body.block.name_hint == "scan"
    assert not has_template(mod)
