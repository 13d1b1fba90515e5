"""Random integers must be valid indices: the bounds that a model and a PrimFunc set."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tt_core.compiler.indices import input_bounds
from tt_core.compiler.primfunc import parameter_bound
from tvm import relax

TABLE = relax.const(np.zeros((50, 8), "float32"))
SMALL = relax.const(np.zeros((30, 8), "float32"))


def bounds(make, dtype: str = "int64") -> dict[str, int]:
    builder = relax.BlockBuilder()
    x = relax.Var("ids", relax.TensorType((2, 7), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(make(builder, x)))
        builder.emit_func_output(out)
    return input_bounds(builder.get()["main"])


def wrapped(b: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """ONNX's negative indices."""
    return b.emit(
        relax.op.where(relax.op.less(x, relax.const(0, "int64")), relax.op.add(x, relax.const(50, "int64")), x)
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda b, x: relax.op.take(TABLE, x, axis=0), {"ids": 50}),
        (lambda b, x: relax.op.take(TABLE, x, axis=1), {"ids": 8}),
        (lambda b, x: relax.op.take(TABLE, b.emit(relax.op.astype(x, "int32")), axis=0), {"ids": 50}),
        (lambda b, x: relax.op.take(TABLE, b.emit(relax.op.reshape(x, (14,))), axis=0), {"ids": 50}),
        (lambda b, x: relax.op.take(TABLE, wrapped(b, x), axis=0), {"ids": 50}),
        (lambda b, x: relax.op.gather_elements(TABLE, x, axis=0), {"ids": 50}),
        (
            lambda b, x: relax.op.add(b.emit(relax.op.take(TABLE, x, axis=0)), b.emit(relax.op.take(SMALL, x, axis=0))),
            {"ids": 30},
        ),
        # a sum over a mask indexes too, but what it may be is not known of its terms
        (lambda b, x: relax.op.take(TABLE, b.emit(relax.op.cumsum(x, axis=1)), axis=0), {}),
        (lambda b, x: relax.op.astype(x, "float32"), {}),
    ],
)
def test_an_input_stays_below_what_it_looks_up(make, expected):
    assert bounds(make) == expected


def prim(text: str) -> tvm.tirx.PrimFunc:
    return tvm.script.from_source(text)


def test_a_primfunc_is_bound_by_the_smallest_extent_that_is_looked_up():
    text = """
@T.prim_func(s_tir=True)
def main(table: T.Buffer((50, 8), "float32"), ids: T.Buffer((7,), "int64"), out: T.Buffer((7, 8), "float32")):
    for i, j in T.grid(7, 8):
        with T.sblock("take"):
            x, y = T.axis.remap("SS", [i, j])
            out[x, y] = table[T.Select(ids[x] < T.int64(0), ids[x] + T.int64(50), ids[x]), y]
"""
    assert parameter_bound(prim(text)) == 50
    assert parameter_bound(prim(text.replace("50, 8", "1, 8"))) == 1
    assert (
        parameter_bound(
            prim(text.replace("table[T.Select(ids[x] < T.int64(0), ids[x] + T.int64(50), ids[x]), y]", "table[x, y]"))
        )
        is None
    )
