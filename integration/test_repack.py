"""Programs that take a constant in another form are deployed with it."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tt_core.compiler.lower import unpack
from tt_core.deploy import library as deploy
from tt_core.prepared import prepare
from tt_space import Both, InvalidRow
from tvm import relax
from tvm.runtime import cpu, tensor
from tvm_ffi import structural_hash

OP = "op:conv2d:1,16,9,24,3,1,1"


@pytest.fixture(scope="module")
def ready():
    return prepare(OP, space="both", target={"kind": "llvm", "num-cores": 2})


def output(ready, rows, x):
    machine = relax.VirtualMachine(deploy.compile_library(ready.lowered, rows), cpu())
    return machine["main"](tensor(x, cpu())).numpy()


def valid_row(task, part):
    """The first row of a part of the space, of 300 random ones, from which a program can be made."""
    mod, target, _ = unpack(task.payload)
    programs = Both().open(mod, target)
    rows = task.space.sample(300, np.random.default_rng(1))
    for row in rows[rows[:, 0] == part]:
        try:
            programs.apply(row)
        except InvalidRow:
            continue
        return row
    pytest.fail("no valid row")


@pytest.mark.parametrize("part", [0, 1, 2], ids=["template", "winograd", "sketch"])
def test_a_row_of_every_part_is_deployed_and_right(ready, part):
    x = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype("float32")
    want = output(ready, {}, x)
    (task,) = (t for t in ready.tasks if t.op == "conv2d")
    row = valid_row(task, part)
    before = structural_hash(ready.lowered.mod)
    got = output(ready, {task.key: row}, x)
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert task.key in ready.lowered.opened and structural_hash(ready.lowered.mod) == before, "it is used again"


def test_the_backend_measures_and_checks_programs_with_repacked_constants(ready):
    from tt_core.compiler.backend import TvmBackend

    (task,) = (t for t in ready.tasks if t.op == "conv2d")
    rows = task.space.sample(300, np.random.default_rng(1))
    backend = TvmBackend()
    backend.open(task)
    for row in rows[rows[:, 0] == 1][:2]:
        candidate = backend.build(task, row)
        assert candidate.run(2) > 0
        assert candidate.check() is None


def test_a_loop_over_time_keeps_its_step_beside_repacked_constants(tmp_path):
    ready = prepare(convolution_and_lstm(tmp_path), space="both", target={"kind": "llvm", "num-cores": 2})
    x = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype("float32")
    want = output(ready, {}, x)
    parts = {"conv2d": 1, "step": 0}
    rows = {t.key: valid_row(t, parts[t.op]) for t in ready.tasks if t.op in parts}
    assert len(rows) == len(parts)
    got = output(ready, rows, x)
    assert got.shape == (9, 1, 1, 8) and np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def convolution_and_lstm(folder):
    """A file of a 3 x 3 convolution whose rows of pixels an LSTM of 8 units reads, 1x16x9x9 -> 9x1x1x8."""
    rng = np.random.default_rng(2)
    weights = {
        "kernel": rng.standard_normal((24, 16, 3, 3)) / 12,
        "w": rng.standard_normal((1, 32, 24 * 9)) / 15,
        "r": rng.standard_normal((1, 32, 8)) / 3,
    }
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["pixels"], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["pixels"], ["rows"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["rows", "shape"], ["series"]),
        helper.make_node("LSTM", ["series", "w", "r"], ["y"], hidden_size=8),
    ]
    constants = [numpy_helper.from_array(value.astype("float32"), name) for name, value in weights.items()]
    constants.append(numpy_helper.from_array(np.array([9, 1, 216]), "shape"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 9, 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [9, 1, 1, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "g.onnx")
    return str(folder / "g.onnx")
