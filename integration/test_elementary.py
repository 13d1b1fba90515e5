"""Elementary functions beside the operators they follow."""

import numpy as np
from tt_core.compiler.lower import lower
from tt_core.compiler.target import resolve
from tvm import relax


def test_they_join_the_operator_before_them():
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", relax.TensorType((16, 32), "float32")), relax.const(np.ones((32, 64), np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.silu(relax.op.matmul(x, w)))
        builder.emit_func_output(out)
    assert [t.op for t in lower(builder.get(), resolve("native")).tasks] == ["matmul"]
