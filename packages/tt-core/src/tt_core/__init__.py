"""tt-core: models in, tasks out, tuning, deployment, the command `tt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_core.tuning import Result, tune

__all__ = ["Result", "tune"]


def __getattr__(name: str) -> Any:
    """Import the runner, and TVM with it, only when it is used."""
    if name in __all__:
        from tt_core import tuning

        return getattr(tuning, name)
    raise AttributeError(f"module 'tt_core' has no attribute {name!r}")
