"""Makes stock MetaSchedule a fair peer: its 10 to 30 s import of every tensor intrinsic becomes an empty module.

Put this folder on PYTHONPATH of a process that runs MetaSchedule; its worker processes inherit it.
"""

import importlib.util
import sys
import types
from pathlib import Path

_name = "tvm.s_tir.tensor_intrin"
_tvm = importlib.util.find_spec("tvm")
if _tvm is not None and _tvm.origin is not None:
    _module = types.ModuleType(_name)
    _module.__path__ = [str(Path(_tvm.origin).parent / "s_tir" / "tensor_intrin")]
    sys.modules[_name] = _module
