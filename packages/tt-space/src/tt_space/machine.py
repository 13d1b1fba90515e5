"""A target's threads and their vector units; templates are cut to them."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.target import codegen

__all__ = ["VectorUnit", "threads_of", "vector_unit"]


@dataclass(frozen=True)
class VectorUnit:
    """The vector registers of a core.

    Args:
        bits: Width of one register.
        registers: Number of registers.
    """

    bits: int
    registers: int

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` in one register."""
        return max(1, self.bits // tvm.DataType(dtype).bits)


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """The vector unit of an LLVM target, from its features (LLVM's own answer is 512 bits for every x86 CPU)."""
    for feature, unit in (
        ("avx512f", VectorUnit(512, 32)),
        ("avx", VectorUnit(256, 16)),
        ("neon", VectorUnit(128, 32)),
    ):
        if codegen.target_has_features(feature, target):
            return unit
    return VectorUnit(128, 16)


def threads_of(target: tvm.target.Target) -> int:
    """Threads that a program on an LLVM target runs on; 1 where `num-cores` is not set."""
    return int(target.attrs.get("num-cores", 1))
