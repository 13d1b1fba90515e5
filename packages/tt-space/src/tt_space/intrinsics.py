"""TVM's tensor intrinsics, only those that a target can use."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from pathlib import Path
from types import FrameType

__all__ = ["import_intrinsics"]

_PACKAGE = "tvm.s_tir.tensor_intrin"


def import_intrinsics(target: object) -> None:
    """Register the intrinsics that MetaSchedule's rules for `target` look up, and no others.

    Importing the package parses every CUDA intrinsic and takes 10 to 30 s; `TuneContext` does so by itself. Here the
    package is put in place without its body, and the one submodule a target needs is imported (0.05 s on x86-64).
    """
    import tvm

    _list_callers_quickly()
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


def _list_callers_quickly() -> None:
    """Let `T.prim_func` list its callers as `Caller`s, from now on.

    It asks `inspect.stack` twice for each function that it parses, to see whether that stands in a class and what
    names are around it. That finds the module and the source of every frame, of which one line is read: 0.02 to 0.06 s
    a time, four fifths of what the intrinsics of x86-64 took.
    """
    from tvm.tirx.script.parser import entry

    vars(entry)["inspect"] = types.SimpleNamespace(**{**vars(inspect), "stack": _callers})


def _callers() -> list[Caller]:
    """The frames above this one, the innermost first, as `inspect.stack` lists them."""
    found, frame = [], inspect.currentframe()
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
        found.append(Caller(frame))
    return found


class Caller:
    """A frame as `inspect.stack` describes it, but its source line is read when somebody asks for it."""

    def __init__(self, frame: FrameType) -> None:
        self.frame, self.lineno = frame, frame.f_lineno

    @property
    def code_context(self) -> list[str] | None:
        return inspect.getframeinfo(self.frame).code_context
