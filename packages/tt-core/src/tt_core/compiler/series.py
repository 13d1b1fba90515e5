"""A loop over time: one function for all steps of a series, whose step is a function of its own until the end.

A step takes the states, a slice of each series and what stays the same, and gives the next states and outputs, which
are stacked again. While a model is lowered the loop is an opaque call in "main"; the step is lowered as the rest of the
model is, becomes one PrimFunc, and so a task. When the model is compiled the step, tuned or not, is written into a
serial loop: one function is called for a series, however long, and none for a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlock

from tt_core.errors import ModelError, summary

__all__ = ["STEP", "Series", "called", "joined", "of", "steps_as_functions"]

STEP = "tt.step"
"""Attribute of a Relax function that is the step of a loop."""

_LOOP = "tt.loop"
_CALL = "relax.call_dps_packed"


@dataclass(frozen=True)
class Series:
    """A loop: what its call in Relax says.

    The call's arguments are the states before the first step, the series `(trips, ...)` and what is the same for all
    steps; its results are the states after the last step, the followed states and the step's outputs, each
    `(trips, ...)`.

    Args:
        step: Name of the step's function.
        trips: Steps.
        states: Number of states.
        series: Number of series.
        followed: States that are an output of each step too, by number.
        backwards: From the last step to the first.
    """

    step: str
    trips: int
    states: int
    series: int
    followed: tuple[int, ...] = ()
    backwards: bool = False

    @property
    def name(self) -> str:
        followed = ",".join(map(str, self.followed))
        return f"{_LOOP}/{self.step}/{self.trips}/{self.states}/{self.series}/{followed}/{int(self.backwards)}"

    def call(self, arguments: Sequence[relax.Expr], out: Sequence[relax.TensorType]) -> relax.Call:
        """The loop as an expression; a tuple of the results, or the only one."""
        return relax.call_dps_packed(self.name, list(arguments), out_ty=list(out))


def of(expr: relax.Expr) -> Series | None:
    """The loop that an expression calls, else None."""
    if not isinstance(expr, relax.Call) or expr.op != tvm.ir.Op.get(_CALL):
        return None
    callee = expr.args[0]
    if not isinstance(callee, relax.ExternFunc) or not str(callee.global_symbol).startswith(f"{_LOOP}/"):
        return None
    _, step, trips, states, series, followed, back = str(callee.global_symbol).rsplit("/", 6)
    return Series(
        step, int(trips), int(states), int(series), tuple(int(i) for i in followed.split(",") if i), back == "1"
    )


def called(mod: tvm.IRModule) -> Counter[str]:
    """How often each step runs in one execution of the model, by name."""
    found: Counter[str] = Counter()

    def visit(e: relax.Expr) -> None:
        if (loop := of(e)) is not None:
            found[loop.step] += loop.trips

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


# -- steps become functions ------------------------------------------------------------------------------------------


@tvm.transform.module_pass(opt_level=0, name="StepsAsFunctions")
def steps_as_functions(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Each step, a Relax function over PrimFuncs by now, as one PrimFunc; its constants become the loop's arguments."""
    steps = {
        v.name_hint: f for v, f in mod.functions.items() if isinstance(f, relax.Function) and STEP in (f.attrs or {})
    }
    if not steps:
        return mod
    made, constants = {}, {}
    for name, func in steps.items():
        try:
            made[name], constants[name] = _as_one(mod, func)
        except Exception as e:  # TVM raises several types
            raise ModelError(f"a step of a loop is no single function: {summary(e)}") from e
    rest = tvm.IRModule({v: f for v, f in mod.functions_items() if v.name_hint not in steps}, attrs=mod.attrs)
    calls = _Calls(rest, lambda loop, call: loop.call([*call.args[1], *constants[loop.step]], _types(call)))
    rest = calls.rewritten()
    for name, func in made.items():
        rest[name] = func.with_attr({"global_symbol": name, STEP: True})  # no one calls it, and it must stay
    return rest


def _as_one(mod: tvm.IRModule, func: relax.Function) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    lifter = _Lifter()
    body = lifter.visit_expr(func.body)
    params = [*func.params, *lifter.found.values()]
    step = relax.Function(params, body, func.ret_ty, is_pure=True).with_attr("Primitive", True)
    builder = relax.BlockBuilder(tvm.IRModule({v: f for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}))
    var = builder.add_func(relax.utils.copy_with_new_vars(step), "step")
    outer = [relax.Var(p.name, p.ty) for p in params]
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(relax.Call(var, outer)))
        builder.emit_func_output(out)
    fused = relax.transform.FuseTIR()(builder.get())
    (found,) = [f for v, f in fused.functions_items() if isinstance(f, tirx.PrimFunc)]
    return found, list(lifter.constants)


@relax.expr_functor.mutator
class _Lifter(relax.PyExprMutator):
    """Constants of a function as variables."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, relax.Var] = {}
        self.constants: list[relax.Expr] = []

    def visit_generic_const_(self, constant: relax.Expr) -> relax.Expr:
        self.constants.append(constant)
        return self.found.setdefault(len(self.found), relax.Var(f"fixed_{len(self.found)}", constant.ty))


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    """Every call of a loop replaced."""

    def __init__(self, mod: tvm.IRModule, change: Callable[[Series, relax.Call], relax.Expr]) -> None:
        super().__init__(mod)
        self._mod, self._change = mod, change

    def rewritten(self) -> tvm.IRModule:
        for var, func in self._mod.functions.items():
            if isinstance(func, relax.Function):
                self.builder_.update_func(var, self.visit_expr(func))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        loop = of(call)
        return call if loop is None else self._change(loop, call)


def _types(call: relax.Call) -> list[relax.TensorType]:
    return list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]


# -- the loop ---------------------------------------------------------------------------------------------------------


def joined(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with each loop as one function that holds its step."""
    steps = set(called(mod))
    if not steps:
        return mod
    functions = {v.name_hint: f for v, f in mod.functions_items()}
    rest = tvm.IRModule({v: f for v, f in mod.functions_items() if v.name_hint not in steps}, attrs=mod.attrs)

    def loop(series: Series, call: relax.Call) -> relax.Expr:
        var = calls.builder_.add_func(_loop(series, functions[series.step]), f"loop_{series.step}")
        return relax.call_tir(var, list(call.args[1]), out_ty=_types(call))

    calls = _Calls(rest, loop)
    return calls.rewritten()


