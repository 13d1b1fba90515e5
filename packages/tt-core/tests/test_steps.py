"""No pass refuses a model: what fails is left out for a part of it, and a note says so."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler import steps
from tt_core.compiler.lower import lower
from tt_core.deploy.library import compile_library
from tt_core_fakes import with_space
from tvm import relax

PLUGINS = with_space()


def convolutions(count: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    rng = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(count):
                weight = relax.const(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))
                y = builder.emit(relax.op.nn.conv2d(y, weight, padding=1))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


@pytest.mark.parametrize("bad", [{1}, {0, 3}, {0, 1, 2, 3, 4}, set()])
def test_operators_at_which_a_pass_fails_are_found_and_left_out(bad):
    steps._left.clear()
    treated: list[set[int]] = []

    def passes(left):
        chosen = set(range(5)) - left

        def run(mod, _):
            treated.append(chosen)
            if chosen & bad:
                raise ValueError("cannot do it there")
            return mod

        return [tvm.transform.module_pass(run, opt_level=0, name="Some")]

    way = steps.Steps(convolutions(5))
    way.may_each("the pass", "relax.nn.conv2d", passes)
    assert treated[-1] == set(range(5)) - bad
    assert way.notes == ([f"the pass left out for {len(bad)} of 5: TVM cannot do it there"] if bad else [])
    again, tried = steps.Steps(convolutions(5)), len(treated)
    again.may_each("the pass", "relax.nn.conv2d", passes)
    assert len(treated) == tried + 1 and again.notes == way.notes  # remembered


def test_a_pass_that_fails_everywhere_is_left_out_whole():
    def fails(left):
        return [tvm.transform.module_pass(_broken, opt_level=0, name="Broken")]

    way = steps.Steps(convolutions(2))
    way.may_each("a pass that always fails", "relax.nn.conv2d", fails)
    assert way.notes == ["a pass that always fails left out: TVM cannot do it for any part of the model"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("FoldBatchnormToConv2D", ""),
        ("ConvertLayout", "the layout NHWC of convolutions"),
        ("AnnotateTIROpPattern", "patterns of operators"),
        ("FuseTIR", "fusion"),
    ],
)
def test_a_model_is_lowered_without_a_pass_that_breaks(monkeypatch, name, what):
    """What it would have done is left out with a note; the model has no batch norm, of which nothing is missing."""
    steps._left.clear()
    broken = tvm.transform.module_pass(_broken, opt_level=0, name="Broken")
    monkeypatch.setattr(relax.transform, name, lambda *args: broken)
    lowered = lower(convolutions(2), target.resolve("native"), PLUGINS, "fake")
    assert lowered.tasks and [n.split(" left out")[0] for n in lowered.notes] == ([what] if what else [])
    vm = relax.VirtualMachine(compile_library(lowered, {}, PLUGINS), tvm.cpu())
    assert vm["main"](tvm.runtime.tensor(np.ones((1, 4, 8, 8), np.float32))).numpy().shape == (1, 4, 8, 8)
    steps._left.clear()


def test_fusion_is_left_out_for_the_operators_at_which_it_fails(monkeypatch):
    """A fusion that breaks on one function of five leaves that one apart and fuses the others."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, x)))
            y = builder.emit(relax.op.sin(relax.op.nn.softmax(y)))
            out = builder.emit_output(relax.op.cos(relax.op.matmul(y, x)))
        builder.emit_func_output(out)
    mod, real = builder.get(), relax.transform.FuseOps

    def fragile():
        def run(mod, _):
            if any(v.name_hint.endswith("sin") and f.attrs["op_pattern"] != 8 for v, f in mod.functions_items()):
                raise ValueError("cannot fuse sin")
            return real()(mod)

        return tvm.transform.module_pass(run, opt_level=0, name="Fragile")

    steps._left.clear()
    monkeypatch.setattr(relax.transform, "FuseOps", fragile)
    lowered = lower(mod, target.resolve("native"), PLUGINS, "fake")
    names = {t.name for t in lowered.tasks}
    assert "sin" in names and {"matmul_relu", "matmul_cos"} <= names
    assert [n for n in lowered.notes if "fusion" in n] == ["fusion left out for 1 of 5: TVM cannot do it there"]
    a = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    got = relax.VirtualMachine(compile_library(lowered, {}, PLUGINS), tvm.cpu())["main"](tvm.runtime.tensor(a)).numpy()
    power = np.exp(np.maximum(a @ a, 0))
    np.testing.assert_allclose(got, np.cos(np.sin(power / power.sum(1, keepdims=True)) @ a), rtol=1e-5, atol=1e-5)
    steps._left.clear()


