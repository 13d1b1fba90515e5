"""The measuring engine with the TVM backend: threads, imports, real failures."""

from __future__ import annotations

import numpy as np
import pytest
from tt_core.assembly import BACKEND
from tt_core.compiler.target import cores
from tt_core.prepared import prepare
from tt_measure.pool import WorkerPool
from tt_spec import Bar


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(backend=BACKEND, threads=cores()) as pool:
        yield pool


@pytest.fixture(scope="module")
def task():
    return prepare("op:matmul:96,96,96").tasks[0]


def test_a_worker_uses_as_many_threads_as_the_target_has_cores(pool):
    assert pool.threads() == cores()


def test_a_worker_never_imports_the_intrinsics_of_other_targets(pool, task):
    list(pool.measure(task, task.space.sample(2, np.random.default_rng(0)), Bar()))
    assert pool.call("loaded", None, "tvm.s_tir.tensor_intrin.cuda") is False
    assert pool.call("loaded", None, "tvm.s_tir.tensor_intrin") is False


def test_rows_become_canonical_and_are_measured_as_such(pool, task):
    rows = task.space.sample(24, np.random.default_rng(1))
    real = pool.realise(task, rows)
    again = pool.realise(task, real.codes)
    assert [w is None for w in real.why].count(True) > 12
    np.testing.assert_array_equal(real.codes, again.codes)
    good = np.unique(real.codes[[w is None for w in real.why]], axis=0)[:6]
    results = list(pool.measure(task, good, Bar()))
    assert {m.config for m in results} == {tuple(map(int, r)) for r in good}
    assert all(m.error is None and m.cost["build"] > 0 for m in results)


def test_statement_features_come_in_the_order_of_the_rows(pool, task):
    rows = pool.realise(task, task.space.sample(6, np.random.default_rng(2))).codes
    together, ok = pool.features(task, rows)
    assert ok.all() and together.values.shape[1] == 164
    for i, row in enumerate(rows):
        alone, _ = pool.features(task, row[None])
        np.testing.assert_allclose(together[i : i + 1].values, alone.values)


def test_a_row_outside_the_space_is_refused_and_costs_no_worker(pool, task):
    bad = np.full((1, len(task.space.knobs)), 10_000)
    real = pool.realise(task, np.concatenate([bad, task.space.sample(1, np.random.default_rng(3))]))
    assert "outside the space" in (real.why[0] or "")
    assert real.why[1] is None
