"""A deployed model's caller keeps off the processors that TVM's pool is bound to."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tvm
from tt_core import target
from tt_core.compiler.seat import taken
from tt_core.deploy import aside
from tvm import relax

NATIVE = target.resolve({**target.resolve("native").export(), "num-cores": 2})
ALLOWED = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
pytestmark = pytest.mark.skipif(len(ALLOWED) < 2, reason="there is one processor, or this system binds no threads")


@pytest.fixture
def functions(tmp_path):
    """`go` and `stay` of a deployed library, and the constant that they keep."""
    found = {}
    for name, source in (("go", aside._go(2)), ("stay", aside._STAY)):
        func = tvm.script.from_source(source).with_attr("global_symbol", name)
        found[name] = tvm.tirx.build(tvm.IRModule({name: func}), target=NATIVE)[name]
    yield found["go"], found["stay"]
    os.sched_setaffinity(0, ALLOWED)


def on(processor):
    """Move this thread there, free to leave."""
    os.sched_setaffinity(0, {processor})
    os.sched_setaffinity(0, ALLOWED)


def test_a_caller_on_the_pools_processor_leaves_it_and_gets_its_processors_back(functions):
    go, stay = functions
    mine, other = sorted(ALLOWED)[:2]
    for _ in range(50):  # the system may move the thread between two lines
        pool = tvm.runtime.tensor(np.array([1, mine, other], np.int32))
        before = tvm.runtime.tensor(np.zeros(aside.BYTES + 1, np.uint8))
        on(other)
        go(pool, before)
        moved = os.sched_getaffinity(0)
        stay(before, tvm.runtime.tensor(np.zeros(1, np.int32)))
        assert os.sched_getaffinity(0) == ALLOWED
        assert moved == (ALLOWED - {other} if before.numpy()[-1] else ALLOWED)
        if before.numpy()[-1]:
            return
    pytest.fail("the thread was never found where it was put")


def test_a_caller_elsewhere_stays_as_it_is(functions):
    go, _ = functions
    pool = tvm.runtime.tensor(np.array([1, min(ALLOWED), 1023], np.int32))
    before = tvm.runtime.tensor(np.full(aside.BYTES + 1, 1, np.uint8))
    go(pool, before)
    assert before.numpy()[-1] == 0 and os.sched_getaffinity(0) == ALLOWED and pool.numpy()[0] == 2


def test_a_caller_that_may_be_nowhere_else_stays(functions):
    go, _ = functions
    only = max(ALLOWED)
    os.sched_setaffinity(0, {only})
    pool = tvm.runtime.tensor(np.array([1, only, only], np.int32))
    before = tvm.runtime.tensor(np.zeros(aside.BYTES + 1, np.uint8))
    go(pool, before)
    assert before.numpy()[-1] == 0 and os.sched_getaffinity(0) == {only}


def test_the_pools_processors_are_found_at_the_first_call_and_now_and_then(functions):
    go, stay = functions
    pool = tvm.runtime.tensor(np.array([0, -7077, -7077], np.int32))
    before, after = tvm.runtime.tensor(np.zeros(aside.BYTES + 1, np.uint8)), tvm.runtime.tensor(np.zeros(1, np.int32))
    for call in range(aside.LOOK):
        go(pool, before)
        stay(before, after)
        assert pool.numpy()[0] == (call + 1) % aside.LOOK
    assert {int(c) for c in pool.numpy()[1:]} <= ALLOWED
    if taken() and int(tvm.get_global_func("runtime.NumThreads")()) == 2:
        assert int(pool.numpy()[2]) in taken()


def test_a_deployed_model_says_so_only_where_it_helps():
    assert aside.wanted(NATIVE)
    assert not aside.wanted(target.resolve({**NATIVE.export(), "num-cores": 1}))
    assert not aside.wanted(tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-apple-darwin", "num-cores": 4}))
    assert not aside.wanted(tvm.target.Target({"kind": "c"}))


def test_a_models_own_constant_is_never_written_to():
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(aside.go(builder, NATIVE))
    held = [c for f in builder.get().functions.values() if isinstance(f, relax.Function) for c in constants(f)]
    assert [c.tolist() for c in held] == [[0, -7077, -7077]]


def constants(func):
    found = []
    relax.analysis.post_order_visit(
        func, lambda e: found.append(e.value.numpy()) if isinstance(e, tvm.ir.GenericConst) else None
    )
    return found
