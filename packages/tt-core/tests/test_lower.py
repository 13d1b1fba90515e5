"""From models to tasks: what is folded and fused, what a task says of itself, and that its key is stable."""

from __future__ import annotations

import math
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tt_core import models, target
from tt_core.compiler.lower import Lowered, lower, payload, unpack
from tt_core.compiler.primfunc import outputs
from tt_core.deploy import library as deploy
from tt_core.errors import ModelError
from tt_core.models import zoo
from tt_core_fakes import FakePrograms, with_space
from tt_spec import Task
from tvm import relax

pytest.importorskip("onnx")

CPU = {"kind": "llvm", "mcpu": "skylake", "num-cores": 2}
PLUGINS = with_space()


def lowered(source: object, on: object = CPU) -> Lowered:
    return lower(models.load(source, plugins=PLUGINS).mod, target.resolve(on), PLUGINS, "fake")


@lru_cache
def operator(text: str, kind: str = "llvm") -> tuple[Task, ...]:
    return tuple(lowered(text, CPU if kind == "llvm" else kind).tasks)


def weight(tasks: list[Task], op: str) -> float:
    return sum(t.weight for t in tasks if t.op == op)


@pytest.fixture(scope="module")
def resnet18() -> Lowered:
    return lowered("resnet18")


@pytest.fixture(scope="module")
def block() -> Lowered:
    """A convolution, and MobileNetV2's inverted residual behind it: batch norm everywhere, Clip after two."""
    g = zoo.Graph(np.random.default_rng(0))
    x = g.bn(g.conv(g.input("input", (1, 4, 14, 14)), 8, 1))
    y = g.relu6(g.bn(g.conv(x, 48, 1)))
    y = g.relu6(g.bn(g.conv(y, 48, 3, pad=1, groups=48)))
    y = g.add(x, g.bn(g.conv(y, 8, 1)))
    g.output("out", y, (1, 8, 14, 14))
    return lowered(g.model("block"))


def test_resnet18_is_twenty_convolutions(resnet18):
    assert weight(resnet18.tasks, "conv2d") == 20
    assert weight(resnet18.tasks, "matmul") == 1
    assert sum(t.op == "conv2d" for t in resnet18.tasks) == 15


def test_resnet18_has_its_published_work(resnet18):
    """He et al. 2015, table 1, count a multiply-add as one operation; 1.82e9 with the fully connected layer."""
    assert sum(t.flops * t.weight for t in resnet18.tasks) == pytest.approx(3.64e9, rel=0.02)


def test_batch_norm_is_folded_into_the_convolutions(resnet18, block):
    for task in (*resnet18.tasks, *block.tasks):
        assert "batch_norm" not in task.name
        assert not {"sqrt", "rsqrt", "subtract"} & set(task.name.split("_")), task.name
    assert {t.name.rstrip("_0123456789") for t in resnet18.tasks if t.op == "conv2d"} == {
        "conv2d_add",
        "conv2d_add_relu",
        "conv2d_add_add_relu",
    }


def test_tasks_come_heaviest_first(resnet18):
    work = [t.flops * t.weight for t in resnet18.tasks]
    assert work == sorted(work, reverse=True)


def test_names_keys_and_functions_are_one_to_one(resnet18):
    tasks = resnet18.tasks
    assert len({t.name for t in tasks}) == len({t.key for t in tasks}) == len(tasks)
    assert set(resnet18.functions) == {t.key for t in tasks}
    functions = [f for names in resnet18.functions.values() for f in names]
    assert len(functions) == len(set(functions))
    assert all(isinstance(resnet18.mod[f], tvm.tirx.PrimFunc) for f in functions)


def test_constants_are_folded(resnet18):
    """Nothing but the input is laid out anew, and no weight is computed while the model runs."""
    transposed = [t.shapes for t in resnet18.tasks if t.op == "transpose"]
    assert transposed == ["1x3x224x224 -> 1x224x224x3"]
    assert all(t.weight == 1 for t in resnet18.tasks if t.op == "transpose")


def test_convolutions_are_laid_out_for_vectors_of_output_channels(resnet18):
    shapes = [t.shapes for t in resnet18.tasks if t.op == "conv2d"]
    assert any(s.startswith("1x56x56x64, 3x3x64x64, ") for s in shapes)


def test_clip_fuses_with_its_convolution(block):
    names = [t.name for t in block.tasks]
    assert sum("conv2d_add_maximum_minimum" in n for n in names) == 2
    assert not [n for n in names if n.startswith(("maximum", "minimum", "clip"))]
    assert any(n.startswith("conv2d_add_add") for n in names)


