"""TVM without PyTorch, which `import tvm` loads wherever it is installed."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tt_core.compiler.backend import TvmBackend

__all__ = ["tvm_without_torch", "worker_backend"]

_TVM, _TORCH = "tvm", "torch"


def worker_backend() -> TvmBackend:
    """The backend of a worker, a process that needs TVM and never PyTorch."""
    tvm_without_torch()
    from tt_core.compiler.backend import TvmBackend

    return TvmBackend()


def tvm_without_torch() -> None:
    """Let this process's `import tvm` find no PyTorch, unless one of both is loaded already.

    PyTorch is two thirds of the time of `import tvm`, in every worker too; TVM wants it for its tensors and dtypes as
    arguments, and against a clash of symbols on Windows. It can be imported afterwards. For processes that are ours
    alone: a program that uses `tt` as a library may hand TVM such arguments.
    """
    if _TVM not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds TVM once, where the others do."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TVM:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None and _TORCH not in sys.modules:
            spec.loader = _WithoutTorch(spec.loader)
        return spec


class _WithoutTorch(Loader):
    """Loads a module as `loader` does where PyTorch is not installed."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        hidden = _Hidden()
        sys.meta_path.insert(0, hidden)
        try:
            self.loader.exec_module(module)
        finally:
            sys.meta_path.remove(hidden)


class _Hidden(MetaPathFinder):
    """Hides PyTorch from the imports of the thread that made it.

    `sys.modules["torch"] = None` would hide it from every thread, and SciPy, which a cost model may be importing just
    then, takes whatever is there for the module itself.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == _TORCH and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{_TORCH} is hidden while {_TVM} is imported", name=_TORCH)
        return None
