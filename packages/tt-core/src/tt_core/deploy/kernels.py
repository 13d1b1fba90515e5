"""A model's operators, compiled by several threads: LLVM uses one, whatever a module's size.

Relax's functions call the operators by name then, so that each thread has a module of its own. Compiling and linking a
text detector of 78 operators takes two threads about half of the 9.7 s that it takes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tt_core.compiler.target import cores, options

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["apart", "compiled", "compiling", "packed", "write"]

MOST = 4
"""Threads, and object files of a library beside that of its constants."""

FEW = 4
"""Operators that are not worth a thread of their own."""


def threads() -> int:
    """How many compile at once."""
    return max(1, min(MOST, cores()))


def apart(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[tvm.IRModule]]:
    """A module with its share of the PrimFuncs, the others being called by name, and as many modules of those as other
    threads compile at once.

    Args:
        mod: After the passes of Relax, with `global_symbol`s.
    """
    kernels = [(v, f) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    count = max(1, min(threads(), len(kernels) // FEW))
    mine, *others = (dict(kernels[i::count]) for i in range(count))
    if not others:
        return mod, []
    rewriter = _ByName(mod, {v: str(f.attrs["global_symbol"]) for part in others for v, f in part.items()})
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    called = {v: f for v, f in rewriter.builder_.get().functions_items() if not isinstance(f, tvm.tirx.PrimFunc)}
    return tvm.IRModule({**called, **mine}, attrs=mod.attrs), [tvm.IRModule(part, attrs=mod.attrs) for part in others]


@contextmanager
def compiling(parts: Sequence[tvm.IRModule], target: Target) -> Iterator[list[Future[tvm.runtime.Module]]]:
    """Compile each part in a thread of its own meanwhile; a result raises what TVM raised."""

    def compile_(part: tvm.IRModule) -> tvm.runtime.Module:
        with target, tvm.transform.PassContext(opt_level=3, config=options(target)):  # both are a thread's own
            return tvm.tirx.build(part, target=target)

    with ThreadPoolExecutor(max(1, len(parts))) as pool:
        yield [pool.submit(compile_, part) for part in parts]


def compiled(root: tvm.runtime.Module) -> list[tvm.runtime.Module]:
    """The modules with machine code among those that a library consists of."""
    found, todo = [], [root]
    for module in todo:
        found += [module] if module.is_compilation_exportable() else []
        todo += [m for m in module.imports if m not in todo]
    return found


def packed(root: tvm.runtime.Module, compiled: tvm.runtime.Module) -> tvm.runtime.Module:
    """All else, bytecode and constants, as a module with machine code, for the target of another."""
    pack = tvm.get_global_func("runtime.ModulePackImportsToLLVM")
    return pack(root, False, compiled["_get_target_string"](), "")


def write(modules: Sequence[tvm.runtime.Module], paths: Sequence[str]) -> None:
    """Each module's object file. The last steps of LLVM come here: they take twice as long as those before."""
    with ThreadPoolExecutor(threads()) as pool:
        list(pool.map(lambda module, path: module.write_to_file(path, "o"), modules, paths))


@relax.expr_functor.mutator
class _ByName(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, names: Mapping[tvm.ir.GlobalVar, str]) -> None:
        super().__init__(mod)
        self._names = names

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        name = self._names.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if name is None:
            return super().visit_call_(call)
        return relax.Call(relax.ExternFunc(name), [self.visit_expr(a) for a in call.args], call.attrs, [call.ty])
