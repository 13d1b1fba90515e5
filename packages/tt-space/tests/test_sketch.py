"""Rows to programs and back, over operators with tiles, choices, compute locations and none of them."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tt_space import InvalidRow, Sketch, SketchPrograms
from tvm import te, topi

TARGET = {"kind": "llvm", "num-cores": 2}


def conv2d_relu():
    x, w = te.placeholder((1, 14, 14, 16), name="x"), te.placeholder((3, 3, 16, 32), name="w")
    return x, w, topi.nn.relu(topi.nn.conv2d_nhwc(x, w, 1, 1, 1))


def depthwise():
    x, w = te.placeholder((1, 14, 14, 16), name="x"), te.placeholder((3, 3, 16, 1), name="w")
    return x, w, topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1)


def matmul():
    a, b = te.placeholder((32, 48), name="a"), te.placeholder((48, 64), name="b")
    k = te.reduce_axis((0, 48), name="k")
    return a, b, te.compute((32, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")


def softmax():
    x = te.placeholder((16, 64), name="x")
    return x, topi.nn.softmax(x)


def elementwise():
    x = te.placeholder((16, 64), name="x")
    return x, topi.nn.relu(x)


OPERATORS = {f.__name__: f for f in (conv2d_relu, depthwise, matmul, softmax, elementwise)}
everywhere = pytest.mark.parametrize("name", OPERATORS)
relocating = pytest.mark.parametrize("name", ["conv2d_relu", "depthwise", "softmax"])


@lru_cache
def opened(name: str) -> SketchPrograms:
    mod = tvm.IRModule({"main": te.create_prim_func(list(OPERATORS[name]())).with_attr("global_symbol", "main")})
    return Sketch().open(mod, tvm.target.Target(TARGET))


def rows(name: str, n: int, seed: int = 0) -> np.ndarray:
    return opened(name).space.sample(n, np.random.default_rng(seed))


def roundtrip(programs: SketchPrograms, row: np.ndarray) -> tuple[tvm.s_tir.Schedule, np.ndarray]:
    schedule = programs.apply(row)
    return schedule, programs.read(schedule, row)


@everywhere
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_row_read_back_is_canonical_and_makes_the_same_program(name, data):
    programs = opened(name)
    codes = data.draw(st.tuples(*[st.integers(0, n - 1) for n in programs.space.shape]))
    row = programs.space.canonical(np.array([codes]))[0]
    schedule, read = roundtrip(programs, row)
    assert read.dtype == np.int64
    assert read[0] == row[0]
    np.testing.assert_array_equal(programs.space.canonical(read[None])[0], read)
    again, fixed = roundtrip(programs, read)
    np.testing.assert_array_equal(fixed, read)
    assert tvm_ffi.structural_equal(again.mod, schedule.mod)


@pytest.mark.parametrize("name", ["matmul", "elementwise"])
def test_every_row_without_locations_is_its_own_canonical_row(name):
    for row in rows(name, 20):
        np.testing.assert_array_equal(roundtrip(opened(name), row)[1], row)


@relocating
def test_illegal_locations_are_replaced_and_the_row_read_says_so(name):
    """The point of reading back: without it a store would hold two rows of one program as two programs."""
    programs = opened(name)
    changed = [(row, read) for row in rows(name, 20) if ((read := roundtrip(programs, row)[1]) != row).any()]
    assert changed
    for row, read in changed:
        kinds = {programs.space.knobs[i].kind for i in np.flatnonzero(row != read)}
        assert kinds == {"location"}


@relocating
def test_every_choice_of_every_location_reads_back_or_is_refused(name):
    programs = opened(name)
    space = programs.space
    for base in rows(name, 3, seed=1):
        for knob in np.flatnonzero(space.active(base[None])[0]):
            if space.knobs[knob].kind != "location":
                continue
            for code in range(space.shape[knob]):
                row = base.copy()
                row[knob] = code
                try:
                    schedule, read = roundtrip(programs, row)
                except InvalidRow as e:
                    assert str(e)
                    continue
                again, fixed = roundtrip(programs, read)
                np.testing.assert_array_equal(fixed, read)
                assert tvm_ffi.structural_equal(again.mod, schedule.mod)


@everywhere
def test_a_row_outside_the_space_is_named_with_the_shape(name):
    programs = opened(name)
    for row in (np.array(programs.space.shape), -np.ones(len(programs.space.shape), dtype=np.int64)):
        with pytest.raises(InvalidRow) as e:
            programs.apply(row)
        assert str(row.tolist()) in str(e.value)
        assert str(programs.space.shape) in str(e.value)


def test_a_sketch_alone_is_a_space_of_one_row():
    space = opened("elementwise").space
    assert space.size == 1
    assert [k.name for k in space.knobs] == ["sketch"]


def test_tiles_multiply_to_the_extent_and_keep_the_innermost_bound():
    space = opened("matmul").space
    tiles = [k for k in space.knobs if k.kind == "tile"]
    assert sorted({int(np.prod(c)) for k in tiles for c in k.choices}) == [32, 48, 64]
    for knob in tiles:
        assert len(set(knob.choices)) == len(knob.choices)
        assert max(c[-1] for c in knob.choices) <= 64


def test_decoded_values_stand_in_the_trace():
    programs = opened("matmul")
    row = rows("matmul", 1)[0]
    tiles = [v for k, v in programs.space.decode(row).items() if k.startswith("tile")]
    trace = programs.apply(row).trace
    made = [tuple(map(int, d)) for i, d in trace.decisions.items() if i.kind.name == "SamplePerfectTile"]
    assert sorted(made) == sorted(tiles)


@everywhere
def test_the_same_row_makes_the_same_program_twice(name):
    row = rows(name, 1)[0]
    assert tvm_ffi.structural_equal(opened(name).apply(row).mod, opened(name).apply(row).mod)


def test_keys_are_equal_in_another_process_and_differ_between_operators():
    keys = {name: opened(name).space.key for name in OPERATORS}
    script = (
        f"import runpy; t = runpy.run_path({__file__!r});"
        " [print(n, t['opened'](n).space.key) for n in reversed(t['OPERATORS'])]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dict(line.split() for line in done.stdout.splitlines()) == keys
    assert len(set(keys.values())) == len(keys)


@everywhere
def test_programs_compute_what_the_unscheduled_one_does(name):
    programs = opened(name)
    rng = np.random.default_rng(0)
    shapes = [tuple(int(d) for d in p.shape) for p in programs.mod["main"].params]
    inputs = [tvm.runtime.tensor(rng.standard_normal(s).astype("float32")) for s in shapes[:-1]]

    def run(mod: tvm.IRModule) -> np.ndarray:
        out = tvm.runtime.tensor(np.full(shapes[-1], np.nan, "float32"))
        tvm.tirx.build(mod, target=programs.target)["main"](*inputs, out)
        return out.numpy()

    want = run(programs.mod)
    if name == "matmul":
        np.testing.assert_allclose(want, inputs[0].numpy() @ inputs[1].numpy(), rtol=1e-4, atol=1e-4)
    for row in rows(name, 3, seed=2):
        np.testing.assert_allclose(run(programs.apply(row).mod), want, rtol=1e-4, atol=1e-4, err_msg=str(row))


@everywhere
def test_features_are_finite_and_one_row_per_store(name):
    programs = opened(name)
    found = programs.features([programs.apply(row) for row in rows(name, 4)])
    assert len(found) == 4
    for f in found:
        assert f.ndim == 2 and f.shape[1] == 164 and len(f) >= 1
        assert np.isfinite(f).all()


def test_features_tell_programs_apart():
    programs = opened("matmul")
    a, b = programs.features([programs.apply(row) for row in rows("matmul", 2)])
    assert a.shape != b.shape or not np.array_equal(a, b)
