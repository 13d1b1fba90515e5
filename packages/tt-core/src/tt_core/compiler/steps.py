"""Passes over a Relax module of which none may refuse a model: what fails is left out, and a note says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import relax

from tt_core.errors import summary

__all__ = ["Steps"]

PassesFor = Callable[[Callable[[int], bool]], Sequence[tvm.transform.Pass]]
"""Passes that treat the operators whose numbers a function accepts."""

_kept: dict[tuple[int, str], frozenset[int] | None] = {}
"""The end of each search over operators in this process, by module and step."""


@dataclass
class Steps:
    """A module on its way.

    Args:
        mod: The module after the steps so far.
        notes: What was left out, a line each.
    """

    mod: tvm.IRModule
    notes: list[str] = field(default_factory=list)

    def must(self, *passes: tvm.transform.Pass) -> None:
        """Passes without which there is no program; raises what TVM raises."""
        for step in passes:
            self.mod = step(self.mod)

    def may(self, what: str, *passes: tvm.transform.Pass) -> bool:
        """Passes that make programs faster: all of them, or none."""
        try:
            self.mod = _run(passes, self.mod)
        except Exception as e:  # TVM raises several types
            self.notes.append(f"{what} left out: {summary(e)}")
            return False
        return True

    def may_each(self, what: str, operator: str, passes: PassesFor) -> None:
        """Passes that treat operators one by one: with as many of them as a bisection finds to work.

        Args:
            operator: As Relax calls it: "relax.nn.conv2d".
            passes: From a rule that says of the i-th such operator whether it is treated, to the passes.
        """
        self.may_parts(what, _count(self.mod, operator), passes)

    def may_parts(self, what: str, count: int, passes: PassesFor) -> None:
        """The same for parts that the caller has counted."""
        key = (_hash(self.mod), what)
        if key not in _kept:
            try:
                whole = _run(passes(lambda i: True), self.mod)
            except Exception:  # TVM raises several types
                _kept[key] = self._most(count, passes)
            else:
                _kept[key], self.mod = frozenset(range(count)), whole
                return
        kept = _kept[key]
        if kept is None:
            if not count:
                return
            self.notes.append(f"{what} left out: TVM cannot do it for any part of the model")
            return
        if len(kept) < count:
            self.notes.append(f"{what} left out for {count - len(kept)} of {count}: TVM cannot do it there")
        self.mod = _run(passes(lambda i: i in kept), self.mod)

    def _most(self, count: int, passes: PassesFor) -> frozenset[int] | None:
        def works(chosen: frozenset[int]) -> bool:
            try:
                _run(passes(lambda i: i in chosen), self.mod)
            except Exception:  # TVM raises several types
                return False
            return True

        def grown(chosen: frozenset[int], part: Sequence[int]) -> frozenset[int]:
            if not part or works(chosen | set(part)):
                return chosen | set(part)
            if len(part) == 1:
                return chosen
            half = len(part) // 2
            return grown(grown(chosen, part[:half]), part[half:])

        return grown(frozenset(), range(count)) if works(frozenset()) else None


def _run(passes: Sequence[tvm.transform.Pass], mod: tvm.IRModule) -> tvm.IRModule:
    for step in passes:
        mod = step(mod)
    return mod


def _count(mod: tvm.IRModule, operator: str) -> int:
    op, found = tvm.ir.Op.get(operator), 0

    def visit(e: relax.Expr) -> None:
        nonlocal found
        found += isinstance(e, relax.Call) and e.op == op

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _hash(mod: tvm.IRModule) -> int:
    return int(tvm_ffi.structural_hash(mod, map_free_vars=True))