def test_a_stack_between_convolutions_keeps_its_layout_and_they_get_theirs(monkeypatch):
    """TVM's conversion of layouts fails at a stack of four dimensions, whichever convolutions it is asked for."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    rng = np.random.default_rng(0)
    first, second = (relax.const(rng.standard_normal((4, 4, 1, 1)).astype("float32")) for _ in range(2))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, first))
            y = builder.emit(relax.op.prod(relax.op.stack([y, x], axis=0), axis=[0]))
            out = builder.emit_output(relax.op.nn.conv2d(y, second))
        builder.emit_func_output(out)
    steps._left.clear()
    found = [lower(builder.get(), target.resolve("native"), PLUGINS, "fake")]
    assert ["kinds of operators left out for 1 of" in n for n in found[0].notes] == [True]
    monkeypatch.setattr(relax.transform, "ConvertLayout", lambda *args: tvm.transform.module_pass(_broken, opt_level=0))
    steps._left.clear()
    found.append(lower(builder.get(), target.resolve("native"), PLUGINS, "fake"))
    steps._left.clear()
    assert found[0].mod["main"].script() != found[1].mod["main"].script()
    a = tvm.runtime.tensor(rng.standard_normal((1, 4, 8, 8)).astype("float32"))
    ours, plain = (relax.VirtualMachine(compile_library(f, {}, PLUGINS), tvm.cpu())["main"](a).numpy() for f in found)
    np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-4)


def normalised(norms: int) -> tvm.IRModule:
    """Convolutions of one value, each with a batch norm of variance 1 + i, summed."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    rng = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            total = x
            for i in range(norms):
                y = relax.op.nn.conv2d(x, relax.const(rng.standard_normal((4, 4, 1, 1)).astype("float32")))
                numbers = [rng.standard_normal(4).astype("float32") for _ in range(3)]
                numbers.append(np.full(4, 1.0 + i, np.float32))
                y = relax.op.nn.batch_norm(builder.emit(y), *(relax.const(a) for a in numbers), axis=1)
                total = builder.emit(total + builder.emit(builder.emit(y)[0]))
            out = builder.emit_output(total)
        builder.emit_func_output(out)
    return builder.get()


def test_batch_norms_at_which_folding_fails_stay_and_the_others_are_folded(monkeypatch):
    """Two of four are left; what is computed does not change."""
    real, folded = relax.transform.FoldBatchnormToConv2D, []
    monkeypatch.setattr(
        relax.transform, "FoldBatchnormToConv2D", lambda: _fragile(real(), {2.0, 4.0}, "relax.nn.batch_norm", folded)
    )
    notes = ["folding batch norms left out for 2 of 4: TVM cannot do it there"]
    _same_values(normalised(4), notes, monkeypatch)
    assert folded[-1] == 2 and len(folded) < 2**4


def test_constants_at_which_folding_fails_stay_and_the_others_are_folded(monkeypatch):
    """A square root of 4 that TVM cannot fold is computed by the model."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for value in (2.0, 4.0, 8.0):
                y = builder.emit(y + builder.emit(relax.op.rsqrt(relax.const(np.full((4, 1, 1), value, np.float32)))))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    real, folded = relax.transform.FoldConstant, []
    monkeypatch.setattr(relax.transform, "FoldConstant", lambda: _fragile(real(), {4.0}, "relax.rsqrt", folded))
    notes = [f"folding constants by TVM left out for 1 of {n}: TVM cannot do it there" for n in (3, 1)]
    _same_values(builder.get(), notes, monkeypatch)  # it runs again where batch norms were taken apart


def _fragile(real, bad, operator, done):
    """A pass that fails where it sees the operator on constants of which one is in `bad`."""

    def run(mod, _):
        def seen(call):
            values = [float(a.value.numpy().flat[0]) for a in call.args if isinstance(a, tvm.ir.GenericConst)]
            return call.op == tvm.ir.Op.get(operator) and bool(values), set(values)

        found = []
        steps.count_calls(mod, lambda call: (seen(call)[0] and found.append(seen(call)[1])) or False)
        if any(values & bad for values in found):
            raise ValueError("cannot fold it")
        done.append(len(found))
        return real(mod)

    return tvm.transform.module_pass(run, opt_level=0, name="Fragile")


def _same_values(mod, notes, monkeypatch):
    """Lowering says just these notes, and computes what it does without any fault."""
    steps._left.clear()
    lowered = lower(mod, target.resolve("native"), PLUGINS, "fake")
    assert list(lowered.notes) == notes
    monkeypatch.undo()
    steps._left.clear()
    a = tvm.runtime.tensor(np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype("float32"))
    ours, right = (
        relax.VirtualMachine(compile_library(found, {}, PLUGINS), tvm.cpu())["main"](a).numpy()
        for found in (lowered, lower(mod, target.resolve("native"), PLUGINS, "fake"))
    )
    np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)


def _broken(mod, context):
    raise ValueError("first line\nsecond line")
