"""The operators that only rewritten models have, `LOOP` and `WHOLE` of their graph, for TVM's importer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from tt_core.compiler.series import STEP, Series
from tt_core.models.rewrites.loops import DOMAIN, LOOP, WHOLE

__all__ = ["importing_own"]

_lock = threading.RLock()


@contextlib.contextmanager
def importing_own() -> Iterator[None]:
    """TVM's importer takes the operators `LOOP` and `WHOLE` while the context lasts."""
    from tvm.relax.frontend.onnx import onnx_frontend as frontend

    with _lock:
        before = frontend._get_convert_map
        frontend._get_convert_map = lambda: {**before(), LOOP: _Loop, WHOLE: _Whole}
        try:
            yield
        finally:
            frontend._get_convert_map = before


class _Loop:
    """A converter as TVM's importer calls it."""

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        return lambda bb, inputs, attr, params: _converted(bb, inputs, attr, opset)


class _Whole:
    """As `_Loop`."""

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        return lambda bb, inputs, attr, params: relax.op.astype(inputs[0], attr["dtype"])


def _converted(bb: relax.BlockBuilder, inputs: Any, attr: Any, opset: int) -> relax.Expr:
    from onnx import GraphProto, helper
    from tvm.relax.frontend.onnx import from_onnx

    given = [inputs[i] for i in range(len(inputs))]
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    body = helper.make_model(GraphProto.FromString(attr["body"]), opset_imports=domains)
    step = from_onnx(body, opset=opset, keep_params_in_input=False)
    renamed = {
        v.name_hint: bb.add_func(f, v.name_hint) for v, f in step.functions_items() if isinstance(f, tvm.tirx.PrimFunc)
    }
    main = step["main"]
    if renamed:
        swap = (tvm.ir.GlobalVar, lambda v: renamed.get(v.name_hint, v))
        main = relax.Function(main.params, tvm_ffi.structural_map(main.body, swap), main.ret_ty)
    main = relax.utils.copy_with_new_vars(main)
    var = bb.add_func(main.with_attr(STEP, True), "step")
    bb.update_func(var, bb.get()[var].with_attr("global_symbol", var.name_hint))
    trips, states, followed = int(attr["trips"]), int(attr["states"]), tuple(map(int, attr.get("followed", ())))
    fields = list(main.ret_ty.fields) if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    given_out = [*(fields[i] for i in followed), *fields[states:]]
    stacked = [relax.TensorType((trips, *f.shape.values), f.dtype) for f in given_out]
    series = Series(var.name_hint, trips, states, int(attr["series"]), followed, bool(attr["backwards"]))
    return series.call([bb.emit(g) if isinstance(g, relax.Call) else g for g in given], [*fields[:states], *stacked])
