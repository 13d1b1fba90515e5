"""Heavy modules without those that they load wherever they are installed and that `tt` has no use for."""

from __future__ import annotations

import importlib.metadata
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

__all__ = ["tvm_without_torch", "worker_backend", "xgboost_without_sklearn"]


def worker_backend() -> TvmBackend:
    """The backend of a worker, a process that needs TVM and never PyTorch; what its first task needs is loaded."""
    tvm_without_torch()
    from tt_core.compiler.backend import TvmBackend

    backend = TvmBackend()
    backend.prestart()
    return backend


def tvm_without_torch() -> None:
    """Let this process's `import tvm` find no PyTorch, unless one of both is loaded already.

    PyTorch is two thirds of the time of `import tvm`, in every worker too; TVM wants it for its tensors and dtypes as
    arguments, and against a clash of symbols on Windows. It can be imported afterwards. For processes that are ours
    alone: a program that uses `tt` as a library may hand TVM such arguments.
    """
    _hide("torch", "tvm")


def xgboost_without_sklearn() -> None:
    """Let this process's `import xgboost` find no scikit-learn, unless one of both is loaded already.

    scikit-learn, with pandas and half of SciPy, is five sixths of the time of `import xgboost`, 1.27 s of CPU of an AMD
    EPYC (Zen 4); XGBoost wants it for its estimators, which are of no use then. So for processes that are ours alone,
    without anybody else's plug-in, which may want those.
    """
    if all(point.value.startswith("tt_") for point in importlib.metadata.entry_points(group="tt")):
        _hide("sklearn", "xgboost")


def _hide(hidden: str, module: str) -> None:
    if module not in sys.modules and not any(isinstance(f, _Finder) and f.module == module for f in sys.meta_path):
        _ask_first(_Finder(module, hidden))


_CHANGES = threading.Lock()


def _ask_first(finder: MetaPathFinder) -> None:
    with _CHANGES:
        sys.meta_path = [finder, *sys.meta_path]


def _ask_no_more(finder: MetaPathFinder) -> None:
    """Take a finder out of a copy of the list: an import of another thread that goes through it just then would pass
    over the finder behind the one taken out, and miss a module that is there."""
    with _CHANGES:
        sys.meta_path = [f for f in sys.meta_path if f is not finder]


class _Finder(MetaPathFinder):
    """Finds a module where the others do, until it is loaded."""

    def __init__(self, module: str, hidden: str) -> None:
        self.module, self.hidden = module, hidden
        self.asking: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self.module or thread in self.asking:
            return None
        self.asking.add(thread)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking.discard(thread)
        if spec is None or spec.loader is None or self.hidden in sys.modules:
            _ask_no_more(self)
        else:
            spec.loader = _Without(spec.loader, self)
        return spec


class _Without(Loader):
    """Loads a module as `loader` does where what its finder hides is not installed."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self.loader, self.finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _ask_no_more(self.finder)
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self.loader
        hidden = _Hidden(self.finder.hidden, self.finder.module)
        _ask_first(hidden)
        try:
            self.loader.exec_module(module)
        finally:
            _ask_no_more(hidden)


class _Hidden(MetaPathFinder):
    """Hides a module from the imports of the thread that made it.

    `sys.modules["torch"] = None` would hide it from every thread, and SciPy, which a cost model may be importing just
    then, takes whatever is there for the module itself.
    """

    def __init__(self, hidden: str, module: str) -> None:
        self.hidden, self.module, self.thread = hidden, module, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.hidden and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"{self.hidden} is hidden while {self.module} is imported", name=self.hidden)
        return None