def _loop(series: Series, step: tirx.PrimFunc) -> tirx.PrimFunc:
    """`for t in range(trips)` around the step's body, its parameters bound to parts of the loop's."""
    func = tvm.script.from_source(_frame(series, step))

    def filled(block: SBlock) -> SBlock:
        if block.name_hint != "step":
            return block
        parts = iter(m.buffer for m in block.match_buffers)
        bound = {p: next(parts) if len(p.shape) else func.params[i] for i, p in enumerate(step.params)}
        body = tvm_ffi.structural_map(step.body, (tirx.Var, lambda v: bound.get(v, v)))
        again = tirx.stmt_seq(*_statements(body), *_statements(block.body))
        return SBlock(block.iter_vars, [], [], "step", again, None, [], block.match_buffers, block.annotations)

    made = func.with_body(tvm_ffi.structural_map(func.body, (SBlock, filled)))
    made = made.without_attr("global_symbol")
    return made.with_attr("tirx.is_scheduled", True) if "tirx.is_scheduled" in (step.attrs or {}) else made


def _statements(body: tirx.Stmt) -> list[tirx.Stmt]:
    found = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    return [
        s for s in found if not isinstance(s, tirx.Evaluate)
    ]  # the frame's placeholder, if nothing else stands there


def _frame(series: Series, step: tirx.PrimFunc) -> str:
    """The loop without its step, as TVMScript."""
    of = [(tuple(int(d) for d in p.shape), str(p.dtype)) for p in step.params]
    n, fixed = series.states, len(step.params)
    first_out = _inputs(series, step)
    sliced = {*range(n, n + series.series), *range(first_out + n, fixed)}
    params = [_buffer(f"p{i}", ((series.trips, *s) if i in sliced else s), d) for i, (s, d) in enumerate(of)]
    follows = [_buffer(f"y{i}", (series.trips, *of[i][0]), of[i][1]) for i in series.followed]
    params[first_out + n : first_out + n] = follows
    lines = ["# from tvm.script import tirx as T", "@T.prim_func(s_tir=True)", f"def main({', '.join(params)}):"]
    lines += ["    T.func_attr({'tirx.noalias': True})", '    with T.sblock("root"):']
    lines += ["        T.reads()", "        T.writes()"]
    lines += [f'        s{i} = T.sblock_alloc_buffer((2, {_dims(of[i][0])}), "{of[i][1]}")' for i in range(n)]
    for i in range(n):
        lines += _copy(f"first{i}", f"p{i}", f"s{i}", "0, ", of[i][0], 8)
    lines += [f"        for t in range({series.trips}):", '            with T.sblock("step"):']
    lines += [f"                vt = T.axis.opaque({series.trips}, t)", "                T.reads()"]
    lines += ["                T.writes()"]
    at = f"{series.trips - 1} - vt" if series.backwards else "vt"
    for i, (shape, dtype) in enumerate(of):
        if not shape:  # a number: the same for all steps
            continue
        rest = ", ".join(f"0:{d}" for d in shape)
        if i < n:
            source = f"s{i}[vt % 2, {rest}]"
        elif first_out <= i < first_out + n:
            source = f"s{i - first_out}[(vt + 1) % 2, {rest}]"
        else:
            source = f"p{i}[{at}, {rest}]" if i in sliced else f"p{i}[{rest}]"
        lines += [f'                m{i} = T.match_buffer({source}, ({_dims(shape)}), "{dtype}", offset_factor=1)']
    lines += ["                T.evaluate(0)"]
    for i in series.followed:
        lines += _copy(f"follow{i}", f"m{first_out + i}", f"y{i}", f"{at}, ", of[i][0], 16)
    for i in range(n):
        lines += _copy(f"last{i}", f"s{i}", f"p{first_out + i}", "", of[i][0], 8, f"{series.trips % 2}, ")
    return "\n".join(lines)


def _inputs(series: Series, step: tirx.PrimFunc) -> int:
    from tt_core.compiler.primfunc import outputs

    return len(step.params) - outputs(step)


def _dims(shape: Sequence[int]) -> str:
    return "".join(f"{d}, " for d in shape)


def _buffer(name: str, shape: Sequence[int], dtype: str) -> str:
    return f'{name}: T.Buffer(({_dims(shape)}), "{dtype}")'


def _copy(
    name: str, source: str, goal: str, at: str, shape: Sequence[int], indent: int, source_at: str = ""
) -> list[str]:
    """Nested loops that copy one buffer to another."""
    loops = ", ".join(f"i{k}" for k in range(len(shape)))
    axes = [f"v{k} = T.axis.spatial({d}, i{k})" for k, d in enumerate(shape)]
    index = ", ".join(f"v{k}" for k in range(len(shape)))
    lines = [f"for {loops} in T.grid({_dims(shape)}):", f'    with T.sblock("{name}"):']
    lines += [f"        {a}" for a in axes] + [f"        {goal}[{at}{index}] = {source}[{source_at}{index}]"]
    return [" " * indent + line for line in lines]
