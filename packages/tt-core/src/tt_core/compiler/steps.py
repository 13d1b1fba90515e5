"""Passes over a Relax module of which none may refuse a model: what fails is left out, and a note says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import relax

from tt_core.errors import summary

__all__ = ["Steps", "count_calls"]

PassesFor = Callable[[frozenset[int]], Sequence[tvm.transform.Pass]]
"""From the numbers of the parts that are to be left out to the passes over the others."""

_left: dict[tuple[int, str], frozenset[int] | None] = {}
"""The end of each search over parts in this process, by module and step; a step that never failed has none."""


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

    def may_each(self, what: str, operator: str, passes: PassesFor) -> bool:
        """Passes that treat operators one by one: with as many of them as a bisection finds to work.

        Args:
            operator: As Relax calls it: "relax.nn.conv2d".
            passes: By the numbers of such operators, in the module's order, that are left out.
        """
        return self.may_parts(
            what, lambda mod: count_calls(mod, lambda call: call.op == tvm.ir.Op.get(operator)), passes
        )

    def may_parts(self, what: str, count: Callable[[tvm.IRModule], int], passes: PassesFor) -> bool:
        """The same for parts that `count` counts, which is asked only if the passes fail on the whole. Whether they
        were run at all."""
        key = None
        if all(step != what for _, step in _left):
            try:
                self.mod = _run(passes(frozenset()), self.mod)
            except Exception:  # TVM raises several types
                key = (_hash(self.mod), what)
            else:
                return True
        total = count(self.mod)
        left = self._left(key or (_hash(self.mod), what), total, passes)
        if left is None:
            if total:
                self.notes.append(f"{what} left out: TVM cannot do it for any part of the model")
            return False
        if left:
            self.notes.append(f"{what} left out for {len(left)} of {total}: TVM cannot do it there")
        self.mod = _run(passes(left), self.mod)
        return True

    def _left(self, key: tuple[int, str], count: int, passes: PassesFor) -> frozenset[int] | None:
        """The parts that are left out, as few as a bisection finds; None if the passes fail without any part."""
        if key in _left:
            return _left[key]
        every = frozenset(range(count))

        def works(chosen: frozenset[int]) -> bool:
            try:
                _run(passes(every - chosen), self.mod)
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

        _left[key] = every - grown(frozenset(), range(count)) if works(frozenset()) else None
        return _left[key]


def count_calls(mod: tvm.IRModule, counts: Callable[[relax.Call], bool]) -> int:
    """Number of calls in the module's Relax functions that a rule accepts."""
    found = 0

    def visit(e: relax.Expr) -> None:
        nonlocal found
        found += isinstance(e, relax.Call) and counts(e)

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found


def _run(passes: Sequence[tvm.transform.Pass], mod: tvm.IRModule) -> tvm.IRModule:
    for step in passes:
        mod = step(mod)
    return mod


def _hash(mod: tvm.IRModule) -> int:
    return int(tvm_ffi.structural_hash(mod, map_free_vars=True))
