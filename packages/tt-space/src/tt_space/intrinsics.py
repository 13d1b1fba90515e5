"""TVM's tensor intrinsics, only those that a target can use."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

__all__ = ["import_intrinsics"]

_PACKAGE = "tvm.s_tir.tensor_intrin"


def import_intrinsics(target: object) -> None:
    """Register the intrinsics that MetaSchedule's rules for `target` look up, and no others.

    Importing the package parses every CUDA intrinsic and takes 10 to 30 s; `TuneContext` does so by itself. Here the
    package is put in place without its body, and the one submodule a target needs is imported (0.1 s on x86-64).
    """
    import tvm

    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(Path(str(tvm.__file__)).parent / "s_tir" / "tensor_intrin")]
        sys.modules[_PACKAGE] = package
    for module in _needed(target):
        importlib.import_module(f"{_PACKAGE}.{module}")


def _needed(target: object) -> list[str]:
    kind = str(target.kind.name)  # type: ignore[attr-defined]
    keys = {str(k) for k in target.keys}  # type: ignore[attr-defined]
    if kind == "cuda":
        return ["cuda"]
    if kind == "rocm":
        return ["rocm"]
    if kind == "metal":
        return ["metal"]
    if kind == "llvm":
        triple = str(target.attrs.get("mtriple", "")) + str(target.attrs.get("mcpu", ""))  # type: ignore[attr-defined]
        if "arm_cpu" in keys or "aarch64" in triple or "arm64" in triple:
            return ["arm_cpu"]
        if "riscv" in triple:
            return ["riscv_cpu"]
        return ["x86"]
    return []
