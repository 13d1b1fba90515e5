"""Exponentials and their kin as polynomials, and powers as roots and products, which vectorise: LLVM calls the library
for each element otherwise."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from tvm import relax, te, tirx, topi
from tvm.s_tir import Schedule

from tt_core.compiler.values import constant, dimensions

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["legalizers"]

MOST_QUARTERS = 32
"""Of an exponent: beyond it are too many products."""


def legalizers(target: Target) -> dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]]:
    """For `relax.transform.LegalizeOps`, by operator; for CPUs only, and for float32 operands.

    Errors against float64 are at most 3e-7 of the value (GELU: of the operand).
    """
    if target.kind.name != "llvm":
        return {}
    found = {f"relax.{name}": _legalizer(name, compute) for name, compute in _FUNCTIONS.items()}
    return found | {"relax.power": _power}


def _legalizer(name: str, compute: Callable[..., te.Tensor]) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x = call.args[0]
        if str(x.ty.dtype) != "float32":
            return call.op.get_attr("FLegalize")(builder, call)
        more = (int(call.attrs.axis),) if name == "nn.softmax" else ()
        return _emit(builder, call, name.removeprefix("nn."), lambda data: compute(data, *more), inline=not more)

    return legalize


def _power(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Powers by a constant number of quarters, as in local response normalisation and GELU's cubes; LLVM knows
    squares."""
    x, exponent = call.args
    value, shape = constant(exponent, builder.lookup_binding), dimensions(x)
    quarters = 4.0 * float(value.flat[0]) if value is not None and value.size == 1 else 0.0
    fits = quarters.is_integer() and 0 < abs(quarters) <= MOST_QUARTERS and quarters not in (4, 8)
    if not fits or str(x.ty.dtype) != "float32" or shape is None or value is None or value.ndim > len(shape):
        return call.op.get_attr("FLegalize")(builder, call)

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *i: _raised(data[i], int(quarters)), name="power")

    return _emit(builder, call, "power", compute)


def _raised(x: tirx.PrimExpr, quarters: int) -> tirx.PrimExpr:
    """`x` to the power of so many quarters."""
    if quarters < 0:
        return 1.0 / _raised(x, -quarters)
    root = tirx.sqrt(x)
    factors = [x] * (quarters // 4) + [root] * (quarters // 2 % 2) + [tirx.sqrt(root)] * (quarters % 2)
    return reduce(mul, factors)


def _emit(
    builder: relax.BlockBuilder,
    call: relax.Call,
    name: str,
    compute: Callable[[te.Tensor], te.Tensor],
    inline: bool = True,
) -> relax.Expr:
    """A call of a function that computes this of the call's first argument.

    Args:
        inline: As one block, or it would not be fused into its producer.
    """
    x = call.args[0]
    data = te.placeholder(x.ty.shape.values, "float32", name="x")
    s = Schedule(te.create_prim_func([data, compute(data)]))
    for block in s.get_child_blocks(s.get_sblock("root"))[:-1] if inline else ():
        s.compute_inline(block)
    func = builder.add_func(s.mod["main"].without_attr("global_symbol"), name)
    return relax.call_tir(func, [x], out_ty=call.ty)


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
