"""tt-core: models in, tasks out, tuning, deployment, the command `tt`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_core.planning import Plan, plan
    from tt_core.result import Result
    from tt_core.tuning import tune

__all__ = ["Plan", "Result", "plan", "tune"]

_HOME = {"Plan": "planning", "Result": "result", "plan": "planning", "tune": "tuning"}


def __getattr__(name: str) -> Any:
    """Import the runner, and TVM with it, only when it is used."""
    if name in _HOME:
        return getattr(importlib.import_module(f"tt_core.{_HOME[name]}"), name)
    raise AttributeError(f"module 'tt_core' has no attribute {name!r}")