def test_depthwise_convolutions_are_a_kind_of_their_own(block):
    kinds = {t.shapes.split(", ")[1]: t.op for t in block.tasks if t.op.endswith("conv2d")}
    assert kinds == {"1x1x4x8": "conv2d", "1x1x8x48": "conv2d", "3x3x1x48": "dwconv2d", "1x1x48x8": "conv2d"}


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("op:conv2d:1,8,14,16,3,1,1", "conv2d"),
        ("op:conv2d:1,1,14,16,3,1,1", "conv2d"),
        ("op:dwconv2d:1,8,14,3,1,1", "dwconv2d"),
        ("op:dwconv2d:1,8,14,1,1,0", "dwconv2d"),
        ("op:matmul:4,8,16", "matmul"),
        ("op:batch_matmul:2,4,8,16", "matmul"),
        ("op:DEP:3", "dwconv2d"),
        ("op:T2D", "conv2d_transpose"),
    ],
)
def test_the_kind_of_each_operator(text, op, kind):
    heaviest = operator(text, kind)[0]
    assert heaviest.op == op
    assert {t.op for t in operator(text, kind)} <= {op, "transpose"}


def _relax(make, *shapes) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    xs = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", xs):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(*xs)))
        builder.emit_func_output(out)
    return builder.get()


def test_a_transposed_and_a_grouped_convolution_are_not_taken_for_others():
    def kinds(mod: tvm.IRModule) -> set[str]:
        return {t.op for t in lowered(mod).tasks}

    def transposed(x, w):
        return relax.op.nn.conv2d_transpose(x, w)

    assert kinds(_relax(transposed, (1, 8, 9, 9), (8, 4, 3, 3))) == {"conv2d_transpose"}
    w = relax.const(np.ones((16, 2, 3, 3), "float32"))
    assert kinds(_relax(lambda x: relax.op.nn.conv2d(x, w, groups=4), (1, 8, 9, 9))) == {"conv2d", "transpose"}


def test_flops_are_two_per_multiply_add():
    assert operator("op:matmul:4,8,16")[0].flops == 2 * 4 * 8 * 16
    assert operator("op:conv2d:1,8,14,16,3,1,1")[0].flops == 2 * 14 * 14 * 16 * 8 * 9
    assert operator("op:dwconv2d:1,8,14,3,1,1")[0].flops == 2 * 14 * 14 * 8 * 9


def test_a_task_says_what_it_is():
    task = operator("op:matmul:4,8,16")[0]
    assert (task.name, task.shapes, task.weight) == ("matmul", "4x16, 16x8 -> 4x8", 1.0)
    assert task.spaces == (FakePrograms.space,)
    assert task.target == str(target.resolve(CPU))
    assert math.isfinite(task.flops)


def test_equal_functions_are_one_task_that_counts():
    w = relax.const(np.ones((8, 8), "float32"))
    (task,) = lowered(_relax(lambda x: relax.op.matmul(relax.op.matmul(x, w), w), (4, 8))).tasks
    assert task.weight == 2


def test_keys_differ_by_workload_and_by_target():
    keys = {
        operator("op:matmul:4,8,16")[0].key,
        operator("op:matmul:4,8,32")[0].key,
        operator("op:batch_matmul:1,4,8,16")[0].key,
        lowered("op:matmul:4,8,16", {**CPU, "num-cores": 3}).tasks[0].key,
        operator("op:matmul:4,8,16", "cuda")[0].key,
    }
    assert len(keys) == 5
    assert lowered("op:matmul:4,8,16").tasks[0].key == operator("op:matmul:4,8,16")[0].key


