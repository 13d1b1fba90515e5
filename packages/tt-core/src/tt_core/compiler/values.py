"""Known facts about Relax expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

__all__ = ["constant", "dimensions", "operator"]


def constant(expr: relax.Expr, bound: Callable[[relax.Var], relax.Expr | None]) -> np.ndarray | None:
    """The value of a constant, or of a variable that is `bound` to one; else None."""
    value: Any = bound(expr) if isinstance(expr, relax.Var) else expr
    return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None


def dimensions(expr: relax.Expr) -> list[int] | None:
    """An expression's shape, if it is known and static."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    if values is None or not all(isinstance(d, int | tvm.tirx.IntImm) for d in values):
        return None
    return [int(d) for d in values]


def operator(call: relax.Call) -> str:
    """The name of what a call calls if that is an operator, as `relax.add`; else nothing."""
    return str(getattr(call.op, "name", ""))
