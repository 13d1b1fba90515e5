"""Exponentials and their kin as polynomials, which vectorise: LLVM calls the library for each element otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm import relax, te, topi
from tvm.s_tir import Schedule

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["legalizers"]


def legalizers(target: Target) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """For `relax.transform.LegalizeOps`, by operator; for CPUs only, and for float32 operands.

    Errors against float64 are at most 3e-7 of the value (GELU: of the operand).
    """
    if target.kind.name != "llvm":
        return {}
    return {f"relax.{name}": _legalizer(name, compute) for name, compute in _FUNCTIONS.items()}


def _legalizer(name: str, compute: Callable[..., te.Tensor]) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x = call.args[0]
        if str(x.ty.dtype) != "float32":
            return call.op.get_attr("FLegalize")(builder, call)
        data = te.placeholder(x.ty.shape.values, "float32", name="x")
        more = (int(call.attrs.axis),) if name == "nn.softmax" else ()
        s = Schedule(te.create_prim_func([data, compute(data, *more)]))
        if not more:  # one block, or it would not be fused into its producer
            for block in s.get_child_blocks(s.get_sblock("root"))[:-1]:
                s.compute_inline(block)
        func = builder.add_func(s.mod["main"].without_attr("global_symbol"), name.removeprefix("nn."))
        return relax.call_tir(func, [x], out_ty=call.ty)

    return legalize


def _sigmoid(x: te.Tensor) -> te.Tensor:
    power = topi.fast_exp(topi.negative(x))
    return te.compute(x.shape, lambda *i: 1.0 / (1.0 + power[i]), name="sigmoid")


def _silu(x: te.Tensor) -> te.Tensor:
    return topi.multiply(x, _sigmoid(x))


def _gelu(x: te.Tensor) -> te.Tensor:
    erf = topi.fast_erf(topi.multiply(x, 0.5**0.5))
    return te.compute(x.shape, lambda *i: x[i] * (0.5 + 0.5 * erf[i]), name="gelu")


def _gelu_tanh(x: te.Tensor) -> te.Tensor:
    inner = te.compute(x.shape, lambda *i: (2 / 3.141592653589793) ** 0.5 * x[i] * (1 + 0.044715 * x[i] * x[i]))
    tanh = topi.fast_tanh(inner)
    return te.compute(x.shape, lambda *i: 0.5 * x[i] * (1.0 + tanh[i]), name="gelu_tanh")


_FUNCTIONS: dict[str, Callable[..., te.Tensor]] = {
    "exp": topi.fast_exp,
    "erf": topi.fast_erf,
    "tanh": topi.fast_tanh,
    "sigmoid": _sigmoid,
    "nn.silu": _silu,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.softmax": topi.nn.fast_softmax,
}