def test_keys_are_equal_in_another_process(block):
    names = ["op:conv2d:1,8,14,16,3,1,1", "op:batch_matmul:2,4,8,16", "op:matmul:4,8,16"]
    script = (
        f"import runpy; t = runpy.run_path({__file__!r});"
        f" [print(task.key) for name in {names!r} for task in t['lowered'](name).tasks]"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [t.key for n in names for t in operator(n)]


def test_a_payload_rebuilds_the_workload(block):
    for task in block.tasks:
        mod, on, space = unpack(task.payload)
        assert space == "fake"
        assert str(on) == task.target
        assert [v.name_hint for v in mod.functions] == ["main"]
        again, _, _ = unpack(payload(mod, str(on), space))
        assert tvm_ffi.structural_equal(again, mod, map_free_vars=True)
        (name, *_) = block.functions[task.key]
        assert [tuple(p.shape) for p in mod["main"].params] == [tuple(p.shape) for p in block.mod[name].params]


def test_a_gpu_keeps_the_layout_of_the_model():
    assert operator("op:conv2d:1,8,14,16,3,1,1", "cuda")[0].shapes == "1x8x14x14, 16x8x3x3 -> 1x16x14x14"


def test_what_tvm_cannot_lower_is_one_line(monkeypatch):
    def fails(mod, context):
        raise ValueError("first line\nsecond line")

    broken = tvm.transform.module_pass(fails, opt_level=0, name="Fails")
    monkeypatch.setattr(relax.transform, "LegalizeOps", lambda *args: broken)
    with pytest.raises(ModelError) as e:
        lowered("op:matmul:4,8,16")
    assert "TVM cannot lower the model" in str(e.value)
    assert "\n" not in str(e.value)


def test_every_output_of_a_function_is_shown_and_counted():
    (task,) = lowered(_relax(lambda x: relax.op.split(x, 2, 1), (4, 8))).tasks
    assert task.shapes == "4x8 -> 4x4, 4x4"
    mod, _, _ = unpack(task.payload)
    assert outputs(mod["main"]) == 2


def test_what_a_library_computes_is_no_task_and_still_compiles():
    """TVM sorts by a function of its runtime, in which there is nothing to schedule."""
    mod = _relax(lambda x: relax.op.topk(relax.op.exp(x), k=3, axis=1, ret_type="values"), (4, 8))
    found = lowered(mod)
    assert [t.op for t in found.tasks] == ["exp"]
    vm = relax.VirtualMachine(deploy.compile_library(found, {}, PLUGINS), tvm.cpu())
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    got = vm["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, -np.sort(-np.exp(x), axis=1)[:, :3], rtol=1e-6)


def test_names_are_of_operators():
    names = [t.name for t in lowered(_relax(lambda x: relax.op.exp(relax.op.permute_dims(x)), (4, 8))).tasks]
    assert all("tir" not in n for n in names), names
    assert [t.op for t in lowered(_relax(relax.op.exp, (4, 8))).tasks] == ["exp"]


def test_functions_whose_hashes_collide_are_two_tasks(monkeypatch):
    g = zoo.Graph(np.random.default_rng(0))
    x = g.conv(g.input("input", (1, 4, 14, 14)), 8, 1)
    g.output("out", g.conv(x, 8, 1), (1, 8, 14, 14))
    model = g.model("two")
    usual = [t.name for t in lowered(model).tasks]
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same")
    found = lowered(model)
    assert [t.name for t in found.tasks] == usual and len({t.key for t in found.tasks}) == len(usual) > 1
    assert all(len(functions) == 1 for functions in found.functions.values())


def test_a_key_that_another_operator_has_in_a_history_is_not_taken(monkeypatch):
    """Histories meet: each operator finds its own rows again, whichever was there first and however they are asked."""
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same")
    history: dict[str, Task] = {}

    def recall(key: str) -> list[Task]:
        return [history[key]] if key in history else []

    def keys(*shapes: tuple[int, int]) -> list[str]:
        mods = [_relax(relax.op.exp, shape) for shape in shapes]
        found = [t for m in mods for t in lower(m, target.resolve(CPU), PLUGINS, "fake", recall).tasks]
        history.update({t.key: t for t in found})
        return [t.key for t in found]

    (first,) = keys((4, 8))
    (second,) = keys((4, 9))
    (third,) = keys((4, 10))
    assert len({first, second, third}) == 3
    assert [keys((4, 10)), keys((4, 8)), keys((4, 9))] == [[third], [first], [second]]
    for damaged in (b"", b"cut", zlib.compress(b"[" * 10**6), zlib.compress(b" " * (65 << 20)), "text"):
        history[first] = replace(history[first], payload=damaged)  # whose it is nobody can tell but by its key
        assert keys((4, 8)) == [first]


def test_of_a_task_without_a_payload_the_shapes_tell_whose_key_it_is(monkeypatch):
    """A history of version 1 kept no more of a task; which outputs a function has it said otherwise."""
    monkeypatch.setattr("tt_core.compiler.lower._workload", lambda mod: "all the same")

    def found(shape: tuple[int, int], *known: str) -> Task:
        mod, plain = _relax(relax.op.exp, shape), Task("", "", "", "", (), 0.0)
        old = [replace(plain, shapes=text) for text in known]
        recall = lambda key: old if key == usual.key else []  # noqa: E731
        (task,) = lower(mod, target.resolve(CPU), PLUGINS, "fake", recall if known else lambda key: []).tasks
        return task

    usual = found((4, 8))
    assert usual.shapes == "4x8 -> 4x8"
    assert [found((4, 8), text).key for text in ("", "4x8 -> 4x8", "4x8, 4x8")] == [usual.key] * 3
    other = found((4, 9), "4x8 -> 4x8")
    assert other.key not in ("", usual.key)
    assert found((4, 8), "4x8 -> 4x8", "4x9 -> 4x9").key == other.key, "one of two histories is enough"
