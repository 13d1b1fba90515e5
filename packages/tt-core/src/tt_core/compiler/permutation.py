"""A chain of reshapes and permutations of dimensions as one copy, with the simplest indices.

A channel shuffle in NHWC is three permutations and two reshapes. TVM fuses the five, but computes each element's
source by dividing through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te

from tt_core.compiler.values import dimensions

__all__ = ["Digits", "one_permutation"]


@tvm.transform.module_pass(opt_level=0, name="OnePermutation")
def one_permutation(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Make one function of each chain of reshapes and permutations in which two or more permute."""
    rewriter = _Chains(mod)
    for var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            rewriter.find(func)
            rewriter.builder_.update_func(var, rewriter.visit_expr(func))
    return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@dataclass
class Digits:
    """How the indices of a chain's result come from those of its source.

    An element's place is written in digits, each of a size. Both tensors are made of the same digits: each dimension
    is one of several of them, the most significant first.

    Args:
        sizes: Of each digit.
        source, result: The digits of each dimension.
    """

    sizes: list[int]
    source: list[list[int]]
    result: list[list[int]]

    @classmethod
    def of(cls, shape: Sequence[int]) -> Digits:
        """A tensor as it is."""
        return cls(list(shape), [[d] for d in range(len(shape))], [[d] for d in range(len(shape))])

    def permute(self, axes: Sequence[int]) -> None:
        """Put the result's dimensions in another order."""
        self.result = [self.result[a] for a in axes]

    def reshape(self, shape: Sequence[int]) -> bool:
        """Cut the result's digits into other dimensions; False, and nothing is changed for good, where a dimension
        ends inside a digit that it does not divide."""
        left = [d for dim in self.result for d in dim if self.sizes[d] > 1]
        made: list[list[int]] = []
        for extent in shape:
            dim: list[int] = []
            while (missing := extent // math.prod(self.sizes[d] for d in dim)) > 1:
                if not left:
                    return False
                first = left.pop(0)
                if self.sizes[first] > missing:
                    if self.sizes[first] % missing:
                        return False
                    left.insert(0, self._split(first, missing))
                dim.append(first)
            if math.prod(self.sizes[d] for d in dim) != extent:
                return False
            made.append(dim)
        self.result = made
        return not left

    def _split(self, digit: int, high: int) -> int:
        """Make two digits of one: the higher one, of size `high`, keeps its number; the lower one's is returned."""
        low = len(self.sizes)
        self.sizes.append(self.sizes[digit] // high)
        self.sizes[digit] = high
        self.source = [[x for d in dim for x in ((d, low) if d == digit else (d,))] for dim in self.source]
        return low

    @property
    def shape(self) -> list[int]:
        """Of the result."""
        return [math.prod(self.sizes[d] for d in dim) for dim in self.result]

    @property
    def plain(self) -> bool:
        """Whether the elements keep their order, so that nothing but the shape changes."""
        source, result = ([d for dim in of for d in dim if self.sizes[d] > 1] for of in (self.source, self.result))
        return source == result

    def origin(self, index: Sequence[Any]) -> list[Any]:
        """The source's index of the element that has this index in the result: numbers or expressions."""
        value: dict[int, Any] = {}
        for i, dim in zip(index, self.result, strict=True):
            below = 1
            for position in range(len(dim) - 1, -1, -1):
                digit, whole = dim[position], i if below == 1 else i // below
                value[digit] = whole % self.sizes[digit] if position else whole
                below *= self.sizes[digit]
        found = []
        for dim in self.source:
            place: Any = 0
            for digit in dim:
                if digit in value:  # one of size 1 may be in the source only
                    place = place * self.sizes[digit] + value[digit]
            found.append(place)
        return found


@relax.expr_functor.mutator
class _Chains(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._ends: dict[relax.Var, tuple[relax.Var, Digits]] = {}

    def find(self, func: relax.Function) -> None:
        """Look for the chains of a function."""
        steps: dict[relax.Var, relax.Call] = {}
        uses: dict[relax.Var, list[relax.Var | None]] = {}
        for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else ():
            for binding in block.bindings:
                value = binding.value
                for used in relax.analysis.all_vars(value):
                    uses.setdefault(used, []).append(binding.var)
                if isinstance(value, relax.Call) and _is_step(value):
                    steps[binding.var] = value
        for end in steps:
            users = uses.get(end, [])
            if len(users) == 1 and users[0] in steps:
                continue
            chain, first = [], end
            while isinstance(first, relax.Var) and first in steps and (first is end or len(uses[first]) == 1):
                chain.insert(0, steps[first])
                first = chain[0].args[0]
            if isinstance(first, relax.Var) and sum(_permutes(c) for c in chain) > 1:
                digits = _through(chain)
                if digits is not None and not digits.plain:
                    self._ends[end] = first, digits

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._ends:
            super().visit_var_binding_(binding)
            return
        first, digits = self._ends[binding.var]
        source = self.visit_expr(first)

        def permuted(x: te.Tensor) -> te.Tensor:
            return te.compute(digits.shape, lambda *i: x(*digits.origin(i)), name="permute")

        made = self.builder_.call_te(permuted, source, primfunc_name_hint="permute")
        super().visit_var_binding_(relax.VarBinding(binding.var, made))


def _is_step(call: relax.Call) -> bool:
    if not (_permutes(call) or call.op == tvm.ir.Op.get("relax.reshape")):
        return False
    return all(dimensions(e) is not None for e in (call, call.args[0]))


def _permutes(call: relax.Call) -> bool:
    return call.op == tvm.ir.Op.get("relax.permute_dims")


def _through(chain: Sequence[relax.Call]) -> Digits | None:
    digits = Digits.of(dimensions(chain[0].args[0]) or [])
    for call in chain:
        if not _permutes(call):
            if not digits.reshape(dimensions(call) or []):
                return None
        else:
            rank = len(digits.result)
            digits.permute([int(a) for a in call.attrs.axes] if call.attrs.axes else range(rank)[::-1])
    return digits
