"""Programs that take a constant in another form are deployed with it."""

import numpy as np
import pytest
from tt_core.deploy import library as deploy
from tt_core.prepared import prepare
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


@pytest.mark.parametrize("part", [0, 1, 2], ids=["template", "winograd", "sketch"])
def test_a_row_of_every_part_is_deployed_and_right(ready, part):
    from tt_core.compiler.lower import unpack
    from tt_space import Both, InvalidRow

    x = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype("float32")
    want = output(ready, {}, x)
    (task,) = (t for t in ready.tasks if t.op == "conv2d")
    mod, target, _ = unpack(task.payload)
    programs = Both().open(mod, target)
    rows = task.space.sample(300, np.random.default_rng(1))
    for row in rows[rows[:, 0] == part]:
        try:
            programs.apply(row)
        except InvalidRow:
            continue
        before = structural_hash(ready.lowered.mod)
        got = output(ready, {task.key: row}, x)
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
        assert task.key in ready.lowered.opened and structural_hash(ready.lowered.mod) == before, "it is used again"
        return
    pytest.fail("no valid row")


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
