"""A model's operators, compiled by several threads: LLVM uses one, whatever a module's size.

Relax's functions call the operators by name then, so that each thread has a module of its own. Compiling and linking a
text detector of 78 operators takes two threads about half of the 9.7 s that it takes one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tt_core.compiler.target import cores, options, unhurried

if TYPE_CHECKING:
    from tvm.target import Target

__all__ = ["Part", "apart", "compiled", "compiling", "packed", "write"]

MOST = 4
"""Threads; a library has up to twice as many object files, and that of its constants."""

FEW = 4
"""Operators that are not worth a thread of their own."""


def threads() -> int:
    """How many compile at once."""
    return max(1, min(MOST, cores()))


@dataclass(frozen=True)
class Part:
    """Operators that are compiled as one module, and for which target."""

    mod: tvm.IRModule
    target: Target


def apart(mod: tvm.IRModule, target: Target, untuned: Collection[str]) -> tuple[Part, list[Part]]:
    """A module with its share of the PrimFuncs, the others being called by name, and modules of those. Tuned ones and
    others that are no task are apart from untuned ones, for which LLVM takes less time (`unhurried`).

    Args:
        mod: After the passes of Relax, with `global_symbol`s.
        untuned: Names of the untuned PrimFuncs.
    """
    kernels = [(v, f) for v, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    plain = [(v, f) for v, f in kernels if v.name_hint in untuned]
    tuned = [(v, f) for v, f in kernels if v.name_hint not in untuned]
    shares = [(part, target) for part in _shared(tuned)] + [(part, unhurried(target)) for part in _shared(plain)]
    if not shares:
        return Part(mod, target), []
    (mine, first), *others = shares
    rewriter = _ByName(mod, {v: str(f.attrs["global_symbol"]) for part, _ in others for v, f in part.items()})
    for var, func in mod.functions_items():
        if isinstance(func, relax.Function):
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    called = {v: f for v, f in rewriter.builder_.get().functions_items() if not isinstance(f, tvm.tirx.PrimFunc)}
    rest = [Part(tvm.IRModule(part, attrs=mod.attrs), its) for part, its in others]
    return Part(tvm.IRModule({**called, **mine}, attrs=mod.attrs), first), rest


def _shared(kernels: list[tuple[Any, Any]]) -> list[dict[Any, Any]]:
    """As many parts of equal size as threads compile at once; none of nothing."""
    count = min(threads(), max(1, len(kernels) // FEW)) if kernels else 0
    return [dict(kernels[i::count]) for i in range(count)]


@contextmanager
def compiling(parts: Sequence[Part]) -> Iterator[list[Future[tvm.runtime.Module]]]:
    """Compile the parts in threads meanwhile; a result raises what TVM raised."""

    def compile_(part: Part) -> tvm.runtime.Module:
        context = tvm.transform.PassContext(opt_level=3, config=options(part.target))
        with part.target, context:  # both are a thread's own
            return tvm.tirx.build(part.mod, target=part.target)

    with ThreadPoolExecutor(threads()) as pool:
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
