"""Single operators as models: `op:conv2d:1,64,56,64,3,1,1`, and TVM's own table of them: `op:C2D:1`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import psutil
from tt_spec import nearest

from tt_core.errors import ModelError
from tt_core.models.model import Input, Model

if TYPE_CHECKING:
    from tvm import relax, te

__all__ = ["FORMS", "build"]

FORMS = {
    "conv2d": ("N", "CI", "HW", "CO", "K", "S", "P"),
    "dwconv2d": ("N", "C", "HW", "K", "S", "P"),
    "matmul": ("M", "N", "K"),
    "batch_matmul": ("B", "M", "N", "K"),
}

EPILOGUE = ("bias", "add", "relu", "relu6", "silu", "hardswish", "sigmoid")
"""What may follow an operator, elementwise; `add` adds a further input, `residual`."""

_BROKEN = ("C2D_WIN_NHWC",)  # TVM 0.27 has the name but no longer builds it


def build(text: str) -> Model:
    """A model of one float32 operator.

    `op:conv2d:N,CI,HW,CO,K,S,P` (input N x CI x HW x HW, CO filters K x K, stride S, padding P),
    `op:dwconv2d:N,C,HW,K,S,P`, `op:matmul:M,N,K` (M x K times K x N), `op:batch_matmul:B,M,N,K` (B times M x K by
    N x K, transposed). Weights of convolutions and of matmul are constants, as in a deployed model; batch_matmul has
    two inputs. `op:conv2d+bias+relu:1,64,56,64,3,1,1` is fused with what follows it in a network: any of `EPILOGUE`.

    `op:C2D:1` is the second shape of C2D in TVM's `te_workload` table, Ansor's benchmark (Zheng et al., 2020, OSDI),
    `op:C2D` the first; all operands are inputs. Raises `ModelError` that shows the form.
    """
    if (name := text.split(":")[1]) not in FORMS and name in (table := _table()):
        return _from_table(text, table)
    kind, epilogue, numbers = _parse(text)
    rng = np.random.default_rng(0)
    from tvm import relax

    def weight(*shape: int) -> relax.Expr:
        scale = 1.0 / np.sqrt(max(1, int(np.prod(shape[1:]))))
        return relax.const((rng.standard_normal(shape) * scale).astype("float32"))

    if kind in ("conv2d", "dwconv2d"):
        if kind == "conv2d":
            n, ci, hw, co, k, s, p = numbers
            groups = 1
        else:
            n, ci, hw, k, s, p = numbers
            co = groups = ci
        if k > hw + 2 * p:
            raise ModelError(f"{text}: the {k} x {k} kernel is larger than the padded image of {hw + 2 * p}")
        shapes = {"x": (n, ci, hw, hw)}
        size = (hw + 2 * p - k) // s + 1
        out = (n, co, size, size)
        _check_size(text, (n, ci, hw, hw), (co, ci // groups, k, k), (n, co, hw + 2 * p, hw + 2 * p))
        w = weight(co, ci // groups, k, k)
        return _one(
            text, shapes, lambda x: relax.op.nn.conv2d(x, w, strides=s, padding=p, groups=groups), epilogue, out
        )
    if kind == "matmul":
        m, n, k = numbers
        _check_size(text, (m, k), (k, n), (m, n))
        w = weight(k, n)
        return _one(text, {"x": (m, k)}, lambda x: relax.op.matmul(x, w), epilogue, (m, n))
    b, m, n, k = numbers
    _check_size(text, (b, m, k), (b, n, k), (b, m, n))
    shapes = {"x": (b, m, k), "y": (b, n, k)}
    return _one(text, shapes, lambda x, y: relax.op.matmul(x, relax.op.permute_dims(y, [0, 2, 1])), epilogue, (b, m, n))


def _parse(text: str) -> tuple[str, list[str], list[int]]:
    """The operator, what follows it, and its numbers."""
    parts = text.split(":")
    kind, *epilogue = parts[1].split("+") if len(parts) > 1 else [""]
    if kind not in FORMS:
        raise ModelError(f"unknown operator {kind!r} in {text!r}{nearest(kind, [*FORMS, *_table()])}")
    for step in epilogue:
        if step not in EPILOGUE or epilogue.count(step) > 1:
            raise ModelError(f"{text!r}: {kind} may be followed by {', '.join(EPILOGUE)}, each once, not by {step!r}")
    form = FORMS[kind]
    shown = f"op:{parts[1]}:{','.join(form)}"
    try:
        numbers = [int(v) for v in parts[2].split(",")]
    except (IndexError, ValueError):
        raise ModelError(f"{text!r} is not of the form {shown} with whole numbers") from None
    if len(parts) != 3 or len(numbers) != len(form):
        raise ModelError(f"{text!r} has {len(numbers)} numbers, {shown} needs {len(form)}")
    for name, value in zip(form, numbers, strict=True):
        if value < (0 if name == "P" else 1):
            raise ModelError(f"{text!r}: {name} must be {'at least 0' if name == 'P' else 'positive'}, got {value}")
    return kind, epilogue, numbers


def _check_size(text: str, *shapes: tuple[int, ...]) -> None:
    """An operand, in float64 while it is drawn, may take a tenth of the machine."""
    most = psutil.virtual_memory().total / 10
    for shape in shapes:
        if 8 * math.prod(shape) > most:
            raise ModelError(f"{text}: an operand of {' x '.join(map(str, shape))} is too large for this machine")


def _table() -> dict[str, tuple[Callable[..., list[te.Tensor]], Sequence[tuple[int, ...]]]]:
    """Name to (function of TVM's tensor expressions, its shapes)."""
    from tvm.s_tir.meta_schedule.testing.te_workload import CONFIGS

    return {k: v for k, v in CONFIGS.items() if k not in _BROKEN}


def _from_table(text: str, table: dict[str, tuple[Callable[..., list[te.Tensor]], Sequence[tuple[int, ...]]]]) -> Model:
    from tvm import te

    from tt_core.models.sources.tvm_module import operator

    _, kind, *rest = text.split(":")
    make, variants = table[kind]
    index = rest[0] if rest else "0"
    if len(rest) > 1 or not index.isdecimal() or int(index) >= len(variants):
        shown = ", ".join(f"{i}: {'x'.join(map(str, v))}" for i, v in enumerate(variants))
        raise ModelError(f"{text!r}: op:{kind}:INDEX has the shapes {shown}")
    func = te.create_prim_func(make(*variants[int(index)]))
    return replace(operator(func, make.__name__), name="-".join([kind, *rest]))


def _one(
    name: str,
    shapes: dict[str, tuple[int, ...]],
    make: Callable[..., relax.Expr],
    epilogue: Sequence[str],
    out: tuple[int, ...],
) -> Model:
    """A model of what `make` makes of its operands, followed by `epilogue`; `out` is the shape of its output."""
    from tvm import relax

    builder = relax.BlockBuilder()
    operands = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    if "add" in epilogue:
        shapes = {**shapes, "residual": out}
    residual = relax.Var("residual", relax.TensorType(out, "float32"))
    with builder.function("main", [*operands, residual] if "add" in epilogue else operands):
        with builder.dataflow():
            value = builder.normalize(make(*operands))
            for step in epilogue:
                value = builder.normalize(_followed(value, step, residual, out))
            output = builder.emit_output(value)
        builder.emit_func_output(output)
    file_name = name.removeprefix("op:").replace(":", "-").replace(",", "-")
    return Model(file_name, builder.get(), tuple(Input(n, s, "float32") for n, s in shapes.items()), ("output",))


def _followed(value: relax.Expr, step: str, residual: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """`value`, of `shape`, followed by a step of `EPILOGUE`."""
    from tvm import relax

    def number(v: float) -> relax.Expr:
        return relax.const(v, "float32")

    match step:
        case "bias":  # of each channel of an image, the second axis, or of each column
            size = (shape[1], 1, 1) if len(shape) == 4 else shape[-1:]
            return relax.op.add(value, relax.const(np.random.default_rng(1).standard_normal(size).astype("float32")))
        case "add":
            return relax.op.add(value, residual)
        case "relu":
            return relax.op.nn.relu(value)
        case "relu6":
            return relax.op.clip(value, 0, 6)
        case "silu":
            return relax.op.nn.silu(value)
        case "hardswish":
            inner = relax.op.clip(relax.op.add(value, number(3)), 0, 6)
            return relax.op.multiply(relax.op.multiply(value, inner), number(1 / 6))
        case _:
            return relax.op.sigmoid(value)
