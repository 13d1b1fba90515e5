"""Programs broken on purpose are found out, and right ones pass: with the spaces, on real TVM."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import tvm
from tt_core import models, target
from tt_core.compiler import lower
from tt_core.compiler.backend import TvmCandidate
from tt_core.compiler.quick import quick
from tt_core.compiler.reference import drawn

from .mutants import HARMLESS, MUTATIONS, OPERATORS, Opened, mutants, opened

EACH = 2
"""Operators that each mutation is tried on here; `benchmarks/verification.py` tries all."""


@cache
def prepared(operator: str) -> tuple[Opened, tvm.IRModule, TvmCandidate, list[np.ndarray]]:
    """An operator, the program of a random row, as it is and built, and what it computes."""
    one = opened(operator)
    row, candidate = next(one.candidates(1))
    assert candidate.check() is None
    return one, one.work.schedule(row).mod, candidate, one.outputs(candidate)


def test_there_are_thirty_ways_to_break_a_program():
    assert len(MUTATIONS) >= 30


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_broken_programs_are_found_out(mutation):
    """On two operators, another two for each mutation; a mutant that computes the same bits is right."""
    broken = 0
    first = list(MUTATIONS).index(mutation)
    names = list(OPERATORS)
    for operator in names[first % len(names) :] + names[: first % len(names)]:
        one, program, candidate, right = prepared(operator)
        for mod in mutants(program, mutation, 1):
            try:
                mutant = one.broken(candidate, mod)
            except RuntimeError:  # LLVM does not build each of them
                continue
            if mutant.check() is None:
                harmless = (operator, mutation) in HARMLESS
                same = all(
                    np.array_equal(a, b, equal_nan=True) for a, b in zip(one.outputs(mutant), right, strict=True)
                )
                assert same or harmless, f"{operator}: {mutation} passes"
            else:
                broken += 1
        if broken == EACH:
            return
    assert broken, "no operator shows it"


@pytest.mark.parametrize("operator", OPERATORS)
def test_right_programs_pass(operator):
    one, *_ = prepared(operator)
    for row, candidate in one.candidates(4, seed=1):
        assert candidate.check() is None, one.task.space.decode(row)
    assert one.work.reference().doubts == []


@pytest.mark.parametrize("op", ["op:conv2d:1,16,32,32,3,1,1", "op:matmul:128,128,128", "op:dwconv2d:1,64,64,3,1,1"])
def test_the_quick_program_computes_the_same(op):
    cpu = target.resolve({"kind": "llvm", "num-cores": 2})
    (func,) = (t.payload for t in lower.lower(models.load(op).mod, cpu).tasks if t.flops > 1e5)
    mod, _, _ = lower.unpack(func)
    made = quick(mod, cpu)
    assert made is not mod
    inputs = [tvm.runtime.tensor(a) for a in drawn(mod["main"])]
    shape = [int(d) for d in list(mod["main"].params)[-1].shape]
    outs = []
    for program in (mod, made):
        out = tvm.runtime.tensor(np.zeros(shape, "float32"))
        tvm.tirx.build(program, target=cpu)["main"](*inputs, out)
        outs.append(out.numpy())
    np.testing.assert_allclose(outs[1], outs[0], rtol=0, atol=1e-4)
