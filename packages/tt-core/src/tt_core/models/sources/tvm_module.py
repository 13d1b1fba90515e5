"""Models that are TVM's own: Relax modules, and PrimFuncs as single operators."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tvm
from tvm import relax

from tt_core.compiler.arrays import INTEGERS_BELOW
from tt_core.compiler.indices import input_bounds
from tt_core.compiler.primfunc import outputs
from tt_core.errors import ModelError, summary
from tt_core.models.model import Input, Model
from tt_core.models.sources import shapes as shape_options

__all__ = ["convert", "inputs_of", "operator", "output_count"]

Shapes = Mapping[str, tuple[int, ...]]


def convert(mod: tvm.IRModule, name: str, shapes: Shapes) -> Model:
    """The model of a Relax function "main", or of the module's only PrimFunc.

    Raises `ModelError` if there is neither, or if dimensions stay open.
    """
    functions = {v.name_hint: f for v, f in mod.functions.items()}
    main = functions.get("main")
    if not isinstance(main, relax.Function):
        prims = [f for f in functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        if len(prims) == 1 and len(functions) == 1:
            return operator(prims[0], name, shapes)
        raise ModelError(
            f'{name} has no Relax function "main", which a model needs, and not one PrimFunc alone, which is an'
            f" operator; it has {', '.join(sorted(functions)) or 'nothing'}"
        )
    mod = _bind(mod, main, name, shapes)
    return Model(name, mod, inputs_of(mod), tuple(_output_names(mod["main"])))


def inputs_of(mod: tvm.IRModule) -> tuple[Input, ...]:
    """The inputs of "main", all of fixed shape."""
    below = input_bounds(mod["main"])
    return tuple(
        Input(
            str(p.name),
            tuple(int(d) for d in p.ty.shape.values),
            str(p.ty.dtype),
            below.get(p.name, _EIGHT_BITS.get(str(p.ty.dtype), INTEGERS_BELOW)),
        )
        for p in mod["main"].params
    )


_EIGHT_BITS = {"int8": 128, "uint8": 256}
"""Quantised values and pixels that index nothing."""


def output_count(main: relax.Function) -> int:
    """Number of tensors that a model returns, nested tuples counted through."""
    return _leaves(main.ret_ty)


def operator(func: tvm.tirx.PrimFunc, name: str, shapes: Shapes | None = None) -> Model:
    """A model that calls one PrimFunc: its last parameters, those that it writes, are the outputs."""
    if shapes:
        raise ModelError(f"{name} is one operator, which has its shape in its text: omit --shape")
    try:
        dims = [tuple(int(d) for d in p.shape) for p in func.params]
        dtypes = [str(p.dtype) for p in func.params]
    except (TypeError, AttributeError, ValueError) as e:
        raise ModelError(
            f"{name}: every parameter of an operator must be a buffer of fixed shape ({func.params})"
        ) from e
    count = outputs(func)
    if not count:
        raise ModelError(f"{name}: the outputs of an operator are its last parameters, and it stores to those only")
    n = len(dims) - count
    if not n:
        raise ModelError(f"{name} has no input: there is nothing to tune")
    if not func.attrs or not func.attrs.get("s_tir", False):
        raise ModelError(f"{name} cannot be scheduled: write it with T.sblock and @T.prim_func(s_tir=True)")
    names = _unique([str(p.name) for p in func.params[:n]])
    builder = relax.BlockBuilder()
    variables = [relax.Var(v, relax.TensorType(dims[i], dtypes[i])) for i, v in enumerate(names)]
    call = builder.add_func(func.without_attr("global_symbol"), _identifier(name))
    types = [relax.TensorType(dims[i], dtypes[i]) for i in range(n, len(dims))]
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(call, variables, out_ty=types if len(types) > 1 else types[0]))
        builder.emit_func_output(out)
    return convert(builder.get(), name, {})


def _bind(mod: tvm.IRModule, main: relax.Function, name: str, shapes: Shapes) -> tvm.IRModule:
    """The module with the user's numbers for its symbolic dimensions."""
    shape_options.known(shapes, [str(p.name) for p in main.params])
    dims: dict[str, list[int | str]] = {}
    fixed: Shapes = {}
    numbers: dict[tvm.tirx.Var, int] = {}
    for p in main.params:
        input_name, own = str(p.name), getattr(getattr(p.ty, "shape", None), "values", None)
        if not isinstance(p.ty, relax.TensorType) or own is None:
            raise ModelError(f"input {input_name!r} of {name} is no tensor of known rank: {p.ty}")
        dims[input_name] = [int(d) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in own]
        fixed[input_name] = shape_options.fix(input_name, dims[input_name], shapes)
        numbers.update((d, n) for d, n in zip(own, fixed[input_name], strict=True) if isinstance(d, relax.Var))
    shape_options.agree(dims, fixed)
    _in_range(main, numbers)
    if not numbers:
        return mod
    try:
        bound = relax.transform.BindSymbolicVars(numbers, "main")(mod)
        inputs_of(bound)
    except Exception as e:  # TVM raises several types
        raise ModelError(f"the shapes {shape_options.shown(shapes)} do not fit {name}: {summary(e)}") from e
    return bound


def _in_range(main: relax.Function, numbers: dict[tvm.tirx.Var, int]) -> None:
    """The bounds of dynamic dimensions, which PyTorch states and TVM keeps as attributes."""
    attributes = dict(main.attrs or {})
    lower, upper = (dict(attributes.get(f"tir_var_{side}_bound", {})) for side in ("lower", "upper"))
    for var, n in numbers.items():
        least, most = lower.get(var.name, 1), upper.get(var.name, n)
        if not least <= n <= most:
            raise ModelError(f"--shape gives {var.name} = {n}; the model was exported for {least} to {most}")


def _output_names(main: relax.Function) -> list[str]:
    n = output_count(main)
    return ["output"] if n == 1 and not _is_tuple(main.ret_ty) else [f"output_{i}" for i in range(n)]


def _is_tuple(ty: tvm.ir.Type) -> bool:
    return getattr(ty, "fields", None) is not None


def _leaves(ty: tvm.ir.Type) -> int:
    return sum(_leaves(f) for f in ty.fields) if _is_tuple(ty) else 1


def _identifier(name: str) -> str:
    """A name that a function of the module can bear; "main" is the model's."""
    text = re.sub(r"\W", "_", name)
    return f"operator_{text}" if text == "main" or not text[:1].isalpha() else text


def _unique(names: list[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}_{i}" for i, n in enumerate(names)]
